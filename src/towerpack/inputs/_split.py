from __future__ import annotations

import itertools
from collections.abc import Sequence
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
    """Wrapper that splits each batch of a source into parts, one for each replica.

    Other sources read a separate batch for each replica. Here, every step uses one batch of the
    source. A run can therefore be resumed with a different number of replicas or workers. With
    several workers, each worker reads the whole batch and uses only its rows.

    If the rows cannot be divided evenly, the first parts have one row more, and costs, gradients
    and summaries are averaged with the numbers of rows as weights. A replica without a row computes
    the last row again with the weight 0.

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
        self._weights: list[tf.Tensor | None] = []

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
            places = [self._worker * self._replicas + i for i in range(self._replicas)]
            self._parts = [[self._part(tensor, place)[0] for tensor in whole] for place in places]
            self._weights = [self._part(whole[0], place)[1] for place in places]
        return self._parts.pop(0)

    def weight(self, replica: int) -> tf.Tensor | None:
        return self._weights[replica]

    def _part(self, tensor: tf.Tensor, place: int) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Return the rows of a replica, and their weight in averages."""
        number = self._replicas * self._workers
        if number == 1:
            return tensor, None
        rows = tensor.shape[0]
        if rows is not None and rows % number == 0:
            return tf.split(tensor, number)[place], None
        rows = tf.shape(tensor)[0]
        size = rows // number + tf.cast(place < tf.math.floormod(rows, number), tf.int32)
        start = place * (rows // number) + tf.minimum(place, tf.math.floormod(rows, number))
        part = tensor[tf.minimum(start, rows - 1) : start + tf.maximum(size, 1)]
        return part, tf.cast(size * number, tf.float32) / tf.cast(rows, tf.float32)

    def read_step(self, state: Any, steps: int) -> tuple[list[np.ndarray], Origins] | None:
        if (batch := super().read_step(state, steps)) is None:
            return None
        (arrays, origins), number = batch, self._replicas * self._workers
        rows = [row for batch in origins for row in batch]
        if len(rows) == len(arrays[0]):
            origins = [row for (row,) in self._local([_split(rows, number)])]
        parts = self._local([_split(array, number) for array in arrays])
        return [array for part in parts for array in part], origins

    def _local(self, columns: Sequence[Sequence[Any]]) -> list[list[Any]]:
        parts = [list(part) for part in zip(*columns, strict=True)]
        return parts[self._worker * self._replicas :][: self._replicas]


def _split(rows: Any, number: int) -> list[Any]:
    """Split rows into parts whose sizes differ by at most one. An empty part has the last row."""
    size, more = divmod(len(rows), number)
    starts = [i * size + min(i, more) for i in range(number + 1)]
    ranges = itertools.pairwise(starts)
    return [rows[min(a, len(rows) - 1) : max(b, a + 1)] for a, b in ranges]


def _whole(spec: tf.TensorSpec, replicas: int) -> tf.TensorSpec:
    if replicas > 1 and spec.shape.rank == 0:
        raise SpecError(
            f"The input '{spec.name}' must have rows that SplitInput can split, got a scalar.",
            fix="use QueueInput(flow), which reads a separate batch for each replica",
        )
    return spec_of_rows(spec, replicas)
