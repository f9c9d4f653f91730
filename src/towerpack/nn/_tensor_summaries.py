"""Summaries of tensors and variables under the names that they have already."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import tensorflow as tf

from towerpack._core.errors import LayerError
from towerpack.nn._context import get_current_tower_context
from towerpack.nn._regularize import find_matching


def add_moving_summary(*scalars: tf.Tensor, decay: float = 0.95) -> None:
    """`moving_average` of tensors under the names that TensorFlow knows them by.

        add_moving_summary(tf.reduce_mean(wrong, name="train_error"))

    Args:
        *scalars: Tensors of the tower.
        decay: Share of the old average that is kept in each step.

    Raises:
        LayerError: A tensor is no scalar, or has no name: the tower is called eagerly.
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
        name: None for the name that TensorFlow knows it by.

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
    if not get_current_tower_context().is_training:
        return
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
    context = get_current_tower_context()
    for regex, types in summary_lists if context.is_training else ():
        variables = context.store.trainable()
        found = find_matching("add_param_summary", regex, variables, re.fullmatch)
        for name, variable in found.items():
            add_tensor_summary(variable, types, f"param-summary/{name}")


_TYPES: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "scalar": tf.identity,
    "histogram": tf.identity,
    "sparsity": tf.math.zero_fraction,
    "mean": tf.reduce_mean,
    "rms": lambda x: tf.sqrt(tf.reduce_mean(tf.square(x))),
}


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
