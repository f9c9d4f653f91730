"""Training on one device."""

from __future__ import annotations

from towerpack.training._config import TrainConfig
from towerpack.training._step import TrainStep
from towerpack.training._trainer import Trainer


class SimpleTrainer(Trainer):
    """Train one replica of the model, on the device that TensorFlow chooses.

    Args:
        config: What to train; None to leave that to `launch_train_with_config`.
        step: What one step is; None for one cost and one optimizer.
    """

    def __init__(self, config: TrainConfig | None = None, *, step: TrainStep | None = None) -> None:
        super().__init__(config, step=step)
