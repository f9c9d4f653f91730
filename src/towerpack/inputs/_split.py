"""Batches that are shared out over the replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack._core.errors import SpecError
from towerpack.dataflow import DataFlow
from towerpack.inputs._as_input import as_input
from towerpack.inputs._base import InputSource
from towerpack.inputs._proxy import ProxyInputSource


class SplitInput(ProxyInputSource):
    """Each batch is that of a whole step: the replicas get equal parts of its rows, in order.

    So the number of replicas and of workers can change when a run is continued: the same data make
    the same steps. (Without it each replica takes a batch of its own, and a step sees as many as
    there are replicas.) Of several workers each reads whole batches, and drops the others' rows.

    Args:
        input: Another source, or a DataFlow or `tf.data.Dataset` of whole batches.

    Raises:
        SpecError: At setup: an input of the model is a scalar, or its number of rows is fixed.
    """

    def __init__(self, input: InputSource | DataFlow | tf.data.Dataset) -> None:
        super().__init__(as_input(input))
        self._replicas = self._workers = 1
        self._worker = 0
        self._parts: list[list[tf.Tensor]] = []

    def share(self, workers: int, index: int) -> SplitInput:
        """Be that of one of several workers: its replicas get their rows of each batch."""
        self._workers, self._worker = workers, index
        return self

    def setup(self, specs: Sequence[tf.TensorSpec], *, seed: int, replicas: int = 1) -> None:
        self._replicas = replicas
        wholes = [_whole(spec, replicas * self._workers) for spec in specs]
        super().setup(wholes, seed=seed, replicas=1)

    def get(self, step: tf.Tensor | tf.Variable) -> list[tf.Tensor]:
        if not self._parts:
            whole = super().get(step)
            parts = self._replicas * self._workers
            for tensor in whole:
                tf.debugging.assert_equal(
                    tf.math.floormod(tf.shape(tensor)[0], parts),
                    0,
                    f"SplitInput cannot share out the rows of a batch evenly over {parts} replicas",
                )
            self._parts = self._own([tf.split(t, self._replicas * self._workers) for t in whole])
        return self._parts.pop(0)

    def read_again(self, steps: int) -> list[np.ndarray] | None:
        whole = super().read_again(steps)
        number = self._replicas * self._workers
        if whole is None or any(len(array) % number for array in whole):
            return None
        parts = self._own([np.split(array, number) for array in whole])
        return [array for part in parts for array in part]

    def _own(self, columns: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """Of the parts of each input: those of the replicas here, each with all inputs."""
        parts = [list(part) for part in zip(*columns, strict=True)]
        return parts[self._worker * self._replicas :][: self._replicas]


def _whole(spec: tf.TensorSpec, replicas: int) -> tf.TensorSpec:
    if replicas == 1 or spec.shape.rank is None:
        return spec
    if spec.shape.rank == 0:
        raise SpecError(
            f"SplitInput cannot share out the input '{spec.name}', which is a scalar.",
            fix="give each replica its own batches: data=QueueInput(flow)",
        )
    rows = spec.shape[0]
    shape = [None if rows is None else rows * replicas, *spec.shape[1:]]
    return tf.TensorSpec(shape, spec.dtype, spec.name)
