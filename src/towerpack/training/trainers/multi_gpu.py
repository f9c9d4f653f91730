"""Training on several devices of one machine, in step."""

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
    """On several devices of this machine; `_over` says how."""

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
                    f"{config!r} is no TrainConfig.",
                    fix=f"write {type(self).__name__}(devices=…), and other arguments by name",
                )
            config, devices = None, config
        distribution = self._over(_checked(devices, type(self).__name__))
        super().__init__(config, step=step, distribution=distribution)

    def _over(self, devices: list[str]) -> Distribution:
        raise NotImplementedError


class SyncMultiGPUTrainer(MultiGPUTrainer):
    """Train one replica on each device; gradients are averaged, then applied to each copy.

    Every replica takes its own batch, so that a step sees batch size × replicas, and keeps its own
    copy of the variables, equal at every step (`tf.distribute.MirroredStrategy`). Moving averages
    of batch normalisation are those of all replicas.

    Args:
        config: What to train; None to leave that to `launch_train_with_config`. What stands here
            instead of a configuration are the devices, as the predecessor had them.
        devices: For example `['GPU:0', 'GPU:1']`, or `[0, 1]`, or 2 for the first two GPUs; None
            for all. "GPU" is the usual case, not a condition: any device that TensorFlow lists will
            do. Without any GPU all logical devices of the CPU train, usually one.
        step: What one step is; None for one cost and one optimizer.

    Raises:
        ConfigError: A device does not exist, or is listed twice.
    """

    def _over(self, devices: list[str]) -> Distribution:
        return _in_step(devices)


SyncMultiGPUTrainerReplicated = SyncMultiGPUTrainer
"""The predecessor's longer name of the same."""


class SyncMultiGPUTrainerParameterServer(MultiGPUTrainer):
    """Train one replica on each device, all over the same variables.

    These lie where TensorFlow puts them (the first GPU if there is one), and are read from there in
    each step: less memory than a copy for each replica, more traffic. Moving averages of batch
    normalisation follow the first replica. Arguments and errors as of `SyncMultiGPUTrainer`.
    """

    def _over(self, devices: list[str]) -> Distribution:
        return SharedVariables(devices)


def synchronous(devices: Devices, trainer: str) -> Distribution:
    """As `SyncMultiGPUTrainer` distributes; for a trainer of this name."""
    return _in_step(_checked(devices, trainer))


def _in_step(devices: list[str]) -> Distribution:
    if len(devices) == 1:
        return SharedVariables(devices)
    return Mirrored(_mirrored_strategy(tuple(devices)))


@functools.cache  # Two of the same devices would share the keys of their collectives.
def _mirrored_strategy(devices: tuple[str, ...]) -> tf.distribute.MirroredStrategy:
    # Collectives on CPUs are no faster, and one that has failed spoils all later ones.
    on_cpu = any(name.startswith("CPU") for name in devices)
    operations = tf.distribute.ReductionToOneDevice() if on_cpu else None
    with quiet_start():
        return tf.distribute.MirroredStrategy(devices, cross_device_ops=operations)


def get_num_gpu() -> int:
    """The number of GPUs that TensorFlow sees."""
    with quiet_start():
        return len(tf.config.list_physical_devices("GPU"))


def _checked(devices: Devices | None, trainer: str) -> list[str]:
    with quiet_start():
        known = [_short(device.name) for device in tf.config.list_logical_devices()]
    if devices == 1 and not get_num_gpu():
        devices = None  # Programs ask for max(get_num_gpu(), 1).
    if isinstance(devices, str):
        raise ConfigError(
            f"devices={devices!r} is no list.",
            expected=f"devices=[{devices!r}], or a number of GPUs",
        )
    if devices is None:
        gpus = [name for name in known if name.startswith("GPU")]
        if not gpus:
            _LOG.warning("%s found no GPU: it trains on %s.", trainer, " and ".join(known))
        return gpus or known
    listed = range(operator.index(devices)) if isinstance(devices, SupportsIndex) else devices
    chosen = [_short(d) if isinstance(d, str) else f"GPU:{operator.index(d)}" for d in listed]
    if not chosen or len(set(chosen)) != len(chosen):
        raise ConfigError(f"devices={devices!r}.", expected="at least one device, each listed once")
    for name in chosen:
        if name not in known:
            kind = name.partition(":")[0]
            kind = kind if kind in ("CPU", "GPU") and f"{kind}:0" in known else "CPU"
            parts = f"[tf.config.LogicalDeviceConfiguration()] * {max(2, len(chosen))}"
            raise ConfigError(
                f"TensorFlow has no device '{name}'.",
                got=f"devices={devices!r}",
                expected=f"some of {', '.join(known)}",
                fix=f"split a {kind} before TensorFlow uses it, and name its parts '{kind}:0', "
                f"'{kind}:1', …: tf.config.set_logical_device_configuration("
                f"tf.config.list_physical_devices('{kind}')[0], {parts})",
            )
    return chosen


def _short(name: str) -> str:
    """`GPU:0` for `/device:GPU:0`, `gpu:0` or `/physical_device:GPU:0`."""
    return ":".join(name.rsplit("/", 1)[-1].split(":")[-2:]).upper()
