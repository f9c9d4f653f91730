"""Training on several devices of one machine, in step."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import SupportsIndex

import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack._core.logs import get_logger
from towerpack._core.naming import did_you_mean
from towerpack._core.native_log import quiet_start
from towerpack.training._config import TrainConfig
from towerpack.training._distribution import SharedVariables
from towerpack.training._step import TrainStep
from towerpack.training._trainer import Trainer

_LOG = get_logger(__name__)

Devices = Sequence[str | int] | int


class SyncMultiGPUTrainer(Trainer):
    """Trains one replica on each device; gradients are averaged, then applied once.

    Every replica takes its own batch, so that a step sees batch size × replicas. The variables are
    shared and lie where TensorFlow puts them (the first GPU if there is one). Moving averages of
    batch normalisation follow the first replica.

    Args:
        config: What to train; None to leave that to `launch_train_with_config`. What stands here
            instead of a configuration are the devices, as the predecessor had them.
        devices: For example `['GPU:0', 'GPU:1']`, or `[0, 1]`, or 2 for the first two GPUs; None
            for all. "GPU" is the usual case, not a condition: any device that TensorFlow lists will
            do. Without any GPU the CPU trains alone.
        step: What one step is; None for one cost and one optimizer.

    Raises:
        ConfigError: A device does not exist, or is listed twice.
    """

    def __init__(
        self,
        config: TrainConfig | Devices | None = None,
        devices: Devices | None = None,
        *,
        step: TrainStep | None = None,
    ) -> None:
        if not (config is None or isinstance(config, TrainConfig)):
            if devices is not None:
                raise ConfigError(f"{config!r} is no TrainConfig.")
            config, devices = None, config
        if devices == 1 and not get_num_gpu():
            devices = None  # Programs ask for max(get_num_gpu(), 1).
        super().__init__(config, step=step, distribution=SharedVariables(_checked(devices)))


SyncMultiGPUTrainerParameterServer = SyncMultiGPUTrainer
"""The predecessor's longer name of the same; the variables lie where TensorFlow puts them."""


def get_num_gpu() -> int:
    """The number of GPUs that TensorFlow sees."""
    with quiet_start():
        return len(tf.config.list_physical_devices("GPU"))


def _checked(devices: Devices | None) -> list[str]:
    with quiet_start():
        known = [_short(device.name) for device in tf.config.list_logical_devices()]
    if devices is None:
        gpus = [name for name in known if name.startswith("GPU")]
        if not gpus:
            _LOG.warning("SyncMultiGPUTrainer found no GPU: it trains on the CPU alone.")
        return gpus or ["CPU:0"]
    listed = range(operator.index(devices)) if isinstance(devices, SupportsIndex) else devices
    chosen = [_short(d) if isinstance(d, str) else f"GPU:{operator.index(d)}" for d in listed]
    if not chosen or len(set(chosen)) != len(chosen):
        raise ConfigError(f"devices={devices!r}.", expected="at least one device, each listed once")
    for name in chosen:
        if name not in known:
            raise ConfigError(
                f"TensorFlow has no device '{name}'.",
                got=f"devices={devices!r}",
                fix=did_you_mean(name, known),
            )
    return chosen


def _short(name: str) -> str:
    """`GPU:0` for `/device:GPU:0`, `gpu:0` or `/physical_device:GPU:0`."""
    return ":".join(name.rsplit("/", 1)[-1].split(":")[-2:]).upper()
