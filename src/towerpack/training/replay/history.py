"""History of a run: the state of the data from which each step started."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from towerpack._core.errors import CheckpointError, ConfigError
from towerpack._core.files import read_regular
from towerpack.checkpoint import decode_state, list_checkpoints
from towerpack.training.state.data_log import DataStart, read_data_log
from towerpack.training.state.ledger import Life, read_ledger


@dataclass(frozen=True)
class Segment:
    """Steps `start.step + 1` to `stop` of the final course of a run, which one start trained."""

    start: DataStart
    stop: int

    def parts(self) -> list[tuple[int, int]]:
        """Return the first and last steps of the parts without skipped steps and batches."""
        cuts = [(step + 1, step) for step in self.start.passed]
        parts, first = list[tuple[int, int]](), self.start.step + 1
        for skipped, last in sorted([*map(tuple[int, int], self.start.skip_steps), *cuts]):
            parts.append((first, min(skipped - 1, self.stop)))
            first = max(first, last + 1)
        return [part for part in [*parts, (first, self.stop)] if part[0] <= part[1]]


@dataclass(frozen=True)
class History:
    """Final course of a run, without the steps that later starts trained again."""

    run: Path
    segments: list[Segment]
    lives: list[Life]

    @property
    def last(self) -> int:
        """Last step of the run."""
        return self.segments[-1].stop

    def segment_of(self, step: int) -> Segment:
        """Return the segment of a step. Raise `ConfigError` if the step is not in the history."""
        for segment in self.segments:
            if segment.start.step < step <= segment.stop:
                return segment
        abandoned = 0 < step <= max((life.to_step for life in self.lives), default=0)
        raise ConfigError(
            f"Step {step:,} of {self.run} belongs to an abandoned branch."
            if abandoned
            else f"{self.run} has not trained step {step:,}.",
            fix=f"choose a step from 1 to {self.last}",
        )

    def before(self, segment: Segment, step: int) -> tuple[Any, int]:
        """Return the nearest state of the data, and the number of steps from it to a step."""
        start = segment.start
        states: list[tuple[int, Path | None]] = [(start.step, None)] if start.known else []
        # A checkpoint at a step after which a batch was passed over may be from before that.
        states += [
            (saved, path)
            for saved, path in self.checkpoints
            if start.step <= saved < step and saved not in start.passed
        ]
        if not states:
            raise ConfigError(
                f"The position of the data before step {step:,} of {self.run} is unknown.",
                fix="choose a later step; keep more checkpoints: ModelSaver(max_to_keep=…)",
            )
        saved, path = max(states, key=lambda state: state[0])
        ahead = step - 1 - saved + sum(saved <= passed < step for passed in start.passed)
        return (start.state if path is None else _data_in(path)), ahead

    @cached_property
    def checkpoints(self) -> list[tuple[int, Path]]:
        """Steps and paths of the valid checkpoints."""
        try:
            rows = list_checkpoints(self.run, checksums=False)
        except CheckpointError:
            return []
        return [(row.step, row.path) for row in rows if row.valid]


def _data_in(checkpoint: Path) -> Any:
    try:
        return decode_state(read_regular(checkpoint / "state.json"))["data"]
    except (TypeError, LookupError) as error:
        raise CheckpointError(
            f"The state in {checkpoint} has no position of the data: {error!r:.300}.",
            fix="remove this checkpoint, so that an earlier one is used",
        ) from error


def read_history(run: Path) -> History:
    """Return the history of a run.

    Raises:
        ConfigError: The directory is not a run, or the run does not record its data.
    """
    ledger = run / "ledger.jsonl"
    starts = read_data_log(ledger)
    if not starts:
        raise ConfigError(
            f"{run} is not a run directory with records of its data.",
            fix="pass the run_dir of a training with this version of Towerpack or a later one",
        )
    lives = read_ledger(ledger)
    stop = lives[-1].to_step
    segments: list[Segment] = []
    for start in reversed(starts):
        if start.step < stop:
            segments.append(Segment(start, stop))
        stop = min(stop, start.step)
    return History(run, segments[::-1] or [Segment(starts[-1], starts[-1].step)], lives)
