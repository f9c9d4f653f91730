from collections.abc import Callable, Mapping
from typing import Any

from towerpack._core.errors import CallbackError


def adopt(
    cls: type, renamed: Mapping[str, tuple[str, int]], refused: Mapping[str, str] | None = None
) -> None:
    """Let a subclass define hooks under their old names. Reject hooks that would never be called.

    The error is raised when the class is instantiated.

    Args:
        cls: Class that may define hooks under old names.
        renamed: New name of each old hook, and the number of arguments that the old hook takes.
        refused: Advice for each old hook that has no replacement.
    """
    wrong = {old: text for old, text in (refused or {}).items() if getattr(cls, old, None)}
    for old, (new, arguments) in renamed.items():
        owner = next(c for c in cls.__mro__ if old in vars(c) or new in vars(c))
        if old not in vars(owner):
            continue
        new_hook = vars(owner).get(new)
        if new_hook is None:
            setattr(cls, new, _calls(old, arguments))
        elif getattr(new_hook, "__name__", None) != old:
            wrong[old] = f"remove or rename it, because {new} is called instead"
    if wrong:
        cls.__new__ = _refuses(wrong)


def _calls(old: str, arguments: int) -> Callable[..., Any]:
    def hook(self: Any, *args: Any) -> Any:
        return getattr(self, old)(*args[:arguments])

    hook.__name__ = old
    return hook


def _refuses(wrong: Mapping[str, str]) -> Callable[..., Any]:
    def refuse(cls: type, *_: Any, **__: Any) -> Any:
        raise CallbackError(
            f"{cls.__name__} has hooks that are never called: {', '.join(wrong)}.",
            fix="\n".join(f"{old}: {text}" for old, text in wrong.items()),
        )

    return refuse
