"""Numbers and pictures from inside a tower, for the monitors.

They are collected in the first training tower only. Scalars are taken at every step and cost next
to nothing; monitors get the last one of each epoch, and moving averages over all steps. Histograms
and images are computed for the last step of each epoch alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import tensorflow as tf

from towerpack._core.errors import LayerError
from towerpack.nn._context import Summary, get_current_tower_context
from towerpack.nn._regularize import matching_variables
from towerpack.nn._scope import full_name


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
    if not 0 <= decay < 1:
        raise LayerError(f"moving_average('{name}'): decay {decay} is not in [0, 1).")
    _add("moving_average", name, value, rank=0, decay=decay)


def histogram(name: str, value: tf.Tensor) -> None:
    """Report the distribution of a tensor's values."""
    _add("histogram", name, value)


def image(name: str, value: tf.Tensor, *, max_images: int = 4) -> None:
    """Report pictures: [batch, height, width, 1, 3 or 4], uint8, or float from 0 to 1."""
    _add("image", name, value[:max_images], rank=4)


def _add(
    kind: str, name: str, value: tf.Tensor, rank: int | None = None, decay: float = 0.0
) -> None:
    _add_named(kind, full_name(name), value, rank, decay)


def _add_named(
    kind: str, path: str, value: tf.Tensor, rank: int | None = None, decay: float = 0.0
) -> None:
    context = get_current_tower_context()
    if not context.is_main_training_tower:
        return
    tensor = context.own(f"summary.{kind}('{path}')", value)
    if rank is not None and tensor.shape.rank != rank:
        raise LayerError(
            f"summary.{kind}('{path}') got a value of the wrong rank.",
            got=f"shape {tensor.shape}",
            expected=f"rank {rank}",
        )
    if any(known.name == path for known in context.summaries):
        raise LayerError(f"A summary '{path}' exists already in this tower.")
    context.summaries.append(Summary(kind, path, tensor, decay))


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


def add_moving_summary(*scalars: tf.Tensor, decay: float = 0.95) -> None:
    """`moving_average` of tensors under the names that TensorFlow knows them by.

        add_moving_summary(tf.reduce_mean(wrong, name="train_error"))

    Args:
        *scalars: Tensors of the tower.
        decay: Share of the old average that is kept in each step.

    Raises:
        LayerError: A tensor is no scalar, or has no name: the tower is called eagerly.
    """
    for tensor in scalars:
        _add_named("moving_average", _name_of(tensor), tensor, rank=0, decay=decay)


def add_tensor_summary(x: tf.Tensor, types: Sequence[str], name: str | None = None) -> None:
    """Report a tensor in several ways, each as `NAME-TYPE`.

    Args:
        x: Any tensor or variable.
        types: Of 'scalar', 'histogram', 'sparsity' (the share of zeros), 'mean' and 'rms'.
        name: None for the name that TensorFlow knows it by.

    Raises:
        LayerError: An unknown type.
    """
    name = _name_of(x) if name is None else name
    for kind in [types] if isinstance(types, str) else types:
        if kind not in _TYPES:
            raise LayerError(
                f"There is no summary of type {kind!r}.", expected=f"one of {sorted(_TYPES)}"
            )
        value = _TYPES[kind](tf.convert_to_tensor(x))
        if kind == "histogram":
            _add_named("histogram", f"{name}-{kind}", value)
        else:
            _add_named("scalar", f"{name}-{kind}", value, rank=0)


def add_activation_summary(
    x: tf.Tensor, types: Sequence[str] | None = None, name: str | None = None
) -> None:
    """`add_tensor_summary` as `'activation-summary/…'`, by default 'sparsity', 'rms', 'histogram'.

    Args:
        x: For example a layer's output.
        types: As for `add_tensor_summary`.
        name: As for `add_tensor_summary`.
    """
    name = _name_of(x) if name is None else name
    add_tensor_summary(x, types or ["sparsity", "rms", "histogram"], f"activation-summary/{name}")


def add_param_summary(*summary_lists: tuple[str, Sequence[str]]) -> None:
    """Report trainable variables, as `'param-summary/NAME-TYPE'`.

        add_param_summary((".*/kernel", ["histogram", "rms"]), (".*/gamma", ["mean"]))

    Call it after the layers that it is about.

    Args:
        *summary_lists: A regular expression for the whole name, and types as in
            `add_tensor_summary`.

    Raises:
        LayerError: An expression that matches no variable, or an unknown type.
    """
    if not get_current_tower_context().is_main_training_tower:
        return
    for regex, types in summary_lists:
        found = matching_variables("add_param_summary", regex, re.fullmatch)
        for name, variable in found.items():
            add_tensor_summary(variable, types, f"param-summary/{name}")


_TYPES: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "scalar": tf.identity,
    "histogram": tf.identity,
    "sparsity": tf.math.zero_fraction,
    "mean": tf.reduce_mean,
    "rms": lambda x: tf.sqrt(tf.reduce_mean(tf.square(x))),
}
