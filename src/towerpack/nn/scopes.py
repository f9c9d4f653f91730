"""Name scopes of a tower: TensorFlow's variable scopes, which `get_variable` also uses."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from towerpack._core.errors import LayerError

_reusing: ContextVar[bool] = ContextVar("reuse_scope", default=False)


@contextmanager
def scope(name: str) -> Iterator[None]:
    """Put `name/` before the names of all layers, variables and outputs made inside.

    It also opens the `tf.compat.v1.variable_scope` of this name, for `tf.compat.v1.get_variable`.

    Args:
        name: One part or several (`'block1'`, `'group0/block1'`).

    Raises:
        LayerError: The name is empty or has an empty part.
    """
    if not (isinstance(name, str) and all(name.split("/"))):
        raise LayerError(
            f"{name!r} is not a scope name.", expected="a non-empty name such as 'block1'"
        )
    with tf.compat.v1.variable_scope(name):
        yield


@contextmanager
def reuse_scope() -> Iterator[None]:
    """Let layers inside share the weights of an earlier layer of this call, by its name.

    `tf.compat.v1.get_variable` shares variables in the same way.
    """
    token = _reusing.set(True)
    around = tf.compat.v1.get_variable_scope()
    try:
        with tf.compat.v1.variable_scope(around, reuse=True, auxiliary_name_scope=False):
            yield
    finally:
        _reusing.reset(token)


@contextmanager
def cached_name_scope(name: str, top_level: bool = True) -> Iterator[None]:
    """Open TensorFlow's name scope `name` again, not `name_1`; `top_level`: not below others."""
    around = "" if top_level else tf.get_current_name_scope()
    with tf.name_scope(f"{around}/{name}/" if around else f"{name}/"):
        yield


def under_name_scope(name_scope: str | None = None) -> Callable[[Callable[..., Any]], Any]:
    """Decorate a function: run it in TensorFlow's name scope `name_scope`, or one of its own name.

    A call may choose another scope, which is opened again if it exists: `f(x, name_scope='s')`.
    """

    def decorate(func: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(func)
        def call(*args: Any, **kwargs: Any) -> Any:
            own: str | None = kwargs.pop("name_scope", None)
            with (
                cached_name_scope(own, top_level=False)
                if own
                else tf.name_scope(name_scope or func.__name__)
            ):
                return func(*args, **kwargs)

        return call

    return decorate


def under_variable_scope(name: str | None = None) -> Callable[[Callable[..., Any]], Any]:
    """Decorate a function: run it in `scope(name)`, or in the scope of its own name."""
    return lambda func: scope(name or func.__name__)(func)


def is_reusing() -> bool:
    """Return whether this is in a `reuse_scope`, or a `variable_scope(…, reuse=True)`."""
    # AUTO_REUSE is set by TensorFlow wherever it runs eagerly: the user may not have asked for it.
    return _reusing.get() or tf.compat.v1.get_variable_scope().reuse is True


def full_name(name: str = "") -> str:
    """Return the path of the open scopes (TensorFlow's included), with `name` appended if given."""
    return joined(tf.compat.v1.get_variable_scope().name, name)


def joined(*parts: str) -> str:
    """Join the parts of a name that are not empty."""
    return "/".join(part for part in parts if part)
