"""Hyper-parameters set by a table, and learning-rate schedules that are functions of the step."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import pairwise
from typing import Any, Final, Literal, TypeAlias

from towerpack._core.errors import ConfigError
from towerpack.callbacks._host import HyperParam, TrainerHost
from towerpack.callbacks._hyper import HyperParamSetter, epochs_done

_LR: Final = "learning_rate"
_Curve: TypeAlias = Callable[[int], float]


class ScheduledHyperParamSetter(HyperParamSetter):
    """Set a hyper-parameter by a table of points.

        ScheduledHyperParamSetter("learning_rate", [(0, 0.1), (30, 0.01), (60, 0.001)])

    A point `(e, value)` sets the value at the end of epoch e, or before training if e is 0. Before
    the first point and after the last, nothing is set. A resumed run keeps the value of its
    checkpoint, unless the table has changed and has another value for that epoch.

    Args:
        param: Name of the hyper-parameter, or a `HyperParam`.
        schedule: Points `(epoch, value)` or `(step, value)` in any order, each epoch once.
        interp: None to keep each value until the next point; 'linear' to interpolate linearly.
        step_based: Whether points are at global steps. With 'linear' and a name as `param`, the
            value is computed inside the compiled loop; a `HyperParam` needs one call for each step.
        set_at_beginning: Whether to set the value if training starts between two points. If False,
            keep the current value until the next point.

    Raises:
        ConfigError: The table is empty, has an epoch twice, or has a value that is not finite.
    """

    chief_only = False

    def __init__(
        self,
        param: str | HyperParam,
        schedule: Iterable[tuple[int, float]],
        interp: Literal["linear"] | None = None,
        step_based: bool = False,
        set_at_beginning: bool = True,
    ) -> None:
        super().__init__(param)
        points = sorted((int(position), float(value)) for position, value in schedule)
        positions = [position for position, _ in points]
        finite = all(math.isfinite(value) for _, value in points)
        if not points or len(set(positions)) < len(positions) or positions[0] < 0 or not finite:
            raise ConfigError(
                f"{self!r}: the schedule needs points (epoch, value), each epoch once and with a "
                f"finite value, got {points}."
            )
        if interp not in (None, "linear"):
            raise ConfigError(f"{self!r}: interp must be None or 'linear', got {interp!r}.")
        self._positions, self._values = positions, [value for _, value in points]
        self._linear, self._step_based = interp == "linear", step_based
        self._set_at_beginning = set_at_beginning
        self._last: float | None = None

    def due(self, now: int) -> float | None:
        # The value after `now` epochs or steps; None before the first point.
        i = bisect.bisect_right(self._positions, now) - 1
        if i < 0:
            return None
        if not self._linear or i == len(self._positions) - 1:
            return self._values[i]
        start, end = self._positions[i : i + 2]
        share = (now - start) / (end - start)
        return self._values[i] + share * (self._values[i + 1] - self._values[i])

    @property
    def _in_graph(self) -> bool:
        return self._step_based and self._linear and isinstance(self._param, str)

    def setup(self, trainer: TrainerHost) -> None:
        if self._in_graph:
            trainer.schedule(self.param_name, self._interpolated)

    def sets(self) -> Mapping[str, Collection[int] | None]:
        first, last = self._positions[0], self._positions[-1]
        every = range(first, max(last, first + 1))  # after the last, other callbacks may set it
        positions = every if self._linear else self._positions
        if not self._step_based:
            positions = [position * self.trainer.steps_per_epoch for position in positions]
        return dict.fromkeys(super().sets(), positions)

    def _interpolated(self, step: int) -> float | None:
        return self.due(step) if self._positions[0] <= step <= self._positions[-1] else None

    def before_train(self) -> None:
        super().before_train()
        now = self.trainer.global_step if self._step_based else epochs_done(self)
        if self.param_name in self.trainer.given_anew:
            self._last = None  # the table overrides the optimizer's value
        if not self._set_at_beginning and now not in self._positions:
            self._last = self.due(now)
        if self.due(now) != self._last:
            self._set_due(now)

    def trigger_step(self) -> None:
        if self._step_based:
            self._set_due(self.trainer.global_step)

    def trigger(self) -> None:
        if not self._step_based:
            self._set_due(self.trainer.epoch)

    def _set_due(self, now: int) -> None:
        value = self.due(now)
        if value is not None and (value != self._last or now in self._positions):
            self._last = value
            self.set(value)

    def acts_in(self, hook: str) -> bool:
        acts = self._step_based and not self._in_graph
        return super().acts_in(hook) and (hook != "trigger_step" or acts)

    def next_stop(self, step: int) -> int | None:
        if not self._step_based or self._in_graph:
            return None
        i = bisect.bisect_right(self._positions, step)
        if i == len(self._positions):
            return None
        return step + 1 if self._linear and i > 0 else self._positions[i]

    def settings(self) -> list[str]:
        pairs = zip(self._positions, self._values, strict=True)
        kinds = ["linear"] * self._linear + ["by steps"] * self._step_based
        return [f"{position}: {value:g}" for position, value in pairs] + kinds

    def state(self) -> dict[str, Any]:
        last = self.due(self.trainer.global_step) if self._in_graph else self._last
        return {"last": last}

    def restore(self, state: Any) -> None:
        self._last = state["last"]


class _FunctionOfStep(ScheduledHyperParamSetter):
    """Schedule that sets a hyper-parameter to `curve(steps done)` until step `last`.

    `name` and `arguments` describe the schedule in the run's settings.
    """

    def __init__(
        self,
        param: str,
        curve: _Curve,
        last: int,
        name: str,
        *,
        warmup: int = 0,
        **arguments: float,
    ) -> None:
        super().__init__(param, {0: 0.0, last: 0.0}.items(), "linear", step_based=True)
        self._curve, self._warmup = curve, warmup
        numbers = [f"{key}: {number}" for key, number in arguments.items()]
        self._settings = [name, *numbers, f"warmup: {warmup}"]

    def due(self, now: int) -> float:
        if now < self._warmup:
            return self._curve(self._warmup) * (now + 1) / self._warmup
        return self._curve(min(now, self._positions[-1]))

    def settings(self) -> list[str]:
        return self._settings

    def __repr__(self) -> str:
        # The key in checkpoints: earlier releases created tables for these schedules.
        return f"{ScheduledHyperParamSetter.__name__}({self.param_name!r})"


def warmup_schedule(peak: float, warmup: int, *, param: str = _LR) -> ScheduledHyperParamSetter:
    """Increase the learning rate linearly to `peak`, and then keep it (Goyal et al. 2017).

    Args:
        peak: Value after the warm-up.
        warmup: Number of warm-up steps. Step k of them has the value `peak * k / warmup`.
        param: Name of the hyper-parameter.
    """
    return piecewise_schedule([(0, peak)], warmup=warmup, param=param)


def piecewise_schedule(
    points: Iterable[tuple[int, float]], *, warmup: int = 0, param: str = _LR
) -> ScheduledHyperParamSetter:
    """Set the learning rate to piecewise constant values, after a linear warm-up to the first.

    Args:
        points: `(step, value)`: a value, and the number of steps after which it begins. The first
            step is 0, the second is after the warm-up.
        warmup: Number of warm-up steps.
        param: Name of the hyper-parameter.

    Raises:
        ConfigError: Steps do not increase from 0, or an argument is out of range.
    """
    pairs = [(int(step), float(value)) for step, value in points]
    steps = [step for step, _ in pairs]
    if not pairs or steps[0] != 0 or any(b <= a for a, b in pairwise(steps)):
        raise ConfigError(
            "piecewise_schedule needs points (step, value) with increasing steps, the first at 0, "
            f"got {pairs}."
        )
    name, last = "piecewise_schedule", max(warmup, steps[-1])
    _check(name, pairs[0][1], steps[1] if pairs[1:] else None, warmup)

    def curve(step: int) -> float:
        return pairs[bisect.bisect_right(steps, step) - 1][1]

    arguments = {str(step): value for step, value in pairs}
    return _FunctionOfStep(param, curve, last, name, warmup=warmup, **arguments)


def cosine_schedule(
    peak: float, steps: int, *, end: float = 0.0, warmup: int = 0, param: str = _LR
) -> ScheduledHyperParamSetter:
    """Decrease the learning rate along half a cosine, after a warm-up (Loshchilov & Hutter 2017).

    Args:
        peak, end: Value after the warm-up, and value after the last step.
        steps, warmup: Number of steps of the run, and of warm-up steps among them.
        param: Name of the hyper-parameter.
    """
    name, numbers = "cosine_schedule", {"peak": peak, "steps": steps, "end": end}
    _check(name, peak, steps, warmup)

    def curve(step: int) -> float:
        return end + (peak - end) * _cosine((step - warmup) / (steps - warmup))

    return _FunctionOfStep(param, curve, steps, name, warmup=warmup, **numbers)


def polynomial_schedule(
    peak: float,
    steps: int,
    *,
    power: float = 1.0,
    end: float = 0.0,
    warmup: int = 0,
    param: str = _LR,
) -> ScheduledHyperParamSetter:
    """Decrease the learning rate as a power of the remaining share of steps, after a warm-up.

    The rate is `end + (peak - end) * (1 - share) ** power`. `share` is the fraction of the steps
    after the linear warm-up that are done.

    Args:
        peak, end: Value after the warm-up, and value after the last step.
        steps, warmup: Number of steps of the run, and of warm-up steps among them.
        power: Exponent; 1 is linear, 0.9 is usual in segmentation (Chen et al. 2017, DeepLab).
        param: Name of the hyper-parameter.

    Raises:
        ConfigError: An argument is out of range.
    """
    name = "polynomial_schedule"
    _check(name, peak, steps, warmup)
    if not power > 0:
        raise ConfigError(f"polynomial_schedule: power must be positive, got {power}.")

    def curve(step: int) -> float:
        return end + (peak - end) * ((steps - step) / (steps - warmup)) ** power

    numbers = {"peak": peak, "steps": steps, "power": power, "end": end}
    return _FunctionOfStep(param, curve, steps, name, warmup=warmup, **numbers)


def one_cycle_schedule(
    peak: float,
    steps: int,
    *,
    rise: float = 0.3,
    start: float | None = None,
    end: float | None = None,
    param: str = _LR,
) -> ScheduledHyperParamSetter:
    """Increase and then decrease the learning rate along half cosines (Smith & Topin 2018).

    Args:
        peak, start, end: Highest, first and last value; `start` is `peak / 25` by default, and
            `end` is `peak / 250_000`.
        steps: Number of steps of the run.
        rise: Fraction of the steps in which the value increases.
        param: Name of the hyper-parameter.

    Raises:
        ConfigError: An argument is out of range.
    """
    low = peak / 25 if start is None else start
    last = peak / 250_000 if end is None else end
    top = round(rise * steps)
    if not 0 < top < steps:
        raise ConfigError(
            "one_cycle_schedule: the fraction rise must leave steps to increase and to decrease, "
            f"got rise={rise} and steps={steps}."
        )
    _check("one_cycle_schedule", peak, steps, 0)

    def curve(step: int) -> float:
        if step < top:
            return peak + (low - peak) * _cosine(step / top)
        return last + (peak - last) * _cosine((step - top) / (steps - top))

    numbers = {"peak": peak, "steps": steps, "rise": rise, "start": low, "end": last}
    return _FunctionOfStep(param, curve, steps, "one_cycle_schedule", **numbers)


def _cosine(share: float) -> float:
    return (1 + math.cos(math.pi * share)) / 2


def _check(name: str, peak: float, steps: int | None, warmup: int) -> None:
    if not 0 < peak < math.inf:
        raise ConfigError(f"{name}: values must be positive and finite, got {peak}.")
    if warmup < 0 or (steps is not None and warmup >= steps):
        limits = "at least 0" if steps is None else f"from 0 to {steps - 1}"
        raise ConfigError(f"{name}: the number of warm-up steps must be {limits}, got {warmup}.")
