"""Another rhythm for a callback."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from towerpack._core.errors import CallbackError, ConfigError
from towerpack.callbacks._base import Callback
from towerpack.dataflow._arguments import integer_of

if TYPE_CHECKING:
    from towerpack.callbacks._host import TrainerHost


class PeriodicTrigger(Callback):
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
        if every_k_steps is None and every_k_epochs is None and not before_train:
            raise ConfigError(
                f"PeriodicTrigger({callback!r}) would never trigger it.",
                fix="give every_k_steps, every_k_epochs or before_train",
            )
        periods = (("every_k_steps", every_k_steps), ("every_k_epochs", every_k_epochs))
        for name, k in periods:
            if k is not None and k < 1:
                raise ConfigError(
                    f"PeriodicTrigger({callback!r}, {name}={k}) makes no sense.",
                    expected="at least 1",
                )
        if not isinstance(callback, Callback) or not callback.acts_in("trigger"):
            raise CallbackError(
                f"PeriodicTrigger cannot trigger {callback!r}.",
                expected="a callback that overrides trigger()",
                fix="call the class: ModelSaver()" if isinstance(callback, type) else None,
            )
        self.callback = callback
        self._every_k_steps, self._every_k_epochs = (
            None if k is None else integer_of(k, name) for name, k in periods
        )
        self._before_train = before_train
        self._triggered_at: int | None = None
        self.needs = callback.needs
        self.acts_between_steps = callback.acts_between_steps

    def produces(self) -> Sequence[str]:
        """What the callback produces."""
        return self.callback.produces()

    @property
    def fetches(self) -> Sequence[str]:
        """What the callback asked for."""
        return self.callback.fetches

    def setup(self, trainer: TrainerHost) -> None:
        """Set the callback up."""
        self.callback.trainer = trainer
        self.callback.setup(trainer)
        self.needs = self.callback.needs
        self.acts_between_steps = self.callback.acts_between_steps

    def before_train(self) -> None:
        """Pass on, then trigger if that was asked for."""
        self.callback.before_train()
        if self._before_train:
            self.trigger()

    def before_epoch(self) -> None:
        """Pass on."""
        self.callback.before_epoch()

    def before_step(self) -> None:
        """Pass on."""
        self.callback.before_step()

    def after_step(self, outputs: Mapping[str, Any]) -> None:
        """Pass on."""
        self.callback.after_step(outputs)

    def trigger_step(self) -> None:
        """Pass on, then trigger where a period of steps ends."""
        self.callback.trigger_step()
        if self._every_k_steps and self.trainer.global_step % self._every_k_steps == 0:
            self.trigger()

    def after_call(self) -> None:
        """Pass on."""
        self.callback.after_call()

    def after_epoch(self) -> None:
        """Pass on."""
        self.callback.after_epoch()

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

    def after_train(self) -> None:
        """Pass on."""
        self.callback.after_train()

    def acts_in(self, hook: str) -> bool:
        """What the callback acts in, and what the periods need."""
        if hook == "trigger_step" and self._every_k_steps is not None:
            return True
        if hook == "trigger_epoch":
            return self._every_k_epochs is not None
        return (hook == "before_train" and self._before_train) or self.callback.acts_in(hook)

    def next_stop(self, step: int) -> int | None:
        """The end of the current period of steps, or where the callback wants to stop before."""
        wanted = self.callback.next_stop(step)
        if self._every_k_steps is None:
            return wanted
        end = (step // self._every_k_steps + 1) * self._every_k_steps
        return end if wanted is None else min(end, wanted)

    def settings(self) -> Any:
        """The callback's."""
        return self.callback.settings()

    def state(self) -> Any:
        """The callback's state."""
        return self.callback.state()

    def restore(self, state: Any) -> None:
        """Hand it to the callback."""
        self.callback.restore(state)

    def __repr__(self) -> str:
        # The name under which checkpoints keep the state: the same with and without the wrapper.
        return repr(self.callback)
