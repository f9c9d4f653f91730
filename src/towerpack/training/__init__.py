"""Trainers, the training loop, distribution, optimizers, gradient processors and run directories.

Names are imported on first use, so that names that do not need TensorFlow do not import it.
"""

from __future__ import annotations

from typing import Any

from towerpack._core.extras import require
from towerpack._core.lazy import lazy

_load, __dir__, __all__ = lazy(__name__)
_WITHOUT_TENSORFLOW = {
    "OnExisting",
    "RunDir",
    "SmartInit",
    "Spike",
    "StopTraining",
    "TrainConfig",
    "default_run_dir",
    "spikes",
}


def __getattr__(name: str) -> Any:
    if name in __all__ and name not in _WITHOUT_TENSORFLOW:
        require("tensorflow", extra="tf", needed_for=f"{__name__}.{name}")
    return _load(name)
