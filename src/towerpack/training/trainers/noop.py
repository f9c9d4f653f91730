"""Trainer that runs callbacks without training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack.inputs import InputSource
from towerpack.tower import COST
from towerpack.training.config import TrainConfig
from towerpack.training.loop.executor import BUDGET_S, StepParts
from towerpack.training.steps.step_runner import CallResult, StepRunner
from towerpack.training.trainers.base import Trainer


class NoOpTrainer(Trainer):
    """Trainer that builds the model and runs callbacks; its steps compute and read nothing.

    Use it for callbacks that evaluate or predict with a restored (`resume=`) or loaded (`init=`)
    model. Steps and epochs are counted and all hooks are called; the data position is kept.

    Args:
        config: Configuration; None if `launch_train_with_config` passes it later.

    Raises:
        ConfigError: A callback asks for outputs of steps (raised by `train`).
    """

    def __init__(self, config: TrainConfig | None = None) -> None:
        super().__init__(config)

    def configure(self, config: TrainConfig) -> None:
        super().configure(config)
        self.source = _Unread(self.source)

    def _make_runner(self, parts: StepParts) -> StepRunner:
        return _NoSteps(parts)


class _Unread(InputSource):
    def __init__(self, source: InputSource) -> None:
        self.dataflow = getattr(source, "dataflow", None)
        self._state: Any = None

    def setup(self, specs: Sequence[tf.TensorSpec], *, seed: int, replicas: int = 1) -> None:
        pass

    def get(self, step: tf.Tensor | tf.Variable) -> list[tf.Tensor]:
        return []

    def start(self, state: Any = None) -> None:
        self._state = state

    def state(self) -> Any:
        return self._state


class _NoSteps:
    one_step_only = False
    has_heavy = False
    budget_s = BUDGET_S

    def __init__(self, parts: StepParts) -> None:
        if parts.fetches:
            raise ConfigError(
                "NoOpTrainer computes no steps, but a callback asks for outputs of steps.",
                got=f"fetch({', '.join(map(repr, parts.fetches))})",
                fix="remove the callback, or let it predict with trainer.predict_function(…)",
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
            summaries=_NoValues(),
            heavy={},
            nonfinite=None,
        )

    def run_heavy(self, *, after: int) -> CallResult:
        return self.run(1, after=after)


class _NoValues(dict[str, np.ndarray]):
    def __missing__(self, name: str) -> np.ndarray:
        return np.empty(0)
