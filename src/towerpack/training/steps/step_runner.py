"""What runs steps for the loop, many in one call, and the result of such a call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True)
class CallResult:
    """Result of one call.

    Attributes:
        steps: Steps that were applied.
        outputs: By name, then by step: an array, or a list of arrays that may differ in shape.
        summaries: Scalar summaries by name, [steps].
        heavy: Histograms and images of the last step, if they were asked for.
        nonfinite: The inputs of the step that was not applied because its cost was not finite.
    """

    steps: int
    outputs: dict[str, Any]
    summaries: dict[str, np.ndarray]
    heavy: dict[str, np.ndarray]
    nonfinite: list[np.ndarray] | None


class StepRunner(Protocol):
    """Runs steps for the loop.

    Attributes:
        budget_s: Seconds that a call should last.
    """

    budget_s: float

    @property
    def one_step_only(self) -> bool:
        """Whether a call is limited to one step."""
        ...

    @property
    def has_heavy(self) -> bool:
        """Whether the model has histograms or images, for the last step of each epoch."""
        ...

    def compile(self) -> None:
        """Trace the functions that the loop calls, so that mistakes show before the first step."""
        ...

    def run(self, steps: int, *, after: int) -> CallResult:
        """Run steps; fewer if a cost was not finite.

        Args:
            steps: Number of steps.
            after: The global step before them.
        """
        ...

    def run_heavy(self, *, after: int) -> CallResult:
        """Run one step, with the summaries that are too expensive for every step."""
        ...
