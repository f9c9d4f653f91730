"""Interface of objects that run many steps in one call, and the result of such a call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True)
class CallResult:
    """Result of one call.

    Attributes:
        steps: Number of applied steps.
        outputs: Outputs by name: an array over steps, or a list of arrays of different shapes.
        summaries: Scalar summaries by name, of shape [steps].
        heavy: Values for histograms and images of the last step; empty unless `run_heavy` ran.
        nonfinite: Inputs of the step that was not applied because its cost was not finite.
    """

    steps: int
    outputs: dict[str, Any]
    summaries: dict[str, np.ndarray]
    heavy: dict[str, np.ndarray]
    nonfinite: list[np.ndarray] | None


class StepRunner(Protocol):
    """Protocol of objects that run steps for the loop."""

    budget_s: float
    """Duration in seconds that a call should have."""

    @property
    def one_step_only(self) -> bool:
        """Whether a call is limited to one step."""
        ...

    @property
    def has_heavy(self) -> bool:
        """Whether the model has histograms or images, for the last step of each epoch."""
        ...

    def compile(self) -> None:
        """Trace the functions that the loop calls, so that errors occur before the first step."""

    def run(self, steps: int, *, after: int) -> CallResult:
        """Run `steps` steps after the global step `after`, or fewer if a cost is not finite."""
        ...

    def run_heavy(self, *, after: int) -> CallResult:
        """Run one step with histograms and images."""
        ...
