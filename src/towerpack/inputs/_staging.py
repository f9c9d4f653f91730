"""Batches that are on their device before the step that takes them begins."""

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
    """Where one component of one replica's batches waits."""

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
    """Copies batches to the device while earlier steps compute.

    Steps get what the other source gives, in its order; what is staged but not consumed when a
    checkpoint is written is read again. Without a GPU there is nothing to copy: unless a device is
    given, batches then go through untouched.

    Args:
        input: Where batches come from. To work ahead it must be ahead itself, as `QueueInput` is.
        nr_stage: For how many steps batches are staged.
        device: Where to; one for all replicas, or one for each. None for the GPUs in their order.

    Raises:
        ConfigError: Arguments that make no sense.
    """

    def __init__(
        self, input: InputSource, nr_stage: int = 1, device: str | Sequence[str] | None = None
    ) -> None:
        super().__init__(input)
        if nr_stage < 1:
            raise ConfigError(f"nr_stage={nr_stage} stages nothing.", expected="1 or more")
        if isinstance(input, TensorInput):
            raise ConfigError(
                "StagingInput cannot stage a TensorInput: its batches are made by the step itself.",
                fix="use the TensorInput as it is; with tf.device(…) inside it says where",
            )
        self.nr_stage = nr_stage
        self.device = device
        self._areas: list[list[_Area]] = []
        self._left: Any = None
        self._gets = 0
        # Steps that are staged, and steps of the last reservation that will stage another one.
        self._staged = 0
        self._puts = 0

    def setup(self, specs: Sequence[tf.TensorSpec], *, seed: int, replicas: int = 1) -> None:
        """Choose the devices. Raise `ConfigError` if there are fewer than replicas."""
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
                "StagingInput has fewer devices than the trainer has replicas.",
                got=f"{list(devices)}",
                expected=f"{replicas}",
                fix="StagingInput(…, device=[one for each replica])",
            )
        number = next(_numbers)
        self._areas = [
            [
                # Strings live in the host's memory.
                _Area(
                    spec,
                    "CPU:0" if spec.dtype == tf.string else device,
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
        """Ask for what is to be staged as well; stage the first steps."""
        if not self._areas:
            return super().reserve(steps, poll)
        # Counted from the last consumed step, so what is staged is among it.
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
        # Each step asks once for each replica, in their order.
        areas = self._areas[self._gets % len(self._areas)]
        self._gets += 1
        batch = [area.take() for area in areas]

        def put() -> tf.Tensor:
            self._put(areas)
            self._left.assign_sub(1, read_value=False)
            return tf.constant(True)

        with tf.control_dependencies(batch):
            tf.cond(self._left > 0, put, lambda: tf.constant(False))
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
