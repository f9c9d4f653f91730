"""Where the replicas of a step run, and how what they give becomes one step."""

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
    """Tensors of one step.

    Attributes:
        row: Cost and scalar summaries.
        fetched: Outputs that callbacks have asked for.
        heavy: Histograms and images.
        gradients: Of each optimizer that the step uses.
        moved: Variables, and what they are to be set to once the step is applied.
    """

    row: tf.Tensor
    fetched: list[tf.Tensor]
    heavy: list[tf.Tensor]
    gradients: list[list[Any]]
    moved: Sequence[tuple[tf.Variable, tf.Tensor]] = ()


Compute = Callable[..., Computed]


class Distribution(ABC):
    """Runs a step on some replicas.

    Attributes:
        replicas: How many; each takes its own batch.
        local_replicas: Those of them that run in this process.
        team: The processes of the run.
    """

    replicas: int
    local_replicas: int
    team: Team = Team()

    def scope(self) -> AbstractContextManager[Any]:
        """Optimizers and their variables are made in here."""
        return nullcontext()

    def adopt(self, tower: TowerFunction, trace: TowerTrace) -> None:  # noqa: B027 - optional
        """Take over the model's variables, before anything but a first trace has used them."""

    def on_each(self, function: Callable[[], Any]) -> None:
        """Call a function where each of the replicas here runs."""
        function()

    def on_copies(self, function: Callable[..., Any], *values: Any) -> Any:
        """In the graph: call a function on values of `replicate`, on each replica's copies.

        Args:
            function: Computes tensors, and changes nothing.
            *values: Any structures of tensors.
        """
        return function(*values)

    def check_xla(self) -> None:
        """Compile something small where the replicas will run."""
        with self.scope():
            weights = tf.Variable(tf.ones([]))
        compiled = tf.function(lambda: weights * 2.0, jit_compile=True, autograph=False)
        try:
            tf.function(lambda: self.on_each(compiled), autograph=False)()
        except tf.errors.OpError as error:
            raise ConfigError(
                f"xla=True: TensorFlow cannot compile these {self.replicas} replicas.",
                got=str(error).strip().partition("\n")[0],
                fix="xla=False, or one replica",
            ) from error

    def release(self, tower: TowerFunction) -> None:  # noqa: B027 - optional
        """At the end of a run: give the model variables that any trainer can take."""

    @abstractmethod
    def replicate(
        self, compute: Compute, source: InputSource, step: tf.Variable
    ) -> tuple[list[tf.Tensor], Computed]:
        """In the graph: the inputs of the replicas here in a row, and averages over all replicas.

        Args:
            compute: Takes a replica's number and its batch.
            source: Gives each replica its batch.
            step: The global step.
        """


class SharedVariables(Distribution):
    """Replicas on several devices over the same variables, which lie where TensorFlow puts them.

    Args:
        devices: One replica on each; `None` is TensorFlow's choice.
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
        for index, device in enumerate(self.devices):
            batch = source.get(step)
            with tf.device(device):
                steps.append(compute(index, *batch))
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
    """What the replicas give: averages of scalars, everything else along the first axis."""
    return [_joined(list(values)) for values in zip(*fetched, strict=True)]


def _joined(values: list[tf.Tensor]) -> tf.Tensor:
    if values[0].shape.rank == 0:
        return tf.add_n(values) / len(values) if values[0].dtype.is_floating else values[0]
    return tf.concat(values, axis=0)


def _mean(gradients: list[Any]) -> Any:
    if any(g is None for g in gradients):
        return None
    if all(isinstance(g, tf.IndexedSlices) for g in gradients):
        # Optimizers leave rows alone that no replica has read, as they do on one device.
        values = tf.concat([g.values for g in gradients], axis=0)
        indices = tf.concat([g.indices for g in gradients], axis=0)
        share = tf.cast(len(gradients), values.dtype)
        return tf.IndexedSlices(values / share, indices, gradients[0].dense_shape)
    dense = [tf.convert_to_tensor(g) for g in gradients]
    return tf.add_n(dense) / tf.cast(len(dense), dense[0].dtype)
