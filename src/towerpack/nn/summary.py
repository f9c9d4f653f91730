"""Numbers and pictures from inside a tower, for the monitors.

They are collected in the first training tower only. Scalars are taken at every step and cost next
to nothing; monitors get the last one of each epoch, and moving averages over all steps. Histograms
and images are computed for the last step of each epoch alone.

`tf.compat.v1.summary.scalar`, `histogram` and `image` in a tower are taken for those of the same
name here. Other summaries of TensorFlow go nowhere without a writer of one's own: a trainer refuses
them.
"""

from __future__ import annotations

import tensorflow as tf

from towerpack._core.errors import LayerError
from towerpack.nn._context import get_current_tower_context
from towerpack.nn._tensor_summaries import add_activation_summary as add_activation_summary
from towerpack.nn._tensor_summaries import add_moving_summary as add_moving_summary
from towerpack.nn._tensor_summaries import add_param_summary as add_param_summary
from towerpack.nn._tensor_summaries import add_tensor_summary as add_tensor_summary
from towerpack.nn.scopes import full_name

__all__ = [
    "add_activation_summary", "add_moving_summary", "add_param_summary", "add_tensor_summary",
    "histogram", "image", "moving_average", "scalar"
]  # fmt: skip


def scalar(name: str, value: tf.Tensor) -> None:
    """Report a scalar: its value in the last step of each epoch."""
    _add("scalar", name, value, rank=0)


def moving_average(name: str, value: tf.Tensor, *, decay: float = 0.95) -> None:
    """Report the moving average of a scalar over the steps, corrected for its start at zero.

    Args:
        name: Put under the current scope.
        value: Scalar.
        decay: Share of the old average that is kept in each step.
    """
    _add("moving_average", name, value, rank=0, decay=decay)


def histogram(name: str, value: tf.Tensor) -> None:
    """Report the distribution of a tensor's values."""
    _add("histogram", name, value)


def image(name: str, value: tf.Tensor, *, max_images: int = 4) -> None:
    """Report pictures: [batch, height, width, 1, 3 or 4], uint8, or float from 0 to 1.

    A float picture with values beyond 1 is divided by its largest. In one with negative values, 0
    becomes a mid-grey (127), and its largest or smallest value white or black.
    """
    tensor = tf.convert_to_tensor(value)
    if not (tensor.dtype.is_floating or tensor.dtype == tf.uint8):
        raise LayerError(
            f"summary.image('{name}') got no picture.",
            got=tensor.dtype.name,
            expected="uint8, or floats",
            fix="cast it: tf.cast(x, tf.float32)",
        )
    if tensor.dtype.is_floating:
        tensor = tf.cast(tensor, tf.float32)
    _add("image", name, tensor[:max_images], rank=4)


def _add(
    kind: str, name: str, value: tf.Tensor, rank: int | None = None, decay: float = 0.0
) -> None:
    get_current_tower_context().report(kind, full_name(name), value, rank, decay)
