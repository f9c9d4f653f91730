"""Learning rates that a function gives, such as the schedules of `tf.compat.v1.train`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack._core.naming import unique
from towerpack.nn import find_global_step, find_variables, owners_of
from towerpack.training._hyper import VariableParam

LEARNING_RATE = "learning_rate"
# What an optimizer's rate is called among its variables: a number, or what a function gave last.
RATES = (LEARNING_RATE, f"scheduled_{LEARNING_RATE}")


class RateFunction:
    """Call the function once a step, in the graph, and keep what it gave.

    Args:
        function: Takes nothing and gives the rate. A `tf.compat.v1.train` schedule is one.

    Attributes:
        rate: That of the last step.

    Raises:
        ConfigError: The function reads a global step that no step of this run moves.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self.rate = tf.Variable(
            tf.constant(0.0), trainable=False, name=f"scheduled_{LEARNING_RATE}"
        )
        step = find_global_step()
        self._reads: dict[str, tf.Variable] = {}
        for variable in find_variables(owners_of(function)).values():
            name = variable.name.split(":")[0]
            if name == "global_step" and variable is not step:
                raise ConfigError(
                    "The learning rate depends on a global step that is not the run's.",
                    fix="make the schedule in the model's optimizer(), in the thread that trains",
                )
            if variable is not step:
                self._reads[unique(name, self._reads)] = variable

    def update(self) -> None:
        """In the graph: have the rate of this step."""
        self.rate.assign(tf.cast(self._function(), tf.float32), read_value=False)

    def variables(self) -> dict[str, tf.Variable]:
        """The rate, and what the function reads."""
        return {f"scheduled_{LEARNING_RATE}": self.rate, **self._reads}

    def hyper_params(self) -> dict[str, VariableParam]:
        """Numbers that the function reads."""
        return {
            name: VariableParam(name, variable)
            for name, variable in self._reads.items()
            if variable.shape.rank == 0
            and variable.dtype.is_floating
            and (name == LEARNING_RATE or not variable.trainable)
        }

    def scheduled(self) -> dict[str, float]:
        """What the function gave for the last step."""
        return {LEARNING_RATE: float(self.rate.numpy())}
