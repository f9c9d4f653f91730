import warnings
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T", bound=type)


def with_old_name(old: str, new: str, *, removed_in: str) -> Callable[[T], T]:
    """Return a class decorator that keeps the former name of a method, with a warning.

    Args:
        old, new: Former and present name.
        removed_in: First version without the former name.
    """

    def decorate(cls: T) -> T:
        setattr(cls, old, _OldName(old, new, removed_in))
        return cls

    return decorate


class _OldName:
    def __init__(self, old: str, new: str, removed_in: str) -> None:
        self._old, self._new, self._removed_in = old, new, removed_in

    def __get__(self, instance: object, owner: type) -> Any:
        warnings.warn(
            f"{owner.__name__}.{self._old} is now called {self._new}. "
            f"Towerpack {self._removed_in} removes the former name.",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(owner if instance is None else instance, self._new)
