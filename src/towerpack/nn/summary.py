"""Scalars, histograms and images from inside a tower, for the monitors.

Scalars are read at every step and cost next to nothing; monitors receive the last value of each
epoch, and moving averages over all steps. Histograms and images are computed in the first training
tower only, for the last step of each epoch.

`tf.compat.v1.summary.scalar`, `histogram` and `image` in a tower work like these functions. Other
summaries of TensorFlow need a writer: a trainer refuses them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import tensorflow as tf

from towerpack._core.errors import LayerError
from towerpack.nn._context import get_current_tower_context
from towerpack.nn._regularize import find_matching
from towerpack.nn.scopes import full_name

__all__ = [
    "add_activation_summary", "add_moving_summary", "add_param_summary", "add_tensor_summary",
    "histogram", "image", "moving_average", "scalar"
]  # fmt: skip

_TYPES: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "scalar": tf.identity,
    "histogram": tf.identity,
    "sparsity": tf.math.zero_fraction,
    "mean": tf.reduce_mean,
    "rms": lambda x: tf.sqrt(tf.reduce_mean(tf.square(x))),
}


def scalar(name: str, value: tf.Tensor) -> None:
    """Report a scalar: its value in the last step of each epoch."""
    get_current_tower_context().report("scalar", full_name(name), value, rank=0)


def moving_average(name: str, value: tf.Tensor, *, decay: float = 0.95) -> None:
    """Report the moving average of a scalar over the steps, corrected for its start at zero.

    Args:
        name: Put under the current scope.
        value: Scalar.
        decay: Share of the old average that is kept in each step.
    """
    context = get_current_tower_context()
    context.report("moving_average", full_name(name), value, rank=0, decay=decay)


def histogram(name: str, value: tf.Tensor) -> None:
    """Report the distribution of a tensor's values."""
    get_current_tower_context().report("histogram", full_name(name), value)


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
    get_current_tower_context().report("image", full_name(name), tensor[:max_images], rank=4)


def add_moving_summary(*scalars: tf.Tensor, decay: float = 0.95) -> None:
    """Report the `moving_average` of tensors under their names in the graph.

        add_moving_summary(tf.reduce_mean(wrong, name="train_error"))

    Args:
        *scalars: Tensors of the tower.
        decay: Share of the old average that is kept in each step.

    Raises:
        LayerError: A tensor is not a scalar, or has no name because the tower is called eagerly.
    """
    context = get_current_tower_context()
    if context.is_training:
        for tensor in scalars:
            context.report("moving_average", _name_of(tensor), tensor, rank=0, decay=decay)


def add_tensor_summary(x: tf.Tensor, types: Sequence[str], name: str | None = None) -> None:
    """Report a tensor in several ways, each as `NAME-TYPE`.

    Args:
        x: Any tensor or variable.
        types: Of 'scalar', 'histogram', 'sparsity' (the share of zeros), 'mean' and 'rms'.
        name: None for the tensor's name in the graph.

    Raises:
        LayerError: An unknown type.
    """
    context = get_current_tower_context()
    if not context.is_training:
        return
    name = _name_of(x) if name is None else name
    for kind in [types] if isinstance(types, str) else types:
        if kind not in _TYPES:
            raise LayerError(
                f"There is no summary of type {kind!r}.", expected=f"one of {sorted(_TYPES)}"
            )
        value = _TYPES[kind](tf.convert_to_tensor(x))
        reported, rank = ("histogram", None) if kind == "histogram" else ("scalar", 0)
        context.report(reported, f"{name}-{kind}", value, rank=rank)


def add_activation_summary(
    x: tf.Tensor, types: Sequence[str] | None = None, name: str | None = None
) -> None:
    """`add_tensor_summary` as `'activation-summary/…'`, by default 'sparsity', 'rms', 'histogram'.

    Args:
        x: For example a layer's output.
        types: As for `add_tensor_summary`.
        name: As for `add_tensor_summary`.
    """
    if get_current_tower_context().is_training:
        name = _name_of(x) if name is None else name
        types = types or ["sparsity", "rms", "histogram"]
        add_tensor_summary(x, types, f"activation-summary/{name}")


def add_param_summary(*summary_lists: tuple[str, Sequence[str]]) -> None:
    """Report trainable variables, as `'param-summary/NAME-TYPE'`.

        add_param_summary((".*/kernel", ["histogram", "rms"]), (".*/gamma", ["mean"]))

    Call it after the layers whose variables it reports.

    Args:
        *summary_lists: A regular expression for the whole name, and types as in
            `add_tensor_summary`.

    Raises:
        LayerError: An expression that matches no variable, or an unknown type.
    """
    context = get_current_tower_context()
    for regex, types in summary_lists if context.is_training else ():
        variables = context.store.trainable()
        found = find_matching("add_param_summary", regex, variables, re.fullmatch)
        for name, variable in found.items():
            add_tensor_summary(variable, types, f"param-summary/{name}")


def _name_of(tensor: tf.Tensor) -> str:
    if isinstance(tensor, tf.Variable):
        return tensor.name.split(":")[0]
    if not isinstance(tensor, tf.Tensor) or hasattr(tensor, "numpy"):
        raise LayerError(
            f"{tensor!r} has no name to report it by.",
            expected="a tensor of a graph: tf.reduce_mean(x, name='accuracy')",
            fix="summary.moving_average('accuracy', x)",
        )
    return get_current_tower_context().name_of(tensor)
