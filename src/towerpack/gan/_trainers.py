"""Trainers of two players: a step of theirs on the usual loop."""

from __future__ import annotations

from towerpack.gan._model import GANModelDesc
from towerpack.gan._step import GANStep, SeparateGANStep
from towerpack.model import as_model
from towerpack.training import SyncMultiGPUTrainer, TrainConfig, Trainer
from towerpack.training._multi import Devices


class GANTrainer(Trainer):
    """Trains a `GANModelDesc` whose players move at the same time.

    Args:
        config: What to train; None to leave that to `launch_train_with_config`.
        devices: None for one replica. Otherwise one on each device, as in `SyncMultiGPUTrainer`:
            a step is one on a batch that is as many times larger.
    """

    def __init__(self, config: TrainConfig | None = None, devices: Devices | None = None) -> None:
        several = None if devices is None else SyncMultiGPUTrainer(devices=devices)
        super().__init__(config, distribution=several and several._distribution)

    def configure(self, config: TrainConfig) -> None:
        """As in `Trainer`; the step goes by the model's scopes."""
        model = as_model(config.model)
        model = model if isinstance(model, GANModelDesc) else GANModelDesc()
        self._step = self._make_step(model.generator_scope, model.discriminator_scope)
        super().configure(config)

    def _make_step(self, generator_scope: str, discriminator_scope: str) -> GANStep:
        return GANStep(generator_scope, discriminator_scope)


class SeparateGANTrainer(GANTrainer):
    """Trains one whose players move at steps of their own; see `SeparateGANStep`.

    Args:
        config: As in `GANTrainer`.
        d_period: Steps from one move of the discriminator to the next.
        g_period: Likewise of the generator.
        devices: As in `GANTrainer`.
    """

    def __init__(
        self,
        config: TrainConfig | None = None,
        d_period: int = 1,
        g_period: int = 1,
        *,
        devices: Devices | None = None,
    ) -> None:
        self._periods = d_period, g_period
        super().__init__(config, devices)

    def _make_step(self, generator_scope: str, discriminator_scope: str) -> GANStep:
        return SeparateGANStep(*self._periods, generator_scope, discriminator_scope)
