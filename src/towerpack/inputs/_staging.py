from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack.inputs._base import InputSource
from towerpack.inputs._proxy import ProxyInputSource
from towerpack.inputs._simple import TensorInput

# TensorFlow keeps staging areas by name, for as long as the process lives.
_numbers = itertools.count()


class _Area(NamedTuple):
    """Buffer on a device that stores one component of one replica's batches."""

    spec: tf.TensorSpec
    device: str
    name: str

    def put(self, tensor: tf.Tensor) -> None:
        with tf.device(self.device):
            tf.raw_ops.Stage(values=[tensor], shared_name=self.name)

    def take(self) -> tf.Tensor:
        with tf.device(self.device):
            (tensor,) = tf.raw_ops.Unstage(dtypes=[self.spec.dtype], shared_name=self.name)
        tensor.set_shape(self.spec.shape)
        return tensor

    def clear(self) -> None:
        with tf.device(self.device):
            tf.raw_ops.StageClear(dtypes=[self.spec.dtype], shared_name=self.name)


class StagingInput(ProxyInputSource):
    """Wrapper that copies the batches of the next steps to the devices during the current step.

    Batches keep their order. A resumed run reads batches again that were copied but not used. If
    there is no GPU and `device` is None, nothing is copied.

    Args:
        input: Source of the batches. It must read ahead, as `QueueInput` does.
        nr_stage: Number of steps whose batches are copied ahead.
        device: Device of all replicas, or a list with one for each. None uses the GPUs in order.

    Raises:
        ConfigError: `nr_stage` is less than 1, `input` is a `TensorInput`, or (at setup) there are
            fewer devices than replicas.
    """

    def __init__(
        self, input: InputSource, nr_stage: int = 1, device: str | Sequence[str] | None = None
    ) -> None:
        super().__init__(input)
        if nr_stage < 1:
            raise ConfigError(f"nr_stage must be at least 1, got {nr_stage}.")
        if isinstance(input, TensorInput):
            raise ConfigError(
                "The input of StagingInput must not be a TensorInput, whose batches are computed "
                "in the step itself.",
                fix="use the TensorInput alone; choose its device with tf.device(…) inside it",
            )
        self.nr_stage = nr_stage
        self.device = device
        self._areas: list[list[_Area]] = []
        self._left: Any = None
        self._gets = 0
        # Number of staged steps, and of steps of the last reservation that will stage another.
        self._staged = 0
        self._puts = 0

    def setup(self, specs: Sequence[tf.TensorSpec], *, seed: int, replicas: int = 1) -> None:
        super().setup(specs, seed=seed, replicas=replicas)
        devices = self.device
        if devices is None:
            devices = [device.name for device in tf.config.list_logical_devices("GPU")]
            if not devices:
                return
        if isinstance(devices, str):
            devices = [devices] * replicas
        if len(devices) < replicas:
            raise ConfigError(
                "StagingInput must have at least one device for each replica of the trainer.",
                got=f"{list(devices)}",
                expected=f"{replicas} devices",
                fix="pass one device for each replica: StagingInput(…, device=['GPU:0', …])",
            )
        number = next(_numbers)
        self._areas = [
            [
                # Strings are always in the host's memory. Most operations on int32 read it there.
                _Area(
                    spec,
                    "CPU:0" if spec.dtype in (tf.string, tf.int32) else device,
                    f"StagingInput{number}_{replica}_{i}",
                )
                for i, spec in enumerate(specs)
            ]
            for replica, device in enumerate(devices[:replicas])
        ]
        with tf.device("CPU:0"):
            self._left = tf.Variable(tf.constant(0, tf.int64), trainable=False, name="left")
        # Called in this way TensorFlow does not warn that many sources trace the same function.
        self._put_step = tf.function(self._put_all, autograph=False).get_concrete_function()

    def reserve(self, steps: int, poll: Callable[[], None]) -> int:
        if not self._areas:
            return super().reserve(steps, poll)
        # A source counts from the last consumed step, so this includes the staged steps.
        ready = super().reserve(steps + self.nr_stage, poll)
        while self._staged < min(self.nr_stage, ready):
            self._put_step()
            self._staged += 1
        self._puts = max(0, ready - self._staged)
        self._left.assign(self._puts * len(self._areas))
        return min(steps, ready)

    def get(self, step: tf.Tensor | tf.Variable) -> list[tf.Tensor]:
        if not self._areas:
            return super().get(step)
        # Each step calls this once for each replica, in order.
        areas = self._areas[self._gets % len(self._areas)]
        self._gets += 1
        batch = [area.take() for area in areas]

        def put() -> tf.Tensor:
            self._put(areas)
            self._left.assign_sub(1, read_value=False)
            return tf.constant(True)

        with tf.control_dependencies(batch):
            with tf.device("CPU:0"):
                more = self._left > 0
            tf.cond(more, put, lambda: tf.constant(False))
        return batch

    def consumed(self, steps: int) -> None:
        super().consumed(steps)
        puts = min(steps, self._puts)
        self._puts -= puts
        self._staged -= steps - puts

    def stop(self) -> None:
        super().stop()
        self._staged = self._puts = 0
        for area in itertools.chain.from_iterable(self._areas):
            area.clear()

    def _put(self, areas: list[_Area]) -> None:
        batch = self.input.get(tf.constant(0, tf.int64))
        for area, tensor in zip(areas, batch, strict=True):
            area.put(tensor)

    def _put_all(self) -> None:
        for areas in self._areas:
            self._put(areas)
