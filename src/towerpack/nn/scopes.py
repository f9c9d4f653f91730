"""Name scopes of a tower, based on TensorFlow's variable scopes."""

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
    """Context manager that puts `name/` before the names of layers, variables and outputs.

    The scope also opens `tf.compat.v1.variable_scope(name)`, for `tf.compat.v1.get_variable`.

    Args:
        name: One part (`'block1'`) or several (`'group0/block1'`).

    Raises:
        LayerError: The name is empty or has an empty part.
    """
    if not (isinstance(name, str) and all(name.split("/"))):
        raise LayerError(f"A scope needs a non-empty name such as 'block1', got {name!r}.")
    with tf.compat.v1.variable_scope(name):
        yield


@contextmanager
def reuse_scope() -> Iterator[None]:
    """Context manager in which a layer shares the weights of the earlier layer of its name.

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
    """Open TensorFlow's name scope `name` again, instead of `name_1`.

    Args:
        name: Name of the scope.
        top_level: Whether to leave the current name scopes.
    """
    around = "" if top_level else tf.get_current_name_scope()
    with tf.name_scope(f"{around}/{name}/" if around else f"{name}/"):
        yield


def under_name_scope(name_scope: str | None = None) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that runs a function in TensorFlow's name scope `name_scope`.

    A call may choose another scope, which is opened again if it exists: `f(x, name_scope='s')`.

    Args:
        name_scope: Name of the scope; None for the name of the function.
    """

    def decorate(func: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(func)
        def call(*args: Any, **kwargs: Any) -> Any:
            chosen: str | None = kwargs.pop("name_scope", None)
            with (
                cached_name_scope(chosen, top_level=False)
                if chosen
                else tf.name_scope(name_scope or func.__name__)
            ):
                return func(*args, **kwargs)

        return call

    return decorate


def under_variable_scope(name: str | None = None) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that runs a function in `scope(name)`.

    Args:
        name: Name of the scope; None for the name of the function.
    """
    return lambda func: scope(name or func.__name__)(func)


def is_reusing() -> bool:
    """Return whether `reuse_scope` or `variable_scope(…, reuse=True)` is open."""
    # TensorFlow sets AUTO_REUSE in eager code, so AUTO_REUSE does not count.
    return _reusing.get() or tf.compat.v1.get_variable_scope().reuse is True


def full_name(name: str = "") -> str:
    """Return the path of the open scopes, also TensorFlow's, followed by `name`."""
    return joined(tf.compat.v1.get_variable_scope().name, name)


def joined(*parts: str) -> str:
    return "/".join(part for part in parts if part)
