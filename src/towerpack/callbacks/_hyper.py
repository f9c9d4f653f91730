"""Hyper-parameters that change while training goes on, by a rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from towerpack._core.errors import CallbackError, ConfigError
from towerpack._core.logs import get_logger
from towerpack.callbacks._base import Callback
from towerpack.callbacks.watch import Watch

if TYPE_CHECKING:
    from towerpack.callbacks._host import HyperParam

_log = get_logger(__name__)


class HyperParamSetter(Callback):
    """Base of callbacks that set one hyper-parameter.

    Args:
        param: A name that the trainer knows, such as `'learning_rate'`, or an object with `get`
            and `set`.

    Raises:
        ConfigError: `param` is neither.
    """

    def __init__(self, param: str | HyperParam) -> None:
        if not isinstance(param, str) and not (hasattr(param, "get") and hasattr(param, "set")):
            raise ConfigError(
                f"{type(self).__name__}: {param!r} is no hyper-parameter.",
                expected="a name such as 'learning_rate', or an object with get() and set(value)",
            )
        self._given = param

    @property
    def param_name(self) -> str:
        """Its name, for messages and checkpoints."""
        if isinstance(self._given, str):
            return self._given
        return str(getattr(self._given, "name", type(self._given).__name__))

    @property
    def param(self) -> HyperParam:
        """The hyper-parameter itself; from `before_train` on."""
        if isinstance(self._given, str):
            return self.trainer.hyper_param(self._given)
        return self._given

    def sets(self) -> Mapping[str, Collection[int] | None]:
        return {self._given: None} if isinstance(self._given, str) else {}

    def before_train(self) -> None:
        """Raise `ConfigError` if the trainer has no hyper-parameter of this name."""
        self.param.get()

    def set(self, value: float) -> None:
        """Set and log the value. Raise `CallbackError` if it is not finite."""
        value = float(value)
        if not math.isfinite(value):
            raise CallbackError(
                f"{self!r} would set {self.param_name} to {value} at step {self.global_step}.",
                expected="a finite number",
            )
        before = self.param.get()
        self.param.set(value)
        after = self.param.get()  # as float32 keeps it
        if after != before:
            what = (self.param_name, before, after, self.global_step)
            _log.info("%s: %.6g → %.6g at step %d.", *what)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.param_name!r})"


class HyperParamSetterWithFunc(HyperParamSetter):
    """Set a hyper-parameter to what a function gives, before the first epoch and after each.

    Args:
        param: Name or object.
        func: Takes the number of epochs done and the value now; gives the new value, or None to
            leave it.
    """

    def __init__(self, param: str | HyperParam, func: Callable[[int, float], float | None]) -> None:
        super().__init__(param)
        self._func = func
        self._epoch: int | None = None

    def before_train(self) -> None:
        """Set the first value; a resumed run has it already."""
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
        """The last epoch that was asked for, so that no change is made twice."""
        return {"epoch": self._epoch}

    def restore(self, state: Any) -> None:
        self._epoch = state["epoch"]


class StatMonitorParamSetter(HyperParamSetter):
    """Change a hyper-parameter when a monitored value stops getting better.

    After each new value it looks at the last `last_k` values. Unless one of them is smaller than
    the first of them by more than `threshold`, the hyper-parameter is changed and the watch starts
    anew: the next change needs `last_k` new values.

    Args:
        param: Name or object.
        stat: The monitored name. What produces it must stand earlier in the list of callbacks.
        value_func: Takes the value now and gives the new one: `lambda lr: lr * 0.1`.
        threshold: At least 0.
        last_k: At least 1, which changes the hyper-parameter at each new value.
        reverse: The monitored value should grow and not shrink.

    Raises:
        ConfigError: `threshold` or `last_k` makes no sense.
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
                f"{self!r}: threshold={threshold}, last_k={last_k} makes no sense.",
                expected="threshold of at least 0, and last_k of at least 1",
            )
        self.needs = (stat,)
        self._value_func = value_func
        self._threshold = threshold
        self._last_k = last_k
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
    """Epochs whose triggers are over, also where a resumed run starts inside one or among them."""
    trainer = callback.trainer
    return trainer.epoch - 1 if trainer.in_epoch else trainer.epoch
