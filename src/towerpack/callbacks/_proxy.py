"""A callback around another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from towerpack._core.errors import CallbackError
from towerpack.callbacks._base import Callback

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

    def enabled(self, hook: str) -> bool:
        """Whether a hook is to reach the callback now; `setup` always does."""
        return True

    def setup(self, trainer: TrainerHost) -> None:
        """Set the callback up."""
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
        """What the callback produces."""
        return self.callback.produces()

    @property
    def fetches(self) -> Sequence[str]:
        """What the callback asked for."""
        return self.callback.fetches

    def sets(self) -> Mapping[str, Collection[int] | None]:
        """Hyper-parameters of the callback."""
        return self.callback.sets()

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
            True where the callback is to act.
    """

    def __init__(self, callback: Callback, pred: Callable[[EnableCallbackIf], bool]) -> None:
        super().__init__(callback)
        self._pred = pred

    def sets(self) -> Mapping[str, Collection[int] | None]:
        """Nothing that is known before: the condition decides."""
        return {}

    def enabled(self, hook: str) -> bool:
        """Whether the condition holds now."""
        return hook in ("before_train", "after_train") or bool(self._pred(self))
