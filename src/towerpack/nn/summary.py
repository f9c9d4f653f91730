"""Summaries from inside a tower: scalars, histograms and images for the monitors.

Scalars are computed in every step and cost next to nothing. Monitors receive the last value of each
epoch, and moving averages over all steps. Histograms and images are computed only in the first
training tower, for the last step of each epoch.

In a tower, `tf.compat.v1.summary.scalar`, `histogram` and `image` work like these functions.
Trainers refuse other TensorFlow summaries, because they need a writer.
"""

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
    """Report a scalar: its value in the last step of each epoch.

    Args:
        name: Name in the current scope.
        value: Scalar.
    """
    get_current_tower_context().report("scalar", full_name(name), value, rank=0)


def moving_average(name: str, value: tf.Tensor, *, decay: float = 0.95) -> None:
    """Report the bias-corrected moving average of a scalar over the steps.

    Args:
        name: Name in the current scope.
        value: Scalar.
        decay: Weight of the old average in each step.
    """
    context = get_current_tower_context()
    context.report("moving_average", full_name(name), value, rank=0, decay=decay)


def histogram(name: str, value: tf.Tensor) -> None:
    """Report the distribution of a tensor's values.

    Args:
        name: Name in the current scope.
        value: Tensor of any shape.
    """
    get_current_tower_context().report("histogram", full_name(name), value)


def image(name: str, value: tf.Tensor, *, max_images: int = 4) -> None:
    """Report images.

    Float images with values above 1 are divided by their maximum. If values are negative, 0 becomes
    mid-gray (127), and the value of largest magnitude becomes black or white.

    Args:
        name: Name in the current scope.
        value: [batch, height, width, 1, 3 or 4], uint8, or float from 0 to 1.
        max_images: Maximum number of images of a batch.

    Raises:
        LayerError: The dtype is neither uint8 nor float.
    """
    tensor = tf.convert_to_tensor(value)
    if not (tensor.dtype.is_floating or tensor.dtype == tf.uint8):
        raise LayerError(
            f"summary.image('{name}') needs uint8 or floats, got {tensor.dtype.name}.",
            fix="convert the images with tf.cast(x, tf.float32)",
        )
    if tensor.dtype.is_floating:
        tensor = tf.cast(tensor, tf.float32)
    get_current_tower_context().report("image", full_name(name), tensor[:max_images], rank=4)


def add_moving_summary(*scalars: tf.Tensor, decay: float = 0.95) -> None:
    """Report the `moving_average` of tensors under their graph names.

        add_moving_summary(tf.reduce_mean(wrong, name="train_error"))

    Args:
        *scalars: Tensors of the tower.
        decay: Weight of the old average in each step.

    Raises:
        LayerError: A tensor is not a scalar, or has no name because the tower is called eagerly.
    """
    context = get_current_tower_context()
    if context.is_training:
        for tensor in scalars:
            context.report("moving_average", _name_of(tensor), tensor, rank=0, decay=decay)


def add_tensor_summary(x: tf.Tensor, types: Sequence[str], name: str | None = None) -> None:
    """Report statistics of a tensor, each as `NAME-TYPE`.

    Args:
        x: Tensor or variable.
        types: Some of 'scalar', 'histogram', 'sparsity' (fraction of zeros), 'mean' and 'rms'.
        name: Name of the summaries; None for the tensor's name in the graph.

    Raises:
        LayerError: A type is unknown.
    """
    context = get_current_tower_context()
    if not context.is_training:
        return
    name = _name_of(x) if name is None else name
    for kind in [types] if isinstance(types, str) else types:
        if kind not in _TYPES:
            raise LayerError(f"A summary type must be one of {sorted(_TYPES)}, got {kind!r}.")
        value = _TYPES[kind](tf.convert_to_tensor(x))
        reported, rank = ("histogram", None) if kind == "histogram" else ("scalar", 0)
        context.report(reported, f"{name}-{kind}", value, rank=rank)


def add_activation_summary(
    x: tf.Tensor, types: Sequence[str] | None = None, name: str | None = None
) -> None:
    """Call `add_tensor_summary` with `activation-summary/` before the name.

    Args:
        x: Tensor, for example a layer's output.
        types: Types of `add_tensor_summary`; None for 'sparsity', 'rms' and 'histogram'.
        name: Name of the summaries; None for the tensor's name in the graph.
    """
    if get_current_tower_context().is_training:
        name = _name_of(x) if name is None else name
        types = types or ["sparsity", "rms", "histogram"]
        add_tensor_summary(x, types, f"activation-summary/{name}")


def add_param_summary(*summary_lists: tuple[str, Sequence[str]]) -> None:
    """Report statistics of trainable variables as `param-summary/NAME-TYPE`.

        add_param_summary((".*/kernel", ["histogram", "rms"]), (".*/gamma", ["mean"]))

    Call this function after the layers that create the variables.

    Args:
        *summary_lists: Pairs of a regular expression for the whole name and types of
            `add_tensor_summary`.

    Raises:
        LayerError: An expression matches no variable, or a type is unknown.
    """
    context = get_current_tower_context()
    for regex, types in summary_lists if context.is_training else ():
        variables = context.store.trainable()
        matches = find_matching("add_param_summary", regex, variables, re.fullmatch)
        for name, variable in matches.items():
            add_tensor_summary(variable, types, f"param-summary/{name}")


def _name_of(tensor: tf.Tensor) -> str:
    if isinstance(tensor, tf.Variable):
        return tensor.name.split(":")[0]
    if not isinstance(tensor, tf.Tensor) or hasattr(tensor, "numpy"):
        raise LayerError(
            f"A tensor to report must have a name in a graph, got {tensor!r}.",
            fix="name the tensor, as in tf.reduce_mean(x, name='accuracy'), or call "
            "summary.moving_average('accuracy', x)",
        )
    return get_current_tower_context().name_of(tensor)
