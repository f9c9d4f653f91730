"""Collection of the scalar and image summaries of each step for the monitors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from towerpack._core.errors import LayerError
from towerpack.callbacks.monitors import Monitors
from towerpack.nn import HEAVY, Summary
from towerpack.tower import COST, TowerResult
from towerpack.training.optim.learning_rate import LEARNING_RATE
from towerpack.training.state.clock import Clock
from towerpack.training.state.ledger import ALL_PARTS, Ledger
from towerpack.training.state.step_costs import StepCosts
from towerpack.training.steps.step_runner import CallResult

FILL = "queue/fill"
_SECONDS = {part: f"time/{part}_s" for part in ALL_PARTS}


class StepAverages:
    """Mean cost of the epoch, and moving averages over all steps.

    Values are added in the order of steps, so that the results do not depend on the number of steps
    per call. `decays` holds the weight of the previous average in each step, by name.
    """

    def __init__(self, decays: Mapping[str, float]) -> None:
        self._decays = dict(decays)
        self._moving: dict[str, tuple[float, float]] = dict.fromkeys(decays, (0.0, 0.0))
        self._sum = 0.0
        self._count = 0

    def add(self, costs: np.ndarray, values: Mapping[str, np.ndarray]) -> None:
        for cost in costs.tolist():
            self._sum += cost
        self._count += len(costs)
        for name, decay in self._decays.items():
            total, weight = self._moving[name]
            for value in values[name].tolist():
                total = decay * total + (1 - decay) * value
                weight = decay * weight + (1 - decay)
            self._moving[name] = (total, weight)

    def end_epoch(self) -> dict[str, float]:
        """Return the mean cost of the epoch as `'cost'`, and all moving averages."""
        averages = {n: total / weight for n, (total, weight) in self._moving.items() if weight > 0}
        return {"cost": self._sum / self._count, **averages} if self._count else averages

    def begin_epoch(self) -> None:
        self._sum, self._count = 0.0, 0

    def state(self) -> dict[str, Any]:
        moving = {name: list(pair) for name, pair in self._moving.items()}
        return {"sum": self._sum, "count": self._count, "moving": moving}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._sum, self._count = float(state["sum"]), int(state["count"])
        for name, (total, weight) in state["moving"].items():
            if name in self._moving:
                self._moving[name] = (total, weight)


class Numbers:
    """Collector of step summaries, which sends scalars to the monitors at the end of each epoch.

    `more` returns further numbers at the end of an epoch. Summaries of the same name take
    precedence.
    """

    def __init__(
        self,
        summaries: Sequence[Summary],
        monitors: Monitors,
        more: Callable[[], Mapping[str, float]],
        ledger: Ledger,
        costs: StepCosts,
    ) -> None:
        self.clock = ledger.clock
        self._ledger = ledger
        self._costs = costs
        self._monitors = monitors
        self._more = more
        self._kinds = {s.name: s.kind for s in summaries}
        self._averages = StepAverages(
            {s.name: s.decay for s in summaries if s.kind == "moving_average"}
        )
        self._last: dict[str, float] = {}

    def begin_epoch(self) -> None:
        self._averages.begin_epoch()
        self._last = {}  # An epoch may skip all its steps.
        self.clock.begin_epoch()

    def add(self, result: CallResult, step: int) -> None:
        self._averages.add(result.outputs[COST], result.summaries)
        self._costs.add(result.outputs[COST], step)
        if result.steps:
            self._last = {n: float(v[-1]) for n, v in result.summaries.items()}
        for name, value in result.heavy.items():
            # Histograms of gradients are not summaries of the tower, so their kind is unknown.
            if self._kinds.get(name, "histogram") == "histogram":
                self._monitors.put_histogram(name, value, step)
            else:
                for i, image in enumerate(value):
                    self._monitors.put_image(f"{name}/{i}", image, step)

    def put(self) -> None:
        numbers = self._averages.end_epoch()
        for further in (self._last, self._more()):
            for name, value in further.items():
                numbers.setdefault(name, value)
        self.clock.built()
        spent = {_SECONDS[part]: seconds for part, seconds in self._ledger.totals().items()}
        for name, value in {**numbers, **self.clock.report(), **spent}.items():
            self._monitors.put_scalar(name, value)

    def state(self) -> dict[str, Any]:
        return {"averages": self._averages.state(), "scalars": self._last}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._averages.restore(state["averages"])
        self._last = dict(state["scalars"])


def names_of_numbers(result: TowerResult, others: Sequence[str]) -> list[str]:
    """Return the names of all numbers that a trainer reports. Raise an error for reserved names.

    `others` are names of numbers that are not summaries of the tower.
    """
    timed = [*Clock.NAMES, *_SECONDS.values()]
    reserved = [COST, *timed, *(n for n in others if n in (LEARNING_RATE, FILL))]
    numbers = [s for s in result.summaries if s.kind not in HEAVY]
    for s in numbers:
        if s.name in reserved and s.value is not result.cost:
            raise LayerError(
                f"summary.{s.kind}('{s.name}', …) must not use a name reserved for trainers.",
                expected=f"a name other than {reserved}",
                fix=f"rename the summary, for example to summary.{s.kind}('my_{s.name}', …)",
            )
    return list(dict.fromkeys([*reserved, *others, *(s.name for s in numbers)]))
