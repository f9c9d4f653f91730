"""Hyper-parameters by a table, and learning-rate schedules that are functions of the step.

Common arguments of the schedules:

    peak: The highest value.
    steps: Of the whole run, warm-up included.
    end: The value after the last step.
    warmup: Steps of a line up to `peak`: the first step is run with `peak / warmup`, the last one
        with `peak`.
    param: Name of the hyper-parameter.

All raise ConfigError where a number makes no sense, or the warm-up leaves no step.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Literal

from towerpack._core.errors import ConfigError
from towerpack.callbacks._hyper import HyperParamSetter, epochs_done

if TYPE_CHECKING:
    from towerpack.callbacks._host import HyperParam, TrainerHost


_LR: Final = "learning_rate"


class ScheduledHyperParamSetter(HyperParamSetter):
    """Set a hyper-parameter by a table of points.

    A point `(e, value)` means: from the end of epoch e on; 0 is before the first. Before the first
    point and after the last nothing is set. A run that starts in the middle is given the value due
    there. A resumed run keeps the value that its checkpoint holds, which may have been changed by
    hand since, unless the table has changed and wants another.

    Args:
        param: Name or object.
        schedule: Points `(epoch, value)`, or `(step, value)`; in any order, each epoch once.
        interp: None to keep each value until the next point; 'linear' for a straight line
            between two points.
        step_based: The points are at global steps. A line by steps is drawn inside the compiled
            loop; for an object instead of a name, it makes every step a call of its own.
        set_at_beginning: Set the value due when training starts between two points. If False,
            keep the current value until the next point.

    Raises:
        ConfigError: The table is empty, has an epoch twice, or holds something else than numbers.
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
        points = sorted((int(at), float(value)) for at, value in schedule)
        places = [at for at, _ in points]
        finite = all(math.isfinite(value) for _, value in points)
        if not points or len(set(places)) < len(places) or places[0] < 0 or not finite:
            raise ConfigError(
                f"{self!r}: the schedule {points} makes no sense.",
                expected="points (epoch, value), each epoch once, with finite values",
            )
        if interp not in (None, "linear"):
            raise ConfigError(f"{self!r}: interp={interp!r}.", expected="None or 'linear'")
        self._places = places
        self._values = [value for _, value in points]
        self._linear = interp == "linear"
        self._step_based = step_based
        self._set_at_beginning = set_at_beginning
        self._last: float | None = None

    def due(self, now: int) -> float | None:
        """The value that holds after epoch (or step) `now`; None before the first point."""
        i = bisect.bisect_right(self._places, now) - 1
        if i < 0:
            return None
        if not self._linear or i == len(self._places) - 1:
            return self._values[i]
        start, end = self._places[i : i + 2]
        share = (now - start) / (end - start)
        return self._values[i] + share * (self._values[i + 1] - self._values[i])

    @property
    def _in_graph(self) -> bool:
        return self._step_based and self._linear and isinstance(self._param, str)

    def setup(self, trainer: TrainerHost) -> None:
        if self._in_graph:
            trainer.schedule(self.param_name, self._on_the_line)

    def sets(self) -> Mapping[str, Collection[int] | None]:
        first, last = self._places[0], self._places[-1]
        every = range(first, max(last, first + 1))  # beyond the last, another may set it
        places = every if self._linear else self._places
        if not self._step_based:
            places = [place * self.trainer.steps_per_epoch for place in places]
        return dict.fromkeys(super().sets(), places)

    def _on_the_line(self, step: int) -> float | None:
        return self.due(step) if self._places[0] <= step <= self._places[-1] else None

    def before_train(self) -> None:
        super().before_train()
        now = self.trainer.global_step if self._step_based else epochs_done(self)
        if self.param_name in self.trainer.given_anew:
            self._last = None  # the table stands above the optimizer's own value
        if not self._set_at_beginning and now not in self._places:
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
        if value is not None and (value != self._last or now in self._places):
            self._last = value
            self.set(value)

    def acts_in(self, hook: str) -> bool:
        acts = self._step_based and not self._in_graph
        return super().acts_in(hook) and (hook != "trigger_step" or acts)

    def next_stop(self, step: int) -> int | None:
        if not self._step_based or self._in_graph:
            return None
        i = bisect.bisect_right(self._places, step)
        if i == len(self._places):
            return None
        return step + 1 if self._linear and i > 0 else self._places[i]

    def settings(self) -> list[str]:
        pairs = zip(self._places, self._values, strict=True)
        kinds = ["linear"] * self._linear + ["by steps"] * self._step_based
        return [f"{place}: {value:g}" for place, value in pairs] + kinds

    def state(self) -> dict[str, Any]:
        last = self.due(self.trainer.global_step) if self._in_graph else self._last
        return {"last": last}

    def restore(self, state: Any) -> None:
        self._last = state["last"]


class _FunctionOfStep(ScheduledHyperParamSetter):
    """Set a hyper-parameter to a function of the step, inside the compiled loop.

    Args:
        param: Name of the hyper-parameter.
        curve: Takes the number of steps done and returns the value for the next step.
        last: Number of steps after which nothing is set anymore.
        name: Name of the schedule, for the run's settings.
        warmup: Steps of a line up to `curve(warmup)`, before the curve.
        arguments: Further numbers that make the schedule, for the run's settings.
    """

    def __init__(
        self,
        param: str,
        curve: Callable[[int], float],
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
        return self._curve(min(now, self._places[-1]))

    def settings(self) -> list[str]:
        return self._settings

    def __repr__(self) -> str:
        # Checkpoints name callbacks so. Earlier releases made tables of these schedules.
        return f"{ScheduledHyperParamSetter.__name__}({self.param_name!r})"


def warmup_schedule(peak: float, warmup: int, *, param: str = _LR) -> ScheduledHyperParamSetter:
    """A line up to `peak`, which then stays (Goyal et al. 2017, section 2.2)."""
    return piecewise_schedule([(0, peak)], warmup=warmup, param=param)


def piecewise_schedule(
    points: Iterable[tuple[int, float]], *, warmup: int = 0, param: str = _LR
) -> ScheduledHyperParamSetter:
    """Constant pieces, after a warm-up.

    Args:
        points: `(step, value)`: the value from after so many steps on; the first at step 0, the
            second after the warm-up.
        warmup: Steps of a line up to the first value.
        param: Name of the hyper-parameter.
    """
    given = [(int(step), float(value)) for step, value in points]
    steps = [step for step, _ in given]
    if not given or steps[0] != 0 or any(b <= a for a, b in pairwise(steps)):
        raise ConfigError(
            f"piecewise_schedule({given}) makes no sense.",
            expected="points (step, value) with rising steps, the first at 0",
        )
    name, last = "piecewise_schedule", max(warmup, steps[-1])
    _check(name, given[0][1], steps[1] if given[1:] else None, warmup)

    def curve(step: int) -> float:
        return given[bisect.bisect_right(steps, step) - 1][1]

    arguments = {str(step): value for step, value in given}
    return _FunctionOfStep(param, curve, last, name, warmup=warmup, **arguments)


def cosine_schedule(
    peak: float, steps: int, *, end: float = 0.0, warmup: int = 0, param: str = _LR
) -> ScheduledHyperParamSetter:
    """Half a cosine from `peak` to `end`, after a warm-up (Loshchilov & Hutter 2017, SGDR)."""
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
    """`end + (peak - end) * (1 - share) ** power`, after a warm-up; a straight line for power 1.

    A power of 0.9 is usual in segmentation (Chen et al. 2017, DeepLab).
    """
    name = "polynomial_schedule"
    _check(name, peak, steps, warmup)
    if not power > 0:
        raise ConfigError(f"polynomial_schedule(power={power}).", expected="more than 0")

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
    """Half a cosine up and half a cosine down (Smith & Topin 2018, super-convergence).

    It rises in the share `rise` of the steps, from `start` (None for `peak / 25`), and falls to
    `end` (None for `peak / 250_000`).
    """
    low = peak / 25 if start is None else start
    last = peak / 250_000 if end is None else end
    top = round(rise * steps)
    if not 0 < top < steps:
        raise ConfigError(
            f"one_cycle_schedule(steps={steps}, rise={rise}) makes no sense.",
            expected="a share that leaves steps to rise and steps to fall",
        )
    _check("one_cycle_schedule", peak, steps, 0)

    def curve(step: int) -> float:
        if step < top:
            return peak + (low - peak) * _cosine(step / top)
        return last + (peak - last) * _cosine((step - top) / (steps - top))

    numbers = {"peak": peak, "steps": steps, "rise": rise, "start": low, "end": last}
    return _FunctionOfStep(param, curve, steps, "one_cycle_schedule", **numbers)


def _cosine(share: float) -> float:
    """From 1 to 0."""
    return (1 + math.cos(math.pi * share)) / 2


def _check(who: str, peak: float, steps: int | None, warmup: int) -> None:
    if not 0 < peak < math.inf:
        raise ConfigError(f"{who}: {peak} is no learning rate.", expected="more than 0, and finite")
    if warmup < 0 or (steps is not None and warmup >= steps):
        raise ConfigError(
            f"{who}: a warm-up of {warmup} steps makes no sense.",
            expected="at least 0" if steps is None else f"from 0 to {steps - 1} steps",
        )
