"""Classes of the user's and ours; objects as if their class had not overridden a method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

T = TypeVar("T")

_LIBRARY = __name__.partition(".")[0]


def is_ours(cls: type[Any]) -> bool:
    """Whether a class is the library's, and not the user's."""
    return cls.__module__.partition(".")[0] == _LIBRARY


def alike(cls: Any, methods: dict[str, Any]) -> Any:
    """A subclass with other methods, and with the same name. It cannot be found by that."""
    names = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    metaclass = cast("Any", type(cls))  # often ABCMeta
    return metaclass(cls.__name__, (cls,), {**names, **methods})


def with_method(target: T, method: Callable[..., Any]) -> T:
    """An object as it were if its class had not overridden a method; what it holds is the same."""
    cls: Any = type(target)
    if getattr(cls, method.__name__) is method:
        return target

    def reduce(self: T, protocol: Any) -> Any:
        return with_method, (_sharing(cls, self), method)  # a class without a name cannot travel

    return _sharing(alike(cls, {method.__name__: method, "__reduce_ex__": reduce}), target)


def _sharing(cls: type[T], target: T) -> T:
    made = object.__new__(cls)
    made.__dict__ = target.__dict__
    return made
