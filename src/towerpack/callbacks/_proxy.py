"""A callback around another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from towerpack._core.errors import CallbackError
from towerpack.callbacks._base import Callback

if TYPE_CHECKING:
    from towerpack.callbacks._host import TrainerHost


class ProxyCallback(Callback):
    """Base of wrappers: every hook, and the state, is the callback's.

    A run can be continued with or without the wrapper.

    Args:
        callback: What is wrapped.

    Raises:
        CallbackError: It is not a callback.
    """

    def __init__(self, callback: Callback) -> None:
        if not isinstance(callback, Callback):
            raise CallbackError(
                f"{type(self).__name__} cannot wrap {callback!r}.",
                expected="an instance of Callback",
                fix="call the class: ModelSaver()" if isinstance(callback, type) else None,
            )
        self.callback = callback
        self._take_over()

    def _take_over(self) -> None:
        self.needs = self.callback.needs
        self.acts_between_steps = self.callback.acts_between_steps
        self.chief_only = self.callback.chief_only

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
        self._take_over()

    def before_train(self) -> None:
        """Pass on."""
        self.callback.before_train()

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
        """Pass on."""
        self.callback.trigger_step()

    def after_call(self) -> None:
        """Pass on."""
        self.callback.after_call()

    def after_epoch(self) -> None:
        """Pass on."""
        self.callback.after_epoch()

    def trigger_epoch(self) -> None:
        """Pass on."""
        self.callback.trigger_epoch()

    def trigger(self) -> None:
        """Pass on."""
        self.callback.trigger()

    def after_train(self) -> None:
        """Pass on."""
        self.callback.after_train()

    def acts_in(self, hook: str) -> bool:
        """What the callback acts in."""
        return self.callback.acts_in(hook)

    def next_stop(self, step: int) -> int | None:
        """Where the callback wants to stop."""
        return self.callback.next_stop(step)

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


class EnableCallbackIf(ProxyCallback):
    """Lets a callback act only while a condition holds.

    The condition is asked in every hook of epochs, steps and calls, and decides about that one;
    `setup`, `before_train` and `after_train` always reach the callback.

    Args:
        callback: What is wrapped.
        pred: Takes this object, with `epoch_num`, `global_step`, `local_step` and `trainer`; gives
            True where the callback is to act. In a wrapper of your own, override `enabled`.
    """

    def __init__(
        self, callback: Callback, pred: Callable[[EnableCallbackIf], bool] = lambda _: True
    ) -> None:
        super().__init__(callback)
        self._pred = pred

    def enabled(self, hook: str) -> bool:
        """Whether the callback is to act in a hook now."""
        return bool(self._pred(self))

    def before_epoch(self) -> None:
        """Pass on where enabled."""
        if self.enabled("before_epoch"):
            self.callback.before_epoch()

    def before_step(self) -> None:
        """Pass on where enabled."""
        if self.enabled("before_step"):
            self.callback.before_step()

    def after_step(self, outputs: Mapping[str, Any]) -> None:
        """Pass on where enabled."""
        if self.enabled("after_step"):
            self.callback.after_step(outputs)

    def trigger_step(self) -> None:
        """Pass on where enabled."""
        if self.enabled("trigger_step"):
            self.callback.trigger_step()

    def after_call(self) -> None:
        """Pass on where enabled."""
        if self.enabled("after_call"):
            self.callback.after_call()

    def after_epoch(self) -> None:
        """Pass on where enabled."""
        if self.enabled("after_epoch"):
            self.callback.after_epoch()

    def trigger_epoch(self) -> None:
        """Pass on where enabled."""
        if self.enabled("trigger_epoch"):
            self.callback.trigger_epoch()

    def trigger(self) -> None:
        """Pass on where enabled."""
        if self.enabled("trigger"):
            self.callback.trigger()
