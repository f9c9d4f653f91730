"""Replicas with separate copies of the variables, which are equal after every step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack._keras.adapter import fold_replicas_into_seeds
from towerpack.inputs import InputSource
from towerpack.nn import find_tower_context
from towerpack.tower import TowerFunction, TowerTrace
from towerpack.training.distribution.base import Compute, Computed, Distribution, joined
from towerpack.training.distribution.replicas import first, like, on_replicas


class Mirrored(Distribution):
    """Replicas under a synchronous strategy of `tf.distribute`.

    Gradients and floats that the model itself updates, such as moving averages of batch
    normalization, are averaged over all replicas. Integers follow the first replica.

    Args:
        strategy: A `tf.distribute.MirroredStrategy` or `MultiWorkerMirroredStrategy`.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self.strategy = strategy
        self.replicas = strategy.num_replicas_in_sync
        self.local_replicas = len(strategy.extended.worker_devices)
        self._moved: list[tf.Variable] = []

    def scope(self) -> AbstractContextManager[Any]:
        return self.strategy.scope()

    def adopt(self, tower: TowerFunction, trace: TowerTrace) -> None:
        """Replace the model's variables by distributed variables.

        Args:
            tower: Tower function of the model.
            trace: First trace of the tower.

        Raises:
            ConfigError: The model trains or updates a variable that cannot be replaced.
        """
        fold_replicas_into_seeds(_index_in_tower)
        moved = set(trace.moved)

        def make(name: str, variable: tf.Variable) -> tf.Variable:
            unsynchronized = {
                "synchronization": tf.VariableSynchronization.ON_READ,
                "aggregation": tf.VariableAggregation.ONLY_FIRST_REPLICA,
            }
            return like(variable, **(unsynchronized if name in moved else {}))

        with self.strategy.scope():
            staying = tower.store.replace(make)
        variables = tower.store.named_variables()
        wrong = [n for n in staying if n in moved or (n in trace.used and variables[n].trainable)]
        if wrong:
            raise ConfigError(
                f"Variables of the model cannot be copied to the replicas: {', '.join(wrong)}.",
                got="a tf.Variable that was created neither by a layer nor inside the tower",
                expected="variables of Keras layers, layers by name or tf.compat.v1.get_variable",
                fix="create the variables in build_graph with tf.compat.v1.get_variable, or use "
                "SyncMultiGPUTrainerParameterServer, whose replicas share the variables",
            )
        self._moved = [variables[name] for name in trace.moved]

    def on_each(self, function: Callable[[], Any]) -> None:
        self.strategy.run(function)

    def on_copies(self, function: Callable[..., Any], *values: Any) -> Any:
        return on_replicas(self.strategy, function, *values)

    def release(self, tower: TowerFunction) -> None:
        def make(name: str, variable: tf.Variable) -> tf.Variable:
            distributed = isinstance(variable, tf.distribute.DistributedValues)
            return like(variable) if distributed else variable

        tower.store.replace(make)

    def replicate(
        self, compute: Compute, source: InputSource, step: tf.Variable
    ) -> tuple[list[tf.Tensor], Computed]:
        batches = [source.get(step) for _ in range(self.local_replicas)]
        steps: dict[int, Computed] = {}

        def compute_replica() -> tuple[list[Any], list[tf.Tensor]]:
            index = _index()
            local = index % self.local_replicas
            steps[local] = computed = compute(index, source.weight(local), *batches[local])
            gradients = [g for group in computed.gradients for g in group if g is not None]
            return [computed.row, *gradients], [v.read_value() for v in self._moved]

        values, moved = self.strategy.run(compute_replica)
        means = self._averaged([*values, *(v for v in moved if first(v).dtype.is_floating)])
        row = first(next(means))
        gradients = [
            [None if g is None else next(means) for g in group] for group in steps[0].gradients
        ]
        moved = [first(next(means) if first(v).dtype.is_floating else v) for v in moved]
        return [tensor for batch in batches for tensor in batch], Computed(
            row=row,
            fetched=joined([steps[local].fetched for local in sorted(steps)]),
            heavy=steps[0].heavy,
            gradients=gradients,
            moved=list(zip(self._moved, moved, strict=True)),
        )

    def _averaged(self, values: list[Any]) -> Iterator[Any]:
        pairs = [(value, value) for value in values]
        return iter(self.strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.MEAN, pairs))


def _index() -> int:
    context: Any = tf.distribute.get_replica_context()
    return int(tf.get_static_value(context.replica_id_in_sync_group))


def _index_in_tower() -> int:
    context = find_tower_context()
    return 0 if context is None else context.index
