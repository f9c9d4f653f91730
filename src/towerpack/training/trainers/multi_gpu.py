"""Synchronous training on several devices of one machine."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import SupportsIndex

import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack._core.logs import get_logger
from towerpack._core.native_log import quiet_start
from towerpack.training.config import TrainConfig
from towerpack.training.distribution.base import Distribution, SharedVariables
from towerpack.training.distribution.mirrored import Mirrored
from towerpack.training.steps.step import TrainStep
from towerpack.training.trainers.base import Trainer

_LOG = get_logger(__name__)

Devices = Sequence[str | int] | int


class MultiGPUTrainer(Trainer):
    """Base class of trainers on several devices of this machine. `_over` places the replicas."""

    def __init__(
        self,
        config: TrainConfig | Devices | None = None,
        devices: Devices | None = None,
        *,
        step: TrainStep | None = None,
    ) -> None:
        if not (config is None or isinstance(config, TrainConfig)):
            if devices is not None:
                raise ConfigError(
                    f"config must be a TrainConfig, got {config!r}.",
                    fix=f"pass arguments by name: {type(self).__name__}(config=…, devices=…)",
                )
            config, devices = None, config
        distribution = self._over(_checked(devices, type(self).__name__))
        super().__init__(config, step=step, distribution=distribution)

    def _over(self, devices: list[str]) -> Distribution:
        raise NotImplementedError


class SyncMultiGPUTrainer(MultiGPUTrainer):
    """Trainer of one replica on each device, with averaged gradients.

    Every replica takes its own batch, so that a step uses batch size × replicas examples. Every
    replica has its own copy of the variables (`tf.distribute.MirroredStrategy`); all copies are
    equal after each step. Moving averages of batch normalization are averaged over all replicas.

    Args:
        config: Configuration; None if `launch_train_with_config` passes it later. Also accepts the
            devices, as in Tensorpack.
        devices: For example `['GPU:0', 'GPU:1']`, `[0, 1]`, or 2 for the first two GPUs. Accepts
            any logical device of TensorFlow. None for all GPUs, or for all logical CPU devices if
            there is no GPU.
        step: Definition of a step; None for one cost and one optimizer.

    Raises:
        ConfigError: A device does not exist or is listed twice.
    """

    def _over(self, devices: list[str]) -> Distribution:
        return _in_step(devices)


SyncMultiGPUTrainerReplicated = SyncMultiGPUTrainer
"""Alias of `SyncMultiGPUTrainer` from Tensorpack."""


class SyncMultiGPUTrainerParameterServer(MultiGPUTrainer):
    """Trainer of one replica on each device; all replicas share one copy of the variables.

    TensorFlow places the variables, on the first GPU if there is one, and replicas read them from
    there in each step. This takes less memory and more traffic than `SyncMultiGPUTrainer`. Moving
    averages of batch normalization follow the first replica.

    Args:
        config, devices, step: See `SyncMultiGPUTrainer`.

    Raises:
        ConfigError: A device does not exist or is listed twice.
    """

    def _over(self, devices: list[str]) -> Distribution:
        return SharedVariables(devices)


def synchronous(devices: Devices, trainer: str) -> Distribution:
    """Return the distribution of `SyncMultiGPUTrainer`, for another trainer."""
    return _in_step(_checked(devices, trainer))


def _in_step(devices: list[str]) -> Distribution:
    if len(devices) == 1:
        return SharedVariables(devices)
    return Mirrored(_mirrored_strategy(tuple(devices)))


@functools.cache  # Two strategies over the same devices would share keys of their collectives.
def _mirrored_strategy(devices: tuple[str, ...]) -> tf.distribute.MirroredStrategy:
    # Collectives on CPUs are not faster, and after one has failed all later ones fail.
    on_cpu = any(name.startswith("CPU") for name in devices)
    operations = tf.distribute.ReductionToOneDevice() if on_cpu else None
    with quiet_start():
        return tf.distribute.MirroredStrategy(devices, cross_device_ops=operations)


def get_num_gpu() -> int:
    """Return the number of GPUs that TensorFlow sees."""
    with quiet_start():
        return len(tf.config.list_physical_devices("GPU"))


def _checked(devices: Devices | None, trainer: str) -> list[str]:
    with quiet_start():
        known = [_short(device.name) for device in tf.config.list_logical_devices()]
    if devices == 1 and not get_num_gpu():
        devices = None  # Programs ask for max(get_num_gpu(), 1).
    if isinstance(devices, str):
        raise ConfigError(
            f"devices must be a list or a number of GPUs, got {devices!r}.",
            fix=f"write devices=[{devices!r}]",
        )
    if devices is None:
        gpus = [name for name in known if name.startswith("GPU")]
        if not gpus:
            _LOG.warning("%s found no GPU and trains on %s.", trainer, " and ".join(known))
        return gpus or known
    listed = range(operator.index(devices)) if isinstance(devices, SupportsIndex) else devices
    chosen = [_short(d) if isinstance(d, str) else f"GPU:{operator.index(d)}" for d in listed]
    if not chosen or len(set(chosen)) != len(chosen):
        raise ConfigError(
            f"devices must list at least one device, and each device once, got {devices!r}."
        )
    for name in chosen:
        if name not in known:
            kind = name.partition(":")[0]
            kind = kind if kind in ("CPU", "GPU") and f"{kind}:0" in known else "CPU"
            parts = f"[tf.config.LogicalDeviceConfiguration()] * {max(2, len(chosen))}"
            raise ConfigError(
                f"TensorFlow has no device '{name}', only {', '.join(known)}.",
                got=f"devices={devices!r}",
                fix=f"split a {kind} before TensorFlow uses it, into '{kind}:0', '{kind}:1', …: "
                "tf.config.set_logical_device_configuration("
                f"tf.config.list_physical_devices('{kind}')[0], {parts})",
            )
    return chosen


def _short(name: str) -> str:
    """Return `GPU:0` for `/device:GPU:0`, `gpu:0` or `/physical_device:GPU:0`."""
    return ":".join(name.rsplit("/", 1)[-1].split(":")[-2:]).upper()
