"""A callback out of functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from towerpack._core.errors import ConfigError
from towerpack._core.naming import did_you_mean
from towerpack.callbacks._base import Callback

_STEP: Final = ("before_step", "after_step", "trigger_step", "after_call")
_HOOKS: Final = (
    "setup",
    "before_train",
    "before_epoch",
    *_STEP,
    "after_epoch",
    "trigger",
    "after_train",
)


def CallbackFactory(**hooks: Callable[..., Any]) -> Callback:  # noqa: N802 - the known name
    """A callback whose hooks are functions.

        CallbackFactory(trigger=lambda self: print(self.epoch_num, self.global_step))

    Args:
        hooks: By the name of a method of `Callback`, what it does. Functions take the callback
            first, then the hook's own arguments: `setup` takes the trainer, `after_step` outputs.

    Raises:
        ConfigError: There is no such hook, or none is given.
    """
    for name in hooks:
        if name not in _HOOKS:
            raise ConfigError(
                f"CallbackFactory: callbacks have no hook '{name}'.", fix=did_you_mean(name, _HOOKS)
            )
    if not hooks:
        raise ConfigError("CallbackFactory() would do nothing.", expected="trigger=, setup=, …")
    return type("CallbackFactory", (Callback,), {n: _method(f) for n, f in hooks.items()})()


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    # A builtin or a bound method in a class's body would not be given the callback.
    def method(self: Callback, *given: Any) -> Any:
        return function(self, *given)

    return method
