"""Name scopes of a tower: values in context variables, so that exceptions leave none open."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from towerpack._core.errors import LayerError

# The path, and the `tf.compat.v1.variable_scope` at the time when it was entered: what has been
# opened of those since then comes after it.
_path: ContextVar[tuple[tuple[str, ...], str]] = ContextVar("scope", default=((), ""))
_reusing: ContextVar[bool] = ContextVar("reuse_scope", default=False)


@contextmanager
def scope(name: str) -> Iterator[None]:
    """Put `name/` before the names of all layers, variables and outputs made inside.

    Args:
        name: One part or several (`'block1'`, `'group0/block1'`).

    Raises:
        LayerError: The name is empty or has an empty part.
    """
    parts = tuple(name.split("/")) if isinstance(name, str) else ()
    if not parts or not all(parts):
        raise LayerError(
            f"{name!r} is not a scope name.", expected="a non-empty name such as 'block1'"
        )
    token = _path.set(((*_parts(), *parts), compat_scope()))
    try:
        # TensorFlow's scope is for reading graphs and profiles; nothing of ours depends on it.
        with tf.name_scope("/".join(parts)):
            yield
    finally:
        _path.reset(token)


@contextmanager
def reuse_scope() -> Iterator[None]:
    """Layers inside may take the name of an earlier layer of this call and share its weights."""
    token = _reusing.set(True)
    try:
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
    """Decorate a function: it runs in `scope(name)`, else in the scope of its own name."""
    return lambda func: scope(name or func.__name__)(func)


def is_reusing() -> bool:
    """True inside `reuse_scope`, or in a `tf.compat.v1.variable_scope(…, reuse=True)`."""
    # AUTO_REUSE is what TensorFlow sets wherever it has run eagerly: nobody need have asked for it.
    return _reusing.get() or tf.compat.v1.get_variable_scope().reuse is True


def full_name(name: str = "") -> str:
    """The current scope's path, with `name` appended if given."""
    return "/".join((*_parts(), name) if name else _parts())


def compat_scope() -> str:
    """The path of the `tf.compat.v1.variable_scope`s that are open, `''` without any."""
    return tf.compat.v1.get_variable_scope().name


def _parts() -> tuple[str, ...]:
    ours, before = _path.get()
    now = compat_scope()
    if now == before:
        return ours
    opened = tuple(now.split("/"))
    entered = tuple(before.split("/")) if before else ()
    if opened[: len(entered)] == entered:
        return (*ours, *opened[len(entered) :])
    return opened  # A scope object that was kept goes back to its own place.
