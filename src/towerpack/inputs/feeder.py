"""Datapoints of an evaluation, on their way to a part of the model."""

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
    """Arrays in the order of a cut tower's arguments, and the number of datapoints in them."""

    inputs: list[np.ndarray]
    size: int


class Feeder:
    """Turn datapoints into the arrays that a cut tower wants.

    Args:
        specs: The model's inputs.
        wanted: Names of those that are fed, in order.
        pipeline: Where the datapoints come from, for messages.
    """

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
        """The wanted components, and how many rows the first component has.

        Raises:
            SpecError: The datapoint does not fit, or has no rows.
        """
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
                    f"Datapoint {position}: '{name}' has not as many rows as the first component.",
                    got=f"{len(named[name])} rows",
                    expected=f"{size}",
                    pipeline=self._pipeline,
                )
        return FedBatch([named[name] for name in self._wanted], size)

    def _rows(self, first: Any, position: int) -> int:
        shape = np.shape(first)
        if not shape:
            raise SpecError(
                f"Datapoint {position}: the first component has no rows to count.",
                got="a scalar",
                expected="a batch",
                fix="put the evaluation's data through BatchData",
                pipeline=self._pipeline,
            )
        return shape[0]
