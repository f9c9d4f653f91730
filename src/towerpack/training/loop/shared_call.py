"""Steps of one call that several devices or workers share, each as many as it can."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack.training.optim.adapter import KerasOptimizer, OptimizerAdapter
from towerpack.training.optim.schedules import Schedules
from towerpack.training.steps.step_runner import CallResult


class SharedCall:
    """What shares of a call, which end in any order, leave wrong, to be set right at its end.

    Args:
        schedules: Shares that ended later may have set earlier values.
        counters: Shares read and write them apart, so that counts are lost.
        steps: How many steps the call has.
        after: The step before it.

    Attributes:
        due: What schedules give for its steps.
    """

    def __init__(
        self, schedules: Schedules, counters: Sequence[tf.Variable], steps: int, after: int
    ) -> None:
        self._schedules = schedules
        self._before = [(counter, counter.numpy()) for counter in counters]
        self.due = schedules.due(steps, after)

    def end(self, steps: int, *, applied: int) -> None:
        """Set them right; more may have been applied than steps are done, some of them twice."""
        if steps:
            self._schedules.assign_after(steps, self.due)
        for counter, value in self._before:
            counter.assign(value + applied)


class Work:
    """Queue of the steps that are left to do, for several threads."""

    def __init__(self, after: int, steps: int, parts: int) -> None:
        self.after = self._next = after
        self._end = after + steps
        self._parts = parts
        self._lock = threading.Lock()

    def take(self) -> tuple[int, int] | None:
        """The step before some of them, and how many; smaller shares towards the end."""
        with self._lock:
            start = self._next
            self._next += -(-(self._end - start) // self._parts)
            return (start, self._next - start) if self._next > start else None

    def end(self) -> None:
        with self._lock:
            self._end = self._next


def counters(optimizers: Sequence[OptimizerAdapter]) -> list[tf.Variable]:
    """What Keras optimizers count steps with: they read and write it apart, so counts are lost.

    Those inside of wrappers do not take every step, and are left to themselves.
    """
    plain = [optimizer for optimizer in optimizers if type(optimizer) is KerasOptimizer]
    found = (optimizer.variables().get("iteration") for optimizer in plain)
    return [variable for variable in found if variable is not None]


def no_batch() -> None:
    """Say why the batch of a failed step is not kept; for `step_error`."""
    raise LookupError("devices that do not wait for one another take batches as they come")


def joined(results: Sequence[CallResult]) -> CallResult:
    nonfinite = (r.nonfinite for r in results if r.nonfinite is not None)
    return CallResult(
        steps=sum(r.steps for r in results),
        outputs={
            name: _in_a_row([r.outputs[name] for r in results]) for name in results[0].outputs
        },
        summaries={
            n: np.concatenate([r.summaries[n] for r in results]) for n in results[0].summaries
        },
        heavy=results[-1].heavy,
        nonfinite=next(nonfinite, None),
    )


def _in_a_row(values: Sequence[Any]) -> Any:
    if all(isinstance(value, np.ndarray) for value in values):
        return np.concatenate(values)
    return [array for value in values for array in value]
