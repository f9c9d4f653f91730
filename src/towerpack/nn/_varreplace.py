"""Replacement of variables: layers compute with a function of them, or do not train them."""

from __future__ import annotations

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
_Ways = tuple[Callable[[tf.Variable, Any], Any], ...]
_PLAIN: _Ways = (lambda variable, value: value,)


@contextmanager
def remap_variables(fn: Callable[[tf.Variable], Any]) -> Iterator[None]:
    """Let layers inside compute with `fn(variable)`, while the variable itself is trained.

    It applies to trainable variables of layers by name, Keras layers and
    `tf.compat.v1.get_variable`. Inside, `remap_variables(lambda v: v)` makes an exception. If `fn`
    returns every variable unchanged, a warning lists the variables.

    Args:
        fn: Returns a tensor of the same shape and dtype, or the variable itself. Variables of
            layers by name have their whole name: `'conv0/kernel:0'`.
    """
    around = reading.get() or _PLAIN
    unchanged: list[str] = []
    changed: list[str] = []

    def remap(variable: tf.Variable, _: Any) -> Any:
        try:
            result = fn(variable)
        except AttributeError as error:
            if "Tensor.op is undefined" not in str(error):
                raise
            raise LayerError(
                "remap_variables: variables have no `op` here. To fix: variable.name.split(':')[0]"
            ) from error
        (unchanged if result is variable else changed).append(variable.name)
        value: Any = tf.convert_to_tensor(result)
        if value.dtype != variable.dtype or value.shape != variable.shape:
            # Keras passes on only the first line of this message.
            raise LayerError(
                f"remap_variables: the function made {value.dtype.name} {value.shape} of "
                f"'{variable.name}', which is {variable.dtype.name} {variable.shape}."
            )
        return value

    with _opened((remap, *around[1:])):
        yield
    if not changed and around[0] is _PLAIN[0]:
        what = "was called for no variable: layers inside have no trainable one."
        if unchanged:
            names = ", ".join(dict.fromkeys(unchanged))
            what = f"changed none of {names}. W and b of Tensorpack are called kernel and bias."
        message = f"remap_variables: {getattr(fn, '__qualname__', fn)} {what}"
        warned = get_current_tower_context().store.warned
        if message not in warned:
            _LOG.warning("%s", message)
        warned.add(message)


@contextmanager
def freeze_variables(
    regex: str = ".*", *, stop_gradient: bool = True, skip_collection: bool = False
) -> Iterator[None]:
    """Do not train variables that layers inside use. Moving averages still move.

    If layers inside use no trainable variable that matches, a `LayerError` lists the variables.

    Args:
        regex: For whole names of variables, as in `TrainConfig(frozen=)`.
        stop_gradient: Stop gradients to the variables from what layers inside compute. Other uses
            of the variables, `regularize_cost` included, still train them.
        skip_collection: Train them nowhere, without slots and regularization.
    """
    if not isinstance(regex, str):
        raise LayerError(
            f"freeze_variables got {regex!r} in place of an expression for names.",
            fix=f"write freeze_variables(stop_gradient={regex!r})",
        )
    store = get_current_tower_context().store
    name_of = store.names_by_id()
    used: set[str] = set()
    found: list[str] = []

    def freeze(variable: tf.Variable, value: Any) -> Any:
        name = name_of(variable) or variable.name.split(":")[0]
        used.add(name)
        if not re.fullmatch(regex, name):
            return value
        found.append(name)
        if skip_collection:
            store.skipped[id(variable)] = variable
            collect(variable, [], trainable=False)
        return tf.stop_gradient(value) if stop_gradient else value

    with _opened((*(reading.get() or _PLAIN), freeze)):
        yield
    if not found:
        raise LayerError(
            f"freeze_variables: layers inside use no trainable variable that matches {regex!r}.",
            got=f"variables in use: {', '.join(sorted(used)) or 'none'}",
            fix=similar_names(regex, used),
        )


@contextmanager
def _opened(ways: _Ways) -> Iterator[None]:
    def get(getter: Callable[..., tf.Variable], *args: Any, **kwargs: Any) -> Any:
        # Getters of scopes around this one find nothing to do: `ways` has theirs.
        ways = reading.get()
        with transformed_variables(None):
            return transformed_value(getter(*args, **kwargs), ways)

    get_current_tower_context()
    around = tf.compat.v1.get_variable_scope()
    with transformed_variables(ways), tf.compat.v1.variable_scope(around, custom_getter=get):
        yield
