"""Steps of a run whose data are consumed without training (`TrainConfig.skip_steps`)."""

from __future__ import annotations

import bisect
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
    known = {int(text.partition("-")[0]) for text in saved.get("skip_steps", [])}
    trained = [first for first, _ in ranges if first <= step and first not in known]
    if trained:
        text = "Step %d of skip_steps was trained. To skip it, use towerpack runs rewind."
        _LOG.warning(text, trained[0])


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
        # Steps after which skipping begins and ends, in turn.
        self._edges = [edge for first, last in ranges for edge in (first - 1, last)]
        self._source, self._replicas = source, replicas
        self._step, self._schedules, self._optimizers = step, schedules, list(optimizers)

    def next(self, step: int, most: int) -> tuple[int, bool]:
        """Return how many of the `most` steps after `step` come first, and whether to skip them."""
        passed = bisect.bisect_right(self._edges, step)
        left = [edge - step for edge in self._edges[passed : passed + 1]]
        return min([most, *left]), passed % 2 == 1

    def skip(self, steps: int, after: int, poll: Callable[[], None]) -> int:
        """Skip some or all of the next steps. Return their number, 0 at the end of the data."""
        due = self._schedules.due(steps, after)
        done = self._source.reserve(steps, poll)
        for _ in range(done * self._replicas):
            self._source.get(self._step)
        self._source.consumed(done)
        if done:
            self._schedules.assign_after(done, due)
            for optimizer in self._optimizers:
                optimizer.skip(done, after)
            self._step.assign_add(done)
        if after + done in self._edges:
            _LOG.info("Skipped the data up to step %d (skip_steps).", after + done)
        return done
