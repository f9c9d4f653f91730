"""Another rhythm for a callback."""

from __future__ import annotations

from typing import Any

from towerpack._core.errors import CallbackError, ConfigError
from towerpack.callbacks._base import Callback
from towerpack.callbacks._proxy import ProxyCallback
from towerpack.dataflow._arguments import integer_of


class PeriodicTrigger(ProxyCallback):
    """Triggers a callback every so many steps or epochs *instead of* after each epoch.

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
        """Pass on, then trigger if that was asked for."""
        self.callback.before_train()
        if self._before_train:
            self.trigger()

    def trigger_step(self) -> None:
        """Pass on, then trigger where a period of steps ends."""
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
        """Trigger the callback now."""
        self._triggered_at = self.trainer.global_step
        self.callback.trigger()

    def acts_in(self, hook: str) -> bool:
        """What the callback acts in, and what the periods need."""
        if hook == "trigger_step" and self._every_k_steps is not None:
            return True
        if hook == "trigger_epoch":
            return self._every_k_epochs is not None
        return (hook == "before_train" and self._before_train) or self.callback.acts_in(hook)

    def next_stop(self, step: int) -> int | None:
        """The end of the current period of steps, or where the callback wants to stop before."""
        return _nearer(self.callback.next_stop(step), self._every_k_steps, step)


class PeriodicCallback(ProxyCallback):
    """Lets a callback act only in every so many-th step or epoch; it can only make it rarer.

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
        """True if the step or the epoch of the hook is one of those."""
        host = self.trainer
        # Before a step the counter does not count it yet.
        step = host.global_step + (hook == "before_step")
        of_steps = self._every_k_steps and step % self._every_k_steps == 0
        of_epochs = self._every_k_epochs and (
            host.epoch % self._every_k_epochs == 0 or host.epoch == host.max_epoch
        )
        return bool(hook in ("before_train", "after_train") or of_steps or of_epochs)

    def next_stop(self, step: int) -> int | None:
        """The next of those steps, or where the callback wants to stop before."""
        return _nearer(self.callback.next_stop(step), self._every_k_steps, step)


def _period(who: str, name: str, k: Any) -> int | None:
    if k is not None and k < 1:
        raise ConfigError(f"{who}: {name}={k} makes no sense.", expected="at least 1")
    return None if k is None else integer_of(k, name)


def _nearer(wanted: int | None, period: int | None, step: int) -> int | None:
    if period is None:
        return wanted
    end = (step // period + 1) * period
    return end if wanted is None else min(end, wanted)
