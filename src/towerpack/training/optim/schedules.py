"""Schedules of hyper-parameters, computed on the host for all steps of a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from towerpack._core.errors import CallbackError

# Function from the number of steps done to the value for the next step; None keeps the value.
Schedule = Callable[[int], float | None]


class Schedules:
    """Variables with their schedules. After each step, each schedule sets its variable."""

    def __init__(self, schedules: Sequence[tuple[tf.Variable, Schedule]] = ()) -> None:
        self.pairs = list(schedules)
        self.spec = tf.TensorSpec([len(self.pairs), None], tf.float64)

    def due(self, steps: int, after: int) -> np.ndarray:
        """Return the values after each of the next `steps` steps, of shape [schedules, steps]."""
        due = np.empty([len(self.pairs), steps])
        for row, (variable, schedule) in zip(due, self.pairs, strict=True):
            changes = [schedule(step) for step in range(after + 1, after + 1 + steps)]
            # NumPy converts None, which keeps the value, to NaN.
            values = np.array([variable.numpy(), *changes], np.float64)
            set_at = np.where(np.isfinite(values), np.arange(steps + 1), 0)
            if steps - np.count_nonzero(set_at) != changes.count(None):
                raise CallbackError(
                    f"A schedule of '{variable.name}' must return finite numbers or None, got "
                    f"{changes} for the steps after {after}."
                )
            row[:] = values[np.maximum.accumulate(set_at)][1:]
        return due

    def rows(self, due: tf.Tensor) -> list[tf.Tensor]:
        """Split the result of `due` into one tensor per variable, with the variable's dtype."""
        pairs = zip(tf.unstack(due), self.pairs, strict=True)
        return [tf.cast(row, variable.dtype) for row, (variable, _) in pairs]

    def assign_after(self, steps: int, due: np.ndarray) -> None:
        self.assign([row[steps - 1] for row in Schedules.rows(self, tf.constant(due))])

    def assign(self, values: Sequence[tf.Tensor]) -> None:
        for value, (variable, _) in zip(values, self.pairs, strict=True):
            variable.assign(value, read_value=False)
