"""Conversion of datapoints to the inputs of a part of the model, for evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack._core.errors import SpecError
from towerpack.inputs._check import SpecChecker


@dataclass(frozen=True)
class FedBatch:
    """Input arrays of one batch in the order of a function's arguments, and the number of rows."""

    inputs: list[np.ndarray]
    size: int


class Feeder:
    """Converter of datapoints to the arrays that a function needs: those of the inputs `wanted`."""

    def __init__(
        self, specs: Sequence[tf.TensorSpec], wanted: Sequence[str], pipeline: str
    ) -> None:
        by_name = {str(spec.name): spec for spec in specs}
        self._wanted = list(wanted)
        self._all = list(by_name)
        self._batched = [n for n in self._wanted if by_name[n].shape[:1] == [None]]
        self._check_all = SpecChecker(specs, pipeline)
        self._check_wanted = SpecChecker([by_name[n] for n in self._wanted], pipeline)
        self._pipeline = pipeline

    def __call__(self, datapoint: Any, position: int) -> FedBatch:
        """Return the arrays of the needed inputs, and the number of rows of the first component."""
        if isinstance(datapoint, Mapping):
            arrays = self._check_wanted(dict(datapoint), position)
            named = dict(zip(self._wanted, arrays, strict=True))
            first = datapoint[next((n for n in self._all if n in datapoint), self._all[0])]
        else:
            arrays = self._check_all(datapoint, position)
            named = dict(zip(self._all, arrays, strict=True))
            first = arrays[0]
        size = self._rows(first, position)
        for name in self._batched:
            if len(named[name]) != size:
                raise SpecError(
                    f"'{name}' of datapoint {position} must have as many rows as the first "
                    f"component ({size}), got {len(named[name])}.",
                    pipeline=self._pipeline,
                )
        return FedBatch([named[name] for name in self._wanted], size)

    def _rows(self, first: Any, position: int) -> int:
        shape = np.shape(first)
        if not shape:
            raise SpecError(
                f"The first component of datapoint {position} must be a batch, got a scalar.",
                fix="wrap the evaluation's flow in BatchData(flow, batch_size)",
                pipeline=self._pipeline,
            )
        return shape[0]
