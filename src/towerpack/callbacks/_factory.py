"""A callback out of functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from towerpack._core.errors import ConfigError
from towerpack._core.naming import did_you_mean
from towerpack.callbacks._base import Callback

_HOOKS: Final = (
    *("setup", "before_train", "before_epoch", "before_step", "after_step", "trigger_step"),
    *("after_call", "after_epoch", "trigger", "after_train"),
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


def RunOp(  # noqa: N802 - the known name
    op: Callable[[], Any],
    run_before: bool = True,
    run_as_trigger: bool = True,
    run_step: bool = False,
) -> Callback:
    """A callback that calls a function, such as one that assigns to variables.

        RunOp(lambda: counter.assign_add(1))

    Args:
        op: The function; what it returns is left alone.
        run_before: Call it before training.
        run_as_trigger: And after each epoch.
        run_step: And after each step.

    Raises:
        ConfigError: It is never to be called.
    """
    wanted = {"before_train": run_before, "trigger": run_as_trigger, "trigger_step": run_step}
    return CallbackFactory(**{hook: lambda _: op() for hook, is_ in wanted.items() if is_})


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    # A builtin or a bound method in a class's body would not be given the callback.
    def method(self: Callback, *given: Any) -> Any:
        return function(self, *given)

    return method
