"""Placement of a step's replicas on devices, and averaging of their results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack.inputs import InputSource
from towerpack.tower import TowerFunction, TowerTrace
from towerpack.training.distribution.team import Team


class Computed(NamedTuple):
    """Tensors of one step: cost and scalar summaries (`row`), outputs, histograms and images.

    `gradients` has a list for each optimizer. `moved` has variables with the values to assign if
    the step is applied.
    """

    row: tf.Tensor
    fetched: list[tf.Tensor]
    heavy: list[tf.Tensor]
    gradients: list[list[Any]]
    moved: Sequence[tuple[tf.Variable, tf.Tensor]] = ()


Compute = Callable[..., Computed]


class Distribution(ABC):
    """Base class of distributions, which run a step on several replicas.

    Attributes:
        replicas: Number of replicas; each takes its own batch.
        local_replicas: Number of replicas in this process.
        team: Processes of the run.
    """

    replicas: int
    local_replicas: int
    team: Team = Team()

    def scope(self) -> AbstractContextManager[Any]:
        """Return a context manager in which optimizers and their variables are created."""
        return nullcontext()

    def adopt(self, tower: TowerFunction, trace: TowerTrace) -> None:  # noqa: B027 - optional
        """Place the model's variables, before anything but the first trace uses them.

        Args:
            tower: Tower function of the model.
            trace: First trace of the tower.
        """

    def on_each(self, function: Callable[[], Any]) -> None:
        """Call a function on the device of each replica of this process."""
        function()

    def on_copies(self, function: Callable[..., Any], *values: Any) -> Any:
        """Call a function on each replica's copies of values from `replicate`, in the graph.

        Args:
            function: Computes tensors without changing variables.
            *values: Structures of tensors.
        """
        return function(*values)

    def check_xla(self) -> None:
        """Raise `ConfigError` if TensorFlow cannot compile functions on the replicas' devices."""
        with self.scope():
            weights = tf.Variable(tf.ones([]))
        compiled = tf.function(lambda: weights * 2.0, jit_compile=True, autograph=False)
        try:
            tf.function(lambda: self.on_each(compiled), autograph=False)()
        except tf.errors.OpError as error:
            raise ConfigError(
                f"TensorFlow cannot compile the step for {self.replicas} replicas with xla=True.",
                got=str(error).strip().partition("\n")[0],
                fix="set xla=False, or train with one replica",
            ) from error

    def release(self, tower: TowerFunction) -> None:  # noqa: B027 - optional
        """Restore plain variables at the end of a run, so that other trainers can use them.

        Args:
            tower: Tower function of the model.
        """

    @abstractmethod
    def replicate(
        self, compute: Compute, source: InputSource, step: tf.Variable
    ) -> tuple[list[tf.Tensor], Computed]:
        """Compute a step on all replicas, in the graph.

        Args:
            compute: Takes a replica's index, its weight in averages or None, and its batch.
            source: Source of the batches.
            step: Global step.

        Returns:
            The inputs of all replicas in this process, and averages over all replicas.
        """


class SharedVariables(Distribution):
    """Replicas on several devices that share one copy of the variables, placed by TensorFlow.

    Args:
        devices: Device of each replica; None for TensorFlow's default device.
    """

    def __init__(self, devices: Sequence[str | None] = (None,)) -> None:
        self.devices = list(devices)
        self.replicas = self.local_replicas = len(self.devices)

    def on_each(self, function: Callable[[], Any]) -> None:
        for device in self.devices:
            with tf.device(device):
                function()

    def replicate(
        self, compute: Compute, source: InputSource, step: tf.Variable
    ) -> tuple[list[tf.Tensor], Computed]:
        inputs: list[tf.Tensor] = []
        steps: list[Computed] = []
        batches = [source.get(step) for _ in self.devices]
        for index, (device, batch) in enumerate(zip(self.devices, batches, strict=True)):
            with tf.device(device):
                steps.append(compute(index, source.weight(index), *batch))
            inputs.extend(batch)
        return inputs, steps[0] if len(steps) == 1 else _averaged(steps)


def _averaged(steps: list[Computed]) -> Computed:
    return Computed(
        row=tf.reduce_mean([step.row for step in steps], axis=0),
        fetched=joined([step.fetched for step in steps]),
        heavy=steps[0].heavy,
        gradients=[
            [_mean(list(column)) for column in zip(*replicas, strict=True)]
            for replicas in zip(*(step.gradients for step in steps), strict=True)
        ],
    )


def joined(fetched: Sequence[Sequence[tf.Tensor]]) -> list[tf.Tensor]:
    """Average scalar outputs over replicas, and concatenate others along the first axis."""
    return [_joined(list(values)) for values in zip(*fetched, strict=True)]


def _joined(values: list[tf.Tensor]) -> tf.Tensor:
    if values[0].shape.rank == 0:
        return tf.add_n(values) / len(values) if values[0].dtype.is_floating else values[0]
    return tf.concat(values, axis=0)


def _mean(gradients: list[Any]) -> Any:
    if any(g is None for g in gradients):
        return None
    if all(isinstance(g, tf.IndexedSlices) for g in gradients):
        # Stay sparse, so that optimizers skip the rows that no replica has read.
        values = tf.concat([g.values for g in gradients], axis=0)
        indices = tf.concat([g.indices for g in gradients], axis=0)
        share = tf.cast(len(gradients), values.dtype)
        return tf.IndexedSlices(values / share, indices, gradients[0].dense_shape)
    dense = [tf.convert_to_tensor(g) for g in gradients]
    return tf.add_n(dense) / tf.cast(len(dense), dense[0].dtype)
