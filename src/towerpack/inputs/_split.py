from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack._core.errors import SpecError
from towerpack.dataflow import DataFlow
from towerpack.inputs._as_input import as_input
from towerpack.inputs._base import InputSource, Origins
from towerpack.inputs._proxy import ProxyInputSource
from towerpack.inputs.components import spec_of_rows


class SplitInput(ProxyInputSource):
    """Wrapper that splits each batch of a source into equal parts, one for each replica.

    Other sources read a separate batch for each replica. Here, every step uses one batch of the
    source. A run can therefore be resumed with a different number of replicas or workers. With
    several workers, each worker reads the whole batch and uses only its rows.

    Args:
        input: Source, DataFlow or `tf.data.Dataset` of the batches to split.

    Raises:
        SpecError: An input of the model is a scalar. Raised at setup.
    """

    def __init__(self, input: InputSource | DataFlow | tf.data.Dataset) -> None:
        super().__init__(as_input(input))
        self._replicas = self._workers = 1
        self._worker = 0
        self._parts: list[list[tf.Tensor]] = []

    def share(self, workers: int, index: int) -> SplitInput:
        """Select the rows of one worker, and return this object.

        Args:
            workers: Number of workers.
            index: Index of this worker, from 0.
        """
        self._workers, self._worker = workers, index
        return self

    def setup(self, specs: Sequence[tf.TensorSpec], *, seed: int, replicas: int = 1) -> None:
        self._replicas = replicas
        wholes = [_whole(spec, replicas * self._workers) for spec in specs]
        super().setup(wholes, seed=seed, replicas=1)

    def get(self, step: tf.Tensor | tf.Variable) -> list[tf.Tensor]:
        if not self._parts:
            whole = super().get(step)
            number = self._replicas * self._workers
            for tensor in whole:
                tf.debugging.assert_equal(
                    tf.math.floormod(tf.shape(tensor)[0], number),
                    0,
                    f"The number of rows of a batch must be divisible by the {number} replicas",
                )
            self._parts = self._local([tf.split(t, number) for t in whole])
        return self._parts.pop(0)

    def skip(self, steps: int, poll: Callable[[], None], *, replicas: int = 1) -> int:
        return super().skip(steps, poll)

    def arranged(self, arrays: Any, origins: Origins) -> tuple[Any, Origins]:
        number = self._replicas * self._workers
        if any(len(array) % number for array in arrays):
            return None, origins
        parts = self._local([np.split(array, number) for array in arrays])
        rows = [row for batch in origins for row in batch]
        if len(rows) == len(arrays[0]):
            each = len(rows) // number
            splits = [[rows[i * each : (i + 1) * each] for i in range(number)]]
            origins = [split for (split,) in self._local(splits)]
        return [array for part in parts for array in part], origins

    def _local(self, columns: Sequence[Sequence[Any]]) -> list[list[Any]]:
        parts = [list(part) for part in zip(*columns, strict=True)]
        return parts[self._worker * self._replicas :][: self._replicas]


def _whole(spec: tf.TensorSpec, replicas: int) -> tf.TensorSpec:
    if replicas > 1 and spec.shape.rank == 0:
        raise SpecError(
            f"The input '{spec.name}' must have rows that SplitInput can split, got a scalar.",
            fix="use QueueInput(flow), which reads a separate batch for each replica",
        )
    return spec_of_rows(spec, replicas)
