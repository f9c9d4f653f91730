"""One step on one replica: what is computed, and what is to be minimized."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from towerpack._core.errors import InternalError, LayerError
from towerpack.tower import TowerFunction, TowerResult, TowerTrace
from towerpack.training._optimizer import OptimizerAdapter, adapt


class Minimized(NamedTuple):
    """Gradients for an optimizer, by the names of its variables; None where there is none."""

    optimizer: OptimizerAdapter
    gradients: dict[str, Any]


class StepContext:
    """What a step may use while it is built for one replica.

    Args:
        tower: The model.
        index: Number of the replica.
        total: How many there are.
        step: The global step.
        watched: Variables that `minimize` may be asked for.

    Attributes:
        result: What the tower gave.
        minimized: What is to be applied, in order, once all replicas have computed it.
    """

    def __init__(
        self,
        tower: TowerFunction,
        *,
        index: int,
        total: int,
        step: tf.Variable,
        watched: Sequence[tf.Variable],
    ) -> None:
        self.index = index
        self.total = total
        self.step = step
        self.result: TowerResult | None = None
        self.minimized: list[Minimized] = []
        self._tower = tower
        self._tape = tf.GradientTape(persistent=True, watch_accessed_variables=False)
        self._watched = watched

    def tower(self, *batch: tf.Tensor) -> TowerResult:
        """The model, in training, on a batch of this replica."""
        with self._tape:
            self._tape.watch(self._watched)
            self.result = self._tower(
                *batch, is_training=True, index=self.index, total=self.total, step=self.step
            )
        return self.result

    def minimize(
        self, cost: tf.Tensor, variables: Mapping[str, tf.Variable], optimizer: OptimizerAdapter
    ) -> None:
        """Have an optimizer that was built for these variables move them to lessen the cost.

        Gradients are averaged over the replicas before they are applied.

        Raises:
            LayerError: The cost depends on none of the variables.
        """
        with self._tape:
            loss = optimizer.scale_loss(cost)
        gradients = self._tape.gradient(loss, dict(variables))
        if all(gradient is None for gradient in gradients.values()):
            raise LayerError(
                "The cost depends on no trainable variable.",
                got=f"trainable variables {list(variables)}",
                fix="compute the cost from the layers' outputs, without tf.stop_gradient or NumPy",
            )
        self.minimized.append(Minimized(optimizer, gradients))


class TrainStep(ABC):
    """What one step of training is.

    Attributes:
        optimizers: Built ones, by name, from `build` on; a checkpoint holds each as a group of that
            name, beside `'model'`.
        trained: All variables that are trained, by name, from `build` on.
    """

    optimizers: Mapping[str, OptimizerAdapter]
    trained: Mapping[str, tf.Variable]

    @abstractmethod
    def build(self, tower: TowerFunction, trace: TowerTrace) -> None:
        """Make the optimizers, eagerly, before the step is compiled.

        Args:
            tower: The model.
            trace: A training tower of it, which has made the model's variables.
        """

    @abstractmethod
    def __call__(self, context: StepContext, batch: Sequence[tf.Tensor]) -> None:
        """In the graph, once for each replica: compute, and say what to minimize."""


class SupervisedStep(TrainStep):
    """One cost, one optimizer.

    Args:
        optimizer: Of Keras or `tf.compat.v1.train`.
        scale_loss: Scale the loss dynamically (for float16).

    Raises:
        ConfigError: It is no optimizer.
    """

    def __init__(self, optimizer: Any, *, scale_loss: bool = False) -> None:
        self._optimizer = adapt(optimizer, scale_loss=scale_loss)

    def build(self, tower: TowerFunction, trace: TowerTrace) -> None:
        """Make the optimizer's slots for the trainable variables that the tower reads."""
        used = set(trace.used_names())
        trainable = tower.store.trainable()
        self.trained = {name: v for name, v in trainable.items() if name in used}
        everything = tower.store.named_variables().values()
        self._optimizer.build(self.trained, saved_elsewhere=everything)
        self.optimizers = {"optimizer": self._optimizer}

    def __call__(self, context: StepContext, batch: Sequence[tf.Tensor]) -> None:
        """Minimize the tower's cost."""
        result = context.tower(*batch)
        if result.cost is None:
            raise InternalError("a training tower without a cost went unnoticed")
        context.minimize(result.cost, self.trained, self._optimizer)
