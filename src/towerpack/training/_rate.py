"""Learning rates that a function gives, such as the schedules of `tf.compat.v1.train`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack._core.naming import unique
from towerpack.nn import components_of, find_global_step
from towerpack.training._hyper import VariableParam

LEARNING_RATE = "learning_rate"
# What an optimizer's rate is called among its variables: a number, or what a function gave last.
RATES = (LEARNING_RATE, f"scheduled_{LEARNING_RATE}")


def traced(function: Callable[[], Any]) -> tuple[Callable[[], tf.Tensor], list[tf.Variable]]:
    """Trace a function without arguments. Returns it as a graph, and the variables it reads."""
    concrete: Any = tf.function(function, autograph=False).get_concrete_function()
    return concrete, sorted(concrete.graph._watched_variables, key=lambda v: v.name)


class RateFunction:
    """Call the function once a step, in the graph, and keep what it gave.

    Args:
        function: Takes nothing and gives the rate. A `tf.compat.v1.train` schedule is one.

    Attributes:
        rate: That of the last step.

    Raises:
        ConfigError: The function reads a global step that no step of this run moves, or is a
            schedule over a number in place of the step.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        if isinstance(function, functools.partial):
            numbers = [n for n in function.args if isinstance(n, tf.Tensor)]
            if numbers:
                raise ConfigError(
                    "The schedule of the learning rate got a number in place of the global step, "
                    "so the rate would never change.",
                    got=f"{numbers[0]}",
                    fix="compute it in a function: "
                    "lambda: tf.compat.v1.train.exponential_decay(0.1, step + 100, 10, 0.5)",
                )
        self._function, read = traced(function)
        self._kept = function  # It holds variables that only the traced function reads.
        self.rate = tf.Variable(
            tf.constant(0.0), trainable=False, name=f"scheduled_{LEARNING_RATE}"
        )
        step = find_global_step()
        steps = () if step is None else (step, *components_of(step))
        self._reads: dict[str, tf.Variable] = {}
        for variable in read:
            name = variable.name.split(":")[0]
            if all(variable is not known for known in steps):
                if name == "global_step":
                    raise ConfigError(
                        "The learning rate depends on a global step that is not the run's.",
                        fix="make the schedule in the model's optimizer(), in the thread that "
                        "trains",
                    )
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
