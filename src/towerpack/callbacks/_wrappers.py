"""Callbacks that wrap other callbacks, and callbacks made of functions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partialmethod
from typing import Any, Final

from towerpack._core.errors import CallbackError, ConfigError
from towerpack._core.naming import did_you_mean
from towerpack.callbacks._base import Callback, check_callback
from towerpack.callbacks._host import TrainerHost
from towerpack.dataflow.arguments import integer_of


def _forward(hook: str) -> Any:
    def method(self: ProxyCallback, *args: Any) -> None:
        if self.enabled(hook):
            getattr(self.callback, hook)(*args)

    method.__name__ = hook
    return method


class ProxyCallback(Callback):
    """Base class of wrappers, which forward every hook and the state to another callback.

    A run can be resumed with or without the wrapper.

    Args:
        callback: The callback to wrap.
    """

    def __init__(self, callback: Callback) -> None:
        self.callback = check_callback(callback)
        self._copy_attributes()

    def _copy_attributes(self) -> None:
        self.needs = self.callback.needs
        self.acts_between_steps = self.callback.acts_between_steps
        self.chief_only = self.callback.chief_only

    def enabled(self, hook: str) -> bool:
        """Return whether a hook is forwarded now. `setup` always is.

        Args:
            hook: Name of a method, such as `'after_step'`.
        """
        return True

    def setup(self, trainer: TrainerHost) -> None:
        self.callback.trainer = trainer
        self.callback.setup(trainer)
        self._copy_attributes()

    before_train = _forward("before_train")
    before_epoch = _forward("before_epoch")
    before_step = _forward("before_step")
    after_step = _forward("after_step")
    trigger_step = _forward("trigger_step")
    after_call = _forward("after_call")
    after_epoch = _forward("after_epoch")
    trigger_epoch = _forward("trigger_epoch")
    trigger = _forward("trigger")
    after_train = _forward("after_train")

    def produces(self) -> Sequence[str]:
        return self.callback.produces()

    @property
    def fetches(self) -> Sequence[str]:
        return self.callback.fetches

    def sets(self) -> Mapping[str, Collection[int] | None]:
        return self.callback.sets()

    def acts_in(self, hook: str) -> bool:
        return self.callback.acts_in(hook)

    def next_stop(self, step: int) -> int | None:
        return self.callback.next_stop(step)

    def state(self) -> Any:
        return self.callback.state()

    def restore(self, state: Any) -> None:
        self.callback.restore(state)

    def __repr__(self) -> str:
        # Key of the state in checkpoints: the same with and without the wrapper.
        return repr(self.callback)


class EnableCallbackIf(ProxyCallback):
    """Let a callback act only while a condition holds.

    The hooks `setup`, `before_train` and `after_train` are always forwarded.

    Args:
        callback: The callback to wrap.
        pred: Takes this object, with `epoch_num`, `global_step`, `local_step` and `trainer`.
            Returns whether the callback is to act in the current hook.
    """

    def __init__(self, callback: Callback, pred: Callable[[EnableCallbackIf], bool]) -> None:
        super().__init__(callback)
        self._pred = pred

    def sets(self) -> Mapping[str, Collection[int] | None]:
        return {}  # not known in advance: the condition decides

    def enabled(self, hook: str) -> bool:
        return hook in ("before_train", "after_train") or bool(self._pred(self))


class PeriodicTrigger(ProxyCallback):
    """Trigger a callback every k steps or epochs *instead of* after each epoch.

        PeriodicTrigger(ModelSaver(), every_k_steps=1000)

    Args:
        callback: A callback with a `trigger` method.
        every_k_steps: Trigger after each global step that is a multiple of this number.
        every_k_epochs: Trigger after each epoch whose number is a multiple of this number. If both
            periods end at the same step, the callback is triggered once.
        before_train: Also trigger before the first step of each start of the run.

    Raises:
        ConfigError: No period is passed, or one is not positive.
        CallbackError: The callback has no `trigger`.
    """

    def __init__(
        self,
        callback: Callback,
        every_k_steps: int | None = None,
        every_k_epochs: int | None = None,
        before_train: bool = False,
    ) -> None:
        owner = f"PeriodicTrigger({callback!r})"
        if every_k_steps is None and every_k_epochs is None and not before_train:
            raise ConfigError(
                f"{owner} would never trigger the callback.",
                fix="pass every_k_steps, every_k_epochs or before_train",
            )
        self._every_k_steps = _period(owner, "every_k_steps", every_k_steps)
        self._every_k_epochs = _period(owner, "every_k_epochs", every_k_epochs)
        super().__init__(callback)
        if not callback.acts_in("trigger"):
            raise CallbackError(f"{owner} needs a callback that overrides trigger().")
        self._before_train = before_train
        self._last_step: int | None = None

    def before_train(self) -> None:
        self.callback.before_train()
        if self._before_train:
            self.trigger()

    def trigger_step(self) -> None:
        self.callback.trigger_step()
        if self._every_k_steps and self.trainer.global_step % self._every_k_steps == 0:
            self.trigger()

    def trigger_epoch(self) -> None:
        due = bool(self._every_k_epochs) and self.trainer.epoch % self._every_k_epochs == 0
        if self.trainer.fast_dev_run:
            due = bool(self._every_k_steps or self._every_k_epochs)
        if due and self._last_step != self.trainer.global_step:
            self.trigger()

    def trigger(self) -> None:
        self._last_step = self.trainer.global_step
        self.callback.trigger()

    def acts_in(self, hook: str) -> bool:
        if hook == "trigger_step" and self._every_k_steps is not None:
            return True
        if hook == "trigger_epoch":
            return self._every_k_epochs is not None
        return (hook == "before_train" and self._before_train) or self.callback.acts_in(hook)

    def next_stop(self, step: int) -> int | None:
        return _nearer(self.callback.next_stop(step), self._every_k_steps, step)


class PeriodicCallback(ProxyCallback):
    """Forward hooks to a callback only every k steps or epochs.

    In contrast to `PeriodicTrigger`, the callback is not triggered at additional times.

    Args:
        callback: The callback to wrap.
        every_k_steps: Forward the hooks of steps whose number is a multiple of this number, and of
            epochs that end with such a step.
        every_k_epochs: Forward all hooks of epochs whose number is a multiple of this number, and
            of the last epoch.

    Raises:
        ConfigError: No period is passed, or one is not positive.
    """

    def __init__(
        self,
        callback: Callback,
        every_k_steps: int | None = None,
        every_k_epochs: int | None = None,
    ) -> None:
        super().__init__(callback)
        owner = f"PeriodicCallback({callback!r})"
        self._every_k_steps = _period(owner, "every_k_steps", every_k_steps)
        self._every_k_epochs = _period(owner, "every_k_epochs", every_k_epochs)
        if not (self._every_k_steps or self._every_k_epochs):
            raise ConfigError(
                f"{owner} must have every_k_steps or every_k_epochs, got neither.",
                fix="pass every_k_steps=100, for example",
            )

    def enabled(self, hook: str) -> bool:
        host = self.trainer
        # `before_step` is called before the step is counted.
        step = host.global_step + (hook == "before_step")
        in_step = self._every_k_steps and step % self._every_k_steps == 0
        in_epoch = self._every_k_epochs and (
            host.epoch % self._every_k_epochs == 0 or host.epoch == host.max_epoch
        )
        return bool(hook in ("before_train", "after_train") or in_step or in_epoch)

    def next_stop(self, step: int) -> int | None:
        return _nearer(self.callback.next_stop(step), self._every_k_steps, step)


def _period(owner: str, name: str, k: Any) -> int | None:
    return None if k is None else integer_of(k, f"{owner}: {name}", least=1)


def _nearer(stop: int | None, period: int | None, step: int) -> int | None:
    if period is None:
        return stop
    end = (step // period + 1) * period
    return end if stop is None else min(end, stop)


_HOOKS: Final = (
    *("setup", "before_train", "before_epoch", "before_step", "after_step", "trigger_step"),
    *("after_call", "after_epoch", "trigger", "after_train"),
)


def CallbackFactory(**hooks: Callable[..., Any]) -> Callback:  # noqa: N802 - the known name
    """Create a callback from functions.

        CallbackFactory(trigger=lambda self: print(self.epoch_num, self.global_step))

    Args:
        **hooks: Functions by the name of a hook of `Callback`. A function takes the callback, then
            the arguments of the hook: `setup` takes the trainer, `after_step` the outputs.

    Raises:
        ConfigError: A hook is unknown, or none is passed.
    """
    for name in hooks:
        if name not in _HOOKS:
            raise ConfigError(
                f"CallbackFactory: callbacks have no hook '{name}'. {did_you_mean(name, _HOOKS)}"
            )
    if not hooks:
        raise ConfigError("CallbackFactory needs a hook.", fix="pass trigger=, setup= or others")
    methods = {name: partialmethod(function) for name, function in hooks.items()}
    callback: Any = type("CallbackFactory", (Callback,), methods)()
    callback._arguments = (), hooks
    return callback


def RunOp(  # noqa: N802 - the known name
    op: Callable[[], Any],
    run_before: bool = True,
    run_as_trigger: bool = True,
    run_step: bool = False,
) -> Callback:
    """Create a callback that calls a function, such as one that assigns to variables.

        RunOp(lambda: counter.assign_add(1))

    Args:
        op: The function. Its result is ignored.
        run_before, run_as_trigger, run_step: Whether to call the function before training, after
            each epoch, and after each step.

    Raises:
        ConfigError: All three are False.
    """
    wanted = {"before_train": run_before, "trigger": run_as_trigger, "trigger_step": run_step}
    return CallbackFactory(**{hook: lambda _: op() for hook, is_ in wanted.items() if is_})
