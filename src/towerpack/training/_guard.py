"""Guard against steps whose cost, or a checked gradient, is not finite."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from towerpack.nn import components_of


class Guard:
    """Apply a step's update only if that is to be, and take back what the model has moved.

    Args:
        moved: Variables that the model itself changes, before the cost is known.
    """

    def __init__(self, moved: Sequence[tf.Variable]) -> None:
        self._moved = list(moved)

    def before(self) -> list[tf.Tensor]:
        """In the graph, before the step: what `apply` may have to put back."""
        return [components_of(variable)[0].read_value() for variable in self._moved]

    def apply(
        self, finite: tf.Tensor, before: Sequence[tf.Tensor], update: Callable[[], None]
    ) -> tf.Tensor:
        """In the graph: update if all is finite; gives back whether it was."""

        def done() -> tf.Tensor:
            update()
            return tf.constant(True)

        def undone() -> tf.Tensor:
            for variable, value in zip(self._moved, before, strict=True):
                variable.assign(value, read_value=False)
            return tf.constant(False)

        return tf.cond(finite, done, undone)
