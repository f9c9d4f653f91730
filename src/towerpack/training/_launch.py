"""Training in the predecessor's order of words."""

from __future__ import annotations

from tensorflow.python.eager.context import eager_mode

from towerpack.training._config import TrainConfig
from towerpack.training._trainer import Trainer


def launch_train_with_config(config: TrainConfig, trainer: Trainer | type[Trainer]) -> None:
    """Train: with `SimpleTrainer()` it is `SimpleTrainer(config).train()`.

    Args:
        config: What to train.
        trainer: One that was made without a configuration, or a class of trainers.

    Raises:
        ConfigError: The trainer has a configuration of its own.
    """
    trainer = trainer() if isinstance(trainer, type) else trainer
    trainer.configure(config)
    # Programs of the predecessor do all this inside of `with tf.Graph().as_default()`.
    with eager_mode():
        trainer.train()
