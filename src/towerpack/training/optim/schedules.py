"""Hyper-parameters that are functions of the step, computed on the host for a whole call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from towerpack._core.errors import CallbackError

# Takes the number of steps done; gives a hyper-parameter's value for the next one, or None.
Schedule = Callable[[int], float | None]


class Schedules:
    """Variables that are set after each step.

    Args:
        schedules: Each variable with the function that gives its values; kept as `pairs`.
    """

    def __init__(self, schedules: Sequence[tuple[tf.Variable, Schedule]] = ()) -> None:
        self.pairs = list(schedules)
        self.spec = tf.TensorSpec([len(self.pairs), None], tf.float64)

    def due(self, steps: int, after: int) -> np.ndarray:
        """The value that each variable has after each of some steps, [schedules, steps]."""
        due = np.empty([len(self.pairs), steps])
        for row, (variable, schedule) in zip(due, self.pairs, strict=True):
            changes = [schedule(step) for step in range(after + 1, after + 1 + steps)]
            # NumPy makes NaN of None; it stands for the value before.
            values = np.array([variable.numpy(), *changes], np.float64)
            set_at = np.where(np.isfinite(values), np.arange(steps + 1), 0)
            if steps - np.count_nonzero(set_at) != changes.count(None):
                raise CallbackError(
                    f"A schedule of '{variable.name}' gives numbers that are not finite.",
                    got=f"{changes} for the steps after {after}",
                    expected="a number, or None",
                )
            row[:] = values[np.maximum.accumulate(set_at)][1:]
        return due

    def rows(self, due: tf.Tensor) -> list[tf.Tensor]:
        """In the graph: `due` by variable, in its dtype."""
        pairs = zip(tf.unstack(due), self.pairs, strict=True)
        return [tf.cast(row, variable.dtype) for row, (variable, _) in pairs]

    def assign_after(self, steps: int, due: np.ndarray) -> None:
        """Set the variables to what is due after some of the steps."""
        self.assign([row[steps - 1] for row in Schedules.rows(self, tf.constant(due))])

    def assign(self, values: Sequence[tf.Tensor]) -> None:
        """In the graph: set the variables to their values after a step."""
        for value, (variable, _) in zip(values, self.pairs, strict=True):
            variable.assign(value, read_value=False)
