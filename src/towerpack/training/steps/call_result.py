"""What one call of many steps gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class CallResult:
    """What one call gave.

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
