"""Counters of a training, which the training loop changes and checkpoints save."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from towerpack._core.files import count_of


class Phase(StrEnum):
    """Phase of the training loop."""

    STEPS = "steps"
    STEP_TRIGGERS = "step triggers"
    """Callbacks act after a step that one of them waits for."""
    TRIGGERS = "triggers"
    """Callbacks act after an epoch."""


@dataclass
class RunState:
    """Counters and flags of a training run.

    Attributes:
        settled: Whether counters, callbacks and data position match the weights, as saving
            requires.
        stop_reason: Reason, possibly empty, of the callback that asked to end training; None if no
            callback has asked.
        nonfinite: Inputs of the step that was not applied because its cost was not finite.
    """

    steps_per_epoch: int
    max_epoch: int
    step: int = 0
    epoch: int = 0
    local_step: int = 0
    in_epoch: bool = False
    phase: Phase = Phase.STEPS
    settled: bool = True
    stop_reason: str | None = None
    nonfinite: Sequence[np.ndarray] | None = None

    @property
    def place(self) -> tuple[int, bool, str]:
        """Position in the run. The state of a run is the same whenever its position is the same."""
        return self.step, self.in_epoch, self.phase

    @property
    def at_the_end(self) -> bool:
        """Whether the last epoch and its triggers are done."""
        return self.epoch >= self.max_epoch and not self.in_epoch and self.phase is Phase.STEPS

    def begin_epoch(self) -> None:
        self.epoch += 1
        self.local_step = 0
        self.in_epoch = True

    def advance(self, steps: int) -> None:
        self.step += steps
        self.local_step += steps

    def state(self) -> dict[str, Any]:
        names = ("step", "epoch", "local_step", "in_epoch")
        return {**{name: getattr(self, name) for name in names}, "phase": str(self.phase)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.step, self.epoch = count_of(state["step"]), count_of(state["epoch"])
        self.local_step, self.in_epoch = count_of(state["local_step"]), bool(state["in_epoch"])
        self.phase = Phase(state["phase"])

    def end_after(self, steps: int) -> None:
        """Set `max_epoch` so that training ends with the epoch that completes `steps` steps."""
        rest = max(0, self.steps_per_epoch - self.local_step) if self.in_epoch else 0
        self.max_epoch = self.epoch + max(0, -(-(steps - rest) // self.steps_per_epoch))


class RunStateView:
    """Read-only properties over the counters of a run."""

    _state: RunState

    @property
    def global_step(self) -> int:
        """Steps done since the beginning of the run."""
        return self._state.step

    @property
    def epoch(self) -> int:
        """Number of the current epoch, from 1; 0 before the first."""
        return self._state.epoch

    @property
    def local_step(self) -> int:
        """Steps done in the current epoch."""
        return self._state.local_step

    @property
    def in_epoch(self) -> bool:
        """Whether an epoch is in progress. Calls of `trigger_epoch` belong to the epoch."""
        return self._state.in_epoch

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps per epoch."""
        return self._state.steps_per_epoch

    @property
    def max_epoch(self) -> int:
        """Number of the last epoch."""
        return self._state.max_epoch
