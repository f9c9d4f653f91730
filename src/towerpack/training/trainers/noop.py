"""Training without steps: only callbacks act."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack._core.errors import ConfigError, InternalError
from towerpack.inputs import InputSource
from towerpack.tower import COST
from towerpack.training.config import TrainConfig
from towerpack.training.loop.executor import BUDGET_S, StepParts
from towerpack.training.steps.step_runner import CallResult, StepRunner
from towerpack.training.trainers.base import Trainer


class NoOpTrainer(Trainer):
    """Build the model and run the callbacks; its steps compute nothing and take no data.

    For callbacks that evaluate, predict or play with a model that is restored (`resume=`) or
    loaded (`init=`). Steps and epochs are counted and all hooks fire. A run that is continued in
    this way keeps its position in the data.

    Args:
        config: What to run; None to leave that to `launch_train_with_config`.

    Raises:
        ConfigError: In `train`: a callback asks for outputs of steps.
    """

    def __init__(self, config: TrainConfig | None = None) -> None:
        super().__init__(config)

    def configure(self, config: TrainConfig) -> None:
        super().configure(config)
        self.source = _Unread(self.source)

    def _make_runner(self, parts: StepParts) -> StepRunner:
        return _NoSteps(parts)


class _Unread(InputSource):
    """Stay where it is."""

    def __init__(self, source: InputSource) -> None:
        self.dataflow = getattr(source, "dataflow", None)
        self._state: Any = None

    def setup(self, specs: Sequence[tf.TensorSpec], *, seed: int, replicas: int = 1) -> None:
        pass

    def get(self, step: tf.Tensor | tf.Variable) -> list[tf.Tensor]:
        raise InternalError("a training that computes no steps asked for data")

    def start(self, state: Any = None) -> None:
        self._state = state

    def state(self) -> Any:
        return self._state


class _NoSteps:
    """Counts steps; a `StepRunner`."""

    one_step_only = False
    has_heavy = False
    budget_s = BUDGET_S

    def __init__(self, parts: StepParts) -> None:
        if parts.fetches:
            raise ConfigError(
                "NoOpTrainer computes no steps, whose outputs a callback asks for.",
                got=f"fetch({', '.join(map(repr, parts.fetches))})",
                fix="take that callback out; or predict in it: trainer.predict_function(…)",
            )
        self._global_step = parts.global_step
        self._schedules = parts.schedules

    def compile(self) -> None:
        pass

    def run(self, steps: int, *, after: int) -> CallResult:
        self._schedules.assign_after(steps, self._schedules.due(steps, after))
        self._global_step.assign_add(steps)
        return CallResult(
            steps=steps,
            outputs={COST: np.empty(0)},
            summaries=_Nothing(),
            heavy={},
            nonfinite=None,
        )

    def run_heavy(self, *, after: int) -> CallResult:
        return self.run(1, after=after)


class _Nothing(dict[str, np.ndarray]):
    """No values of any name."""

    def __missing__(self, name: str) -> np.ndarray:
        return np.empty(0)
