"""Training on one device."""

from __future__ import annotations

from towerpack.training._config import TrainConfig
from towerpack.training._trainer import Trainer


class SimpleTrainer(Trainer):
    """Trains one replica of the model, on the device that TensorFlow chooses.

    Args:
        config: What to train; None to leave that to `launch_train_with_config`.
    """

    def __init__(self, config: TrainConfig | None = None) -> None:
        super().__init__(config)
