"""Callbacks around other callbacks, and out of functions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from towerpack._core.errors import CallbackError, ConfigError
from towerpack._core.naming import did_you_mean
from towerpack.callbacks._base import Callback, check_callback
from towerpack.dataflow.arguments import integer_of

if TYPE_CHECKING:
    from towerpack.callbacks._host import TrainerHost


def _passed_on(hook: str) -> Any:
    def method(self: ProxyCallback, *given: Any) -> None:
        if self.enabled(hook):
            getattr(self.callback, hook)(*given)

    method.__name__, method.__doc__ = hook, "Pass on, where enabled."
    return method


class ProxyCallback(Callback):
    """Base of wrappers: every hook, and the state, is the callback's.

    A run can be continued with or without the wrapper.

    Args:
        callback: What is wrapped.

    Raises:
        CallbackError: It is not a callback.
    """

    def __init__(self, callback: Callback) -> None:
        self.callback = check_callback(callback)
        self._take_over()

    def _take_over(self) -> None:
        self.needs = self.callback.needs
        self.acts_between_steps = self.callback.acts_between_steps
        self.chief_only = self.callback.chief_only

    def enabled(self, hook: str) -> bool:
        """Whether a hook is to reach the callback now; `setup` always does."""
        return True

    def setup(self, trainer: TrainerHost) -> None:
        self.callback.trainer = trainer
        self.callback.setup(trainer)
        self._take_over()

    before_train = _passed_on("before_train")
    before_epoch = _passed_on("before_epoch")
    before_step = _passed_on("before_step")
    after_step = _passed_on("after_step")
    trigger_step = _passed_on("trigger_step")
    after_call = _passed_on("after_call")
    after_epoch = _passed_on("after_epoch")
    trigger_epoch = _passed_on("trigger_epoch")
    trigger = _passed_on("trigger")
    after_train = _passed_on("after_train")

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
        # The name under which checkpoints keep the state: the same with and without the wrapper.
        return repr(self.callback)


class EnableCallbackIf(ProxyCallback):
    """Let a callback act only while a condition holds.

    The condition is asked in every hook of epochs, steps and calls, and decides about that one;
    `setup`, `before_train` and `after_train` always reach the callback.

    Args:
        callback: What is wrapped.
        pred: Takes this object, with `epoch_num`, `global_step`, `local_step` and `trainer`; gives
            True where the callback is to act.
    """

    def __init__(self, callback: Callback, pred: Callable[[EnableCallbackIf], bool]) -> None:
        super().__init__(callback)
        self._pred = pred

    def sets(self) -> Mapping[str, Collection[int] | None]:
        """Nothing that is known before: the condition decides."""
        return {}

    def enabled(self, hook: str) -> bool:
        return hook in ("before_train", "after_train") or bool(self._pred(self))


class PeriodicTrigger(ProxyCallback):
    """Trigger a callback every so many steps or epochs *instead of* after each epoch.

    All other hooks of the callback work as if it stood in the list itself, and so does its state: a
    run can be resumed with or without the wrapper.

    Args:
        callback: Must have a `trigger`.
        every_k_steps: Trigger after each global step that is a multiple of this.
        every_k_epochs: Trigger after each epoch whose number is a multiple of this. Where both
            periods end at the same step, the callback is triggered once.
        before_train: Trigger before the first step too, also that of a resumed run.

    Raises:
        ConfigError: No period is given, or one that is not positive.
        CallbackError: The callback has no `trigger`, so that it would never act.
    """

    def __init__(
        self,
        callback: Callback,
        every_k_steps: int | None = None,
        every_k_epochs: int | None = None,
        before_train: bool = False,
    ) -> None:
        who = f"PeriodicTrigger({callback!r})"
        if every_k_steps is None and every_k_epochs is None and not before_train:
            raise ConfigError(
                f"{who} would never trigger it.",
                fix="give every_k_steps, every_k_epochs or before_train",
            )
        self._every_k_steps = _period(who, "every_k_steps", every_k_steps)
        self._every_k_epochs = _period(who, "every_k_epochs", every_k_epochs)
        super().__init__(callback)
        if not callback.acts_in("trigger"):
            raise CallbackError(
                f"PeriodicTrigger cannot trigger {callback!r}.",
                expected="a callback that overrides trigger()",
            )
        self._before_train = before_train
        self._triggered_at: int | None = None

    def before_train(self) -> None:
        self.callback.before_train()
        if self._before_train:
            self.trigger()

    def trigger_step(self) -> None:
        self.callback.trigger_step()
        if self._every_k_steps and self.trainer.global_step % self._every_k_steps == 0:
            self.trigger()

    def trigger_epoch(self) -> None:
        """Trigger where a period of epochs ends, unless the last step did."""
        periods = self._every_k_steps or self._every_k_epochs
        period_ends = self._every_k_epochs and self.trainer.epoch % self._every_k_epochs == 0
        if (
            period_ends or (periods and self.trainer.fast_dev_run)
        ) and self._triggered_at != self.trainer.global_step:
            self.trigger()

    def trigger(self) -> None:
        self._triggered_at = self.trainer.global_step
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
    """Let a callback act only in every so many-th step or epoch; it can only make it rarer.

    `PeriodicTrigger` changes when a callback is triggered; this one passes its hooks over.

    Args:
        callback: What is wrapped.
        every_k_steps: Act in the hooks of those steps (and of epochs that end with one) whose
            number is a multiple of this.
        every_k_epochs: Act in all hooks of those epochs whose number is a multiple of this, and of
            the last one.

    Raises:
        ConfigError: No period is given, or one that is not positive.
    """

    def __init__(
        self,
        callback: Callback,
        every_k_steps: int | None = None,
        every_k_epochs: int | None = None,
    ) -> None:
        super().__init__(callback)
        who = f"PeriodicCallback({callback!r})"
        self._every_k_steps = _period(who, "every_k_steps", every_k_steps)
        self._every_k_epochs = _period(who, "every_k_epochs", every_k_epochs)
        if not (self._every_k_steps or self._every_k_epochs):
            raise ConfigError(f"{who} has no period.", fix="give every_k_steps or every_k_epochs")

    def enabled(self, hook: str) -> bool:
        host = self.trainer
        # Before a step the counter does not count it yet.
        step = host.global_step + (hook == "before_step")
        of_steps = self._every_k_steps and step % self._every_k_steps == 0
        of_epochs = self._every_k_epochs and (
            host.epoch % self._every_k_epochs == 0 or host.epoch == host.max_epoch
        )
        return bool(hook in ("before_train", "after_train") or of_steps or of_epochs)

    def next_stop(self, step: int) -> int | None:
        return _nearer(self.callback.next_stop(step), self._every_k_steps, step)


def _period(who: str, name: str, k: Any) -> int | None:
    return None if k is None else integer_of(k, f"{who}: {name}", least=1)


def _nearer(wanted: int | None, period: int | None, step: int) -> int | None:
    if period is None:
        return wanted
    end = (step // period + 1) * period
    return end if wanted is None else min(end, wanted)


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
    callback: Any = type(
        "CallbackFactory", (Callback,), {n: _method(f) for n, f in hooks.items()}
    )()
    callback._arguments = (), hooks
    return callback


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
