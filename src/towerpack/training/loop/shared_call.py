"""Calls of the training function whose steps several devices or workers divide among them."""

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
    """Call whose steps are divided into shares, which end in any order.

    Late shares may set schedules to earlier values, and increments of counters may be lost. `end`
    corrects both. `due` holds the schedules' values for the call.
    """

    def __init__(
        self, schedules: Schedules, counters: Sequence[tf.Variable], steps: int, after: int
    ) -> None:
        self._schedules = schedules
        self._before = [(counter, counter.numpy()) for counter in counters]
        self.due = schedules.due(steps, after)

    def end(self, steps: int, *, applied: int) -> None:
        """Correct schedules and counters. `applied` exceeds `steps` if steps were applied twice."""
        if steps:
            self._schedules.assign_after(steps, self.due)
        for counter, value in self._before:
            counter.assign(value + applied)


class Work:
    """Thread-safe queue of the remaining steps of a call."""

    def __init__(self, after: int, steps: int, parts: int) -> None:
        self.after = self._next = after
        self._end = after + steps
        self._parts = parts
        self._lock = threading.Lock()

    def take(self) -> tuple[int, int] | None:
        """Return the first step (exclusive) and the size of the next share, or None at the end."""
        with self._lock:
            start = self._next
            self._next += -(-(self._end - start) // self._parts)
            return (start, self._next - start) if self._next > start else None

    def end(self) -> None:
        with self._lock:
            self._end = self._next


def counters(optimizers: Sequence[OptimizerAdapter]) -> list[tf.Variable]:
    """Return the step counters of Keras optimizers, whose concurrent increments may be lost.

    Wrapped optimizers are left out, because they do not run in every step.
    """
    plain = [optimizer for optimizer in optimizers if type(optimizer) is KerasOptimizer]
    variables = (optimizer.variables().get("iteration") for optimizer in plain)
    return [variable for variable in variables if variable is not None]


def no_batch() -> None:
    """Raise `LookupError`, because the batch of a failed asynchronous step cannot be saved."""
    raise LookupError("asynchronous devices take batches in any order")


def joined(results: Sequence[CallResult]) -> CallResult:
    nonfinite = (r.nonfinite for r in results if r.nonfinite is not None)
    return CallResult(
        steps=sum(r.steps for r in results),
        outputs={
            name: _concatenated([r.outputs[name] for r in results]) for name in results[0].outputs
        },
        summaries={
            n: np.concatenate([r.summaries[n] for r in results]) for n in results[0].summaries
        },
        heavy=results[-1].heavy,
        nonfinite=next(nonfinite, None),
    )


def _concatenated(values: Sequence[Any]) -> Any:
    if all(isinstance(value, np.ndarray) for value in values):
        return np.concatenate(values)
    return [array for value in values for array in value]
