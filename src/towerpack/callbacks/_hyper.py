"""Callbacks that change hyper-parameters during training."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from towerpack._core.errors import CallbackError, ConfigError
from towerpack._core.logs import get_logger
from towerpack.callbacks._base import Callback
from towerpack.callbacks._host import HyperParam, TrainerHost
from towerpack.callbacks.watch import Watch

_log = get_logger(__name__)


class HyperParamSetter(Callback):
    """Base class of callbacks that set one hyper-parameter.

    Args:
        param: A name that the trainer knows, such as `'learning_rate'`, or a `HyperParam`, an
            object with `get()` and `set(value)`.

    Raises:
        ConfigError: `param` is neither.
    """

    def __init__(self, param: str | HyperParam) -> None:
        if not isinstance(param, str) and not (hasattr(param, "get") and hasattr(param, "set")):
            raise ConfigError(
                f"{type(self).__name__} needs a hyper-parameter, got {param!r}.",
                expected="a name such as 'learning_rate', or an object with get() and set(value)",
            )
        self._param = param

    @property
    def param_name(self) -> str:
        """Name of the hyper-parameter, for messages and checkpoints."""
        if isinstance(self._param, str):
            return self._param
        return str(getattr(self._param, "name", type(self._param).__name__))

    @property
    def param(self) -> HyperParam:
        """The hyper-parameter as an object; available from `before_train` on."""
        return (
            self.trainer.hyper_param(self._param) if isinstance(self._param, str) else self._param
        )

    def sets(self) -> Mapping[str, Collection[int] | None]:
        return {self._param: None} if isinstance(self._param, str) else {}

    def before_train(self) -> None:
        if isinstance(self._param, str):
            check_changeable(self.trainer, self._param)

    def set(self, value: float) -> None:
        """Set the hyper-parameter and log the change.

        Args:
            value: The new value.

        Raises:
            CallbackError: The value is not finite.
        """
        value = float(value)
        if not math.isfinite(value):
            raise CallbackError(
                f"{self!r}: the value of {self.param_name} must be finite, got {value} at step "
                f"{self.global_step}."
            )
        before = self.param.get()
        self.param.set(value)
        after = self.param.get()  # rounded to float32
        if after != before:
            change = (self.param_name, before, after, self.global_step)
            _log.info("%s: %.6g → %.6g at step %d.", *change)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.param_name!r})"


def check_changeable(trainer: TrainerHost, name: str) -> None:
    """Raise an error if a hyper-parameter is unknown, or is a schedule of the optimizer."""
    param = trainer.hyper_param(name)
    if name not in trainer.hyper_param_names():
        param.set(param.get())


class HyperParamSetterWithFunc(HyperParamSetter):
    """Set a hyper-parameter to the result of a function, before the first and after each epoch.

    Args:
        param: Name of the hyper-parameter, or a `HyperParam`.
        func: Takes the number of epochs done and the current value. Returns the new value, or None
            to leave the value.
    """

    def __init__(self, param: str | HyperParam, func: Callable[[int, float], float | None]) -> None:
        super().__init__(param)
        self._func = func
        self._epoch: int | None = None  # the last epoch for which `func` was called

    def before_train(self) -> None:
        super().before_train()
        if self._epoch is None:
            self._ask(epochs_done(self))

    def trigger(self) -> None:
        self._ask(self.trainer.epoch)

    def _ask(self, epoch: int) -> None:
        self._epoch = epoch
        value = self._func(epoch, self.param.get())
        if value is not None:
            self.set(value)

    def state(self) -> dict[str, Any]:
        return {"epoch": self._epoch}

    def restore(self, state: Any) -> None:
        self._epoch = state["epoch"]


class StatMonitorParamSetter(HyperParamSetter):
    """Change a hyper-parameter when a monitored value stops improving.

    Each time the value is monitored, its last `last_k` values are compared. If none of them is
    smaller than the first by more than `threshold`, the hyper-parameter is changed. The next change
    needs `last_k` new values.

    Args:
        param: Name of the hyper-parameter, or a `HyperParam`.
        stat: Name of the monitored value. An earlier callback in the list must produce it.
        value_func: Takes the current value and returns the new one: `lambda lr: lr * 0.1`.
        threshold: Least decrease of `stat` that counts as an improvement; at least 0.
        last_k: Number of values compared; at least 1. With 1, each new value causes a change.
        reverse: Whether larger values of `stat` are better.

    Raises:
        ConfigError: `threshold` or `last_k` is too small.
    """

    def __init__(
        self,
        param: str | HyperParam,
        stat: str,
        value_func: Callable[[float], float],
        threshold: float,
        last_k: int,
        reverse: bool = False,
    ) -> None:
        super().__init__(param)
        if last_k < 1 or not threshold >= 0:
            raise ConfigError(
                f"{self!r}: threshold must be at least 0 and last_k at least 1, got "
                f"threshold={threshold} and last_k={last_k}."
            )
        self.needs = (stat,)
        self._value_func, self._threshold, self._last_k = value_func, threshold, last_k
        self._sign = -1.0 if reverse else 1.0
        self._values: list[float] = []
        self._watch = Watch(stat, repr(self), "max" if reverse else "min")

    def trigger(self) -> None:
        fresh = self._watch.fresh(self.trainer.monitors)
        if fresh is None or math.isnan(fresh[1]):
            return
        self._values = [*self._values, fresh[1]][-self._last_k :]
        if len(self._values) < self._last_k:
            return
        signed = [self._sign * value for value in self._values]
        if min(signed) >= signed[0] - self._threshold:
            self._values = []
            self.set(self._value_func(self.param.get()))

    def state(self) -> dict[str, Any]:
        return {"values": self._values, "seen": self._watch.seen_step}

    def restore(self, state: Any) -> None:
        self._values = list(state["values"])
        self._watch.seen_step = state["seen"]


def epochs_done(callback: Callback) -> int:
    """Return the number of epochs whose triggers are done."""
    trainer = callback.trainer
    return trainer.epoch - 1 if trainer.in_epoch else trainer.epoch
