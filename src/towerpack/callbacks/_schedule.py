"""Hyper-parameters by a table."""

from __future__ import annotations

import bisect
import math
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from towerpack._core.errors import ConfigError
from towerpack.callbacks._hyper import HyperParamSetter, epochs_done

if TYPE_CHECKING:
    from towerpack.callbacks._host import HyperParam, TrainerHost


class ScheduledHyperParamSetter(HyperParamSetter):
    """Sets a hyper-parameter by a table of points.

    A point `(e, value)` means: from the end of epoch e on; 0 is before the first. Before the first
    point and after the last nothing is set. A run that starts in the middle is given the value due
    there. A resumed run keeps the value that its checkpoint holds, which may have been changed by
    hand since, unless the table has changed and wants another.

    Args:
        param: Name or object.
        schedule: Points `(epoch, value)`, or `(step, value)`; sorted, each epoch once.
        interp: None to keep each value until the next point; 'linear' for a straight line
            between two points.
        step_based: The points are at global steps. A line by steps is drawn inside the compiled
            loop; for an object instead of a name, it makes every step a call of its own.

    Raises:
        ConfigError: The table is empty, not sorted, or holds something else than numbers.
    """

    chief_only = False

    def __init__(
        self,
        param: str | HyperParam,
        schedule: Iterable[tuple[int, float]],
        interp: Literal["linear"] | None = None,
        step_based: bool = False,
    ) -> None:
        super().__init__(param)
        points = [(int(at), float(value)) for at, value in schedule]
        places = [at for at, _ in points]
        finite = all(math.isfinite(value) for _, value in points)
        if not points or places != sorted(set(places)) or places[0] < 0 or not finite:
            raise ConfigError(
                f"{self!r}: the schedule {points} makes no sense.",
                expected="points (epoch, value), sorted, each epoch once, with finite values",
            )
        if interp not in (None, "linear"):
            raise ConfigError(f"{self!r}: interp={interp!r}.", expected="None or 'linear'")
        self._places = places
        self._values = [value for _, value in points]
        self._linear = interp == "linear"
        self._step_based = step_based
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
        return self._step_based and self._linear and isinstance(self._given, str)

    def setup(self, trainer: TrainerHost) -> None:
        """Hand a line by steps to the compiled loop."""
        if self._in_graph:
            trainer.schedule(self.param_name, self._on_the_line)

    def sets(self) -> Mapping[str, Collection[int] | None]:
        """It, at the table's places."""
        first, last = self._places[0], self._places[-1]
        every = range(first, max(last, first + 1))  # beyond the last, another may set it
        places = every if self._linear else self._places
        if not self._step_based:
            places = [place * self.trainer.steps_per_epoch for place in places]
        return dict.fromkeys(super().sets(), places)

    def _on_the_line(self, step: int) -> float | None:
        return self.due(step) if self._places[0] <= step <= self._places[-1] else None

    def before_train(self) -> None:
        """Set what is due at the start."""
        super().before_train()
        now = self.trainer.global_step if self._step_based else epochs_done(self)
        if self.param_name in self.trainer.given_anew:
            self._last = None  # the table stands above the optimizer's own value
        if self.due(now) != self._last:
            self._set_due(now)

    def trigger_step(self) -> None:
        """Set what is due, by steps."""
        if self._step_based:
            self._set_due(self.trainer.global_step)

    def trigger(self) -> None:
        """Set what is due, by epochs."""
        if not self._step_based:
            self._set_due(self.trainer.epoch)

    def _set_due(self, now: int) -> None:
        value = self.due(now)
        if value is not None and (value != self._last or now in self._places):
            self._last = value
            self.set(value)

    def acts_in(self, hook: str) -> bool:
        """Steps matter only to tables by steps."""
        acts = self._step_based and not self._in_graph
        return super().acts_in(hook) and (hook != "trigger_step" or acts)

    def next_stop(self, step: int) -> int | None:
        """The next point by steps; within a line, the next step."""
        if not self._step_based or self._in_graph:
            return None
        i = bisect.bisect_right(self._places, step)
        if i == len(self._places):
            return None
        return step + 1 if self._linear and i > 0 else self._places[i]

    def settings(self) -> list[str]:
        """The table."""
        pairs = zip(self._places, self._values, strict=True)
        return [f"{place}: {value:g}" for place, value in pairs]

    def state(self) -> dict[str, Any]:
        """The value set last."""
        last = self.due(self.trainer.global_step) if self._in_graph else self._last
        return {"last": last}

    def restore(self, state: Any) -> None:
        """Take it back."""
        self._last = state["last"]
