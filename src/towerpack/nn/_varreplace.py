"""Scopes in which layers use functions of their variables, or do not train the variables."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from towerpack._core.errors import LayerError
from towerpack._core.logs import get_logger
from towerpack._keras.adapter import reading, transformed_value, transformed_variables
from towerpack.nn._context import get_current_tower_context
from towerpack.nn._regularize import similar_names
from towerpack.nn.compat_collections import collect

_LOG = get_logger(__name__)
# Functions applied when a variable is read: remap_variables first, then each freeze_variables.
_Transforms = tuple[Callable[[tf.Variable, Any], Any], ...]
_IDENTITY: _Transforms = (lambda variable, value: value,)


@contextmanager
def remap_variables(fn: Callable[[tf.Variable], Any]) -> Iterator[None]:
    """Context manager in which layers use `fn(variable)`; the variable itself is trained.

    This applies to trainable variables of named layers, Keras layers and
    `tf.compat.v1.get_variable`. An inner `remap_variables(lambda v: v)` makes an exception. If `fn`
    returns every variable unchanged, a warning lists the variables.

    Args:
        fn: Returns a tensor of the same shape and dtype, or the variable itself. Variables of
            named layers have their whole name: `'conv0/kernel:0'`.

    Raises:
        LayerError: `fn` returns another shape or dtype, or uses `variable.op`.
    """
    around = reading.get() or _IDENTITY
    unchanged: list[str] = []
    changed: list[str] = []

    def remap(variable: tf.Variable, _: Any) -> Any:
        try:
            result = fn(variable)
        except AttributeError as error:
            if "Tensor.op is undefined" not in str(error):
                raise
            raise LayerError(
                "remap_variables: the function must not use variable.op. To fix: use "
                "variable.name.split(':')[0]"
            ) from error
        (unchanged if result is variable else changed).append(variable.name)
        value: Any = tf.convert_to_tensor(result)
        if value.dtype != variable.dtype or value.shape != variable.shape:
            # Keras passes on only the first line of this message.
            raise LayerError(
                f"remap_variables: the function must return {variable.dtype.name} "
                f"{variable.shape} for '{variable.name}', got {value.dtype.name} {value.shape}."
            )
        return value

    with _opened((remap, *around[1:])):
        yield
    if not changed and around[0] is _IDENTITY[0]:
        outcome = "was called for no variable: layers inside have no trainable variable."
        if unchanged:
            names = ", ".join(dict.fromkeys(unchanged))
            outcome = f"changed none of {names}. Tensorpack's W and b are called kernel and bias."
        message = f"remap_variables: {getattr(fn, '__qualname__', fn)} {outcome}"
        warned = get_current_tower_context().store.warned
        if message not in warned:
            _LOG.warning("%s", message)
        warned.add(message)


@contextmanager
def freeze_variables(
    regex: str = ".*", *, stop_gradient: bool = True, skip_collection: bool = False
) -> Iterator[None]:
    """Context manager in which layers do not train matching variables. Averages still change.

    Args:
        regex: Regular expression for whole variable names, as in `TrainConfig(frozen=…)`.
        stop_gradient: Stop gradients from the layers to the variables. Other uses of the
            variables, such as `regularize_cost`, still train them.
        skip_collection: Do not train the variables anywhere, and do not regularize them.

    Raises:
        LayerError: The layers use no matching trainable variable, or `regex` is not a string.
    """
    if not isinstance(regex, str):
        raise LayerError(
            f"freeze_variables: regex must be a string, got {regex!r}.",
            fix=f"pass the argument by name: freeze_variables(stop_gradient={regex!r})",
        )
    store = get_current_tower_context().store
    name_of = store.names_by_id()
    used: set[str] = set()
    matches: list[str] = []

    def freeze(variable: tf.Variable, value: Any) -> Any:
        name = name_of(variable) or variable.name.split(":")[0]
        used.add(name)
        if not re.fullmatch(regex, name):
            return value
        matches.append(name)
        if skip_collection:
            store.skipped[id(variable)] = variable
            collect(variable, [], trainable=False)
        return tf.stop_gradient(value) if stop_gradient else value

    with _opened((*(reading.get() or _IDENTITY), freeze)):
        yield
    if not matches:
        raise LayerError(
            f"freeze_variables: {regex!r} must match a trainable variable of a layer in the block.",
            got=f"used variables: {', '.join(sorted(used)) or 'none'}",
            fix=similar_names(regex, used),
        )


@contextmanager
def _opened(transforms: _Transforms) -> Iterator[None]:
    def get(getter: Callable[..., tf.Variable], *args: Any, **kwargs: Any) -> Any:
        # The innermost getter applies all transforms, so the outer ones must not.
        transforms = reading.get()
        with transformed_variables(None):
            return transformed_value(getter(*args, **kwargs), transforms)

    get_current_tower_context()
    around = tf.compat.v1.get_variable_scope()
    with transformed_variables(transforms), tf.compat.v1.variable_scope(around, custom_getter=get):
        yield
