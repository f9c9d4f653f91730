"""Objects as if their class had not overridden a method: what `super()` means for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

T = TypeVar("T")


def with_method(target: T, method: Callable[..., Any]) -> T:
    """An object as it were if its class had not overridden a method; what it holds is the same."""
    cls: Any = type(target)
    if getattr(cls, method.__name__) is method:
        return target

    def reduce(self: T, protocol: Any) -> Any:
        return with_method, (_sharing(cls, self), method)  # a class without a name cannot travel

    named = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    own = {method.__name__: method, "__reduce_ex__": reduce}
    metaclass = cast("Any", type(cls))
    return _sharing(metaclass(cls.__name__, (cls,), {**named, **own}), target)


def _sharing(cls: type[T], target: T) -> T:
    made = object.__new__(cls)
    made.__dict__ = target.__dict__
    return made
