"""Steps of a run whose data are consumed without training (`TrainConfig.skip_steps`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from towerpack._core.logs import get_logger
from towerpack.inputs import InputSource
from towerpack.training.optim.adapter import OptimizerAdapter
from towerpack.training.optim.schedules import Schedules

_LOG = get_logger(__name__)

Ranges = Sequence[Any]  # of pairs [first, last], sorted and without overlaps


def skipped_setting(ranges: Ranges) -> dict[str, Any]:
    """Return the setting of a run, absent without ranges, as in runs of earlier releases."""
    return {"skip_steps": [f"{first}-{last}" for first, last in ranges]} if ranges else {}


def warn_if_trained(ranges: Ranges, step: int, saved: Mapping[str, Any]) -> None:
    """Warn if a run continues from a step after steps that it should have skipped."""
    known = [[*map(int, text.split("-"))] for text in saved.get("skip_steps", [])]
    trained = [
        first
        for first, last in ranges
        if first <= step and not any(a <= first and min(last, step) <= b for a, b in known)
    ]
    if trained:
        _LOG.warning(
            "The run continues after step %d, but skip_steps has the earlier step %d, which was "
            "trained. To skip it, continue from an earlier checkpoint: towerpack runs rewind.",
            step,
            trained[0],
        )


class SkippedSteps:
    """Steps to skip. Skipping advances the data, the step number and schedules, and nothing else.

    `replicas` is the number of replicas in this process.
    """

    def __init__(
        self,
        ranges: Ranges,
        source: InputSource,
        replicas: int,
        step: tf.Variable,
        schedules: Schedules,
        optimizers: Iterable[OptimizerAdapter],
    ) -> None:
        self._ranges, self._source, self._replicas = ranges, source, replicas
        self._step, self._schedules, self._optimizers = step, schedules, list(optimizers)

    def next(self, step: int, most: int) -> tuple[int, bool]:
        """Return how many of the `most` steps after `step` come first, and whether to skip them."""
        for first, last in self._ranges:
            if step < first - 1:
                return min(most, first - 1 - step), False
            if step < last:
                return min(most, last - step), True
        return most, False

    def skip(self, steps: int, after: int, poll: Callable[[], None]) -> int:
        """Skip some or all of the next steps. Return their number, 0 at the end of the data."""
        due = self._schedules.due(steps, after)
        done = self._source.skip(steps, poll, replicas=self._replicas)
        if done:
            self._schedules.assign_after(done, due)
            for optimizer in self._optimizers:
                optimizer.skip(done, after)
            self._step.assign_add(done)
        for first, last in self._ranges:
            if after + done == last:
                _LOG.info("Skipped the data of steps %d to %d (skip_steps).", first, last)
        return done
