"""Copies of variables for checkpoints, and assignment of saved values."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from towerpack._core.errors import NumericsError
from towerpack.checkpoint import compare_names


class Snapshot(NamedTuple):
    """Contents of a checkpoint. `tensors` holds copies of variables by group and name."""

    step: int
    place: tuple[Any, ...]
    tensors: dict[str, dict[str, np.ndarray]]
    state: dict[str, Any]


class HostCopies:
    """Reusable memory for copies of variables. Copying into new memory takes ten times as long."""

    def __init__(self) -> None:
        self._memory: dict[tuple[str, str], np.ndarray] = {}

    def copy(self, group: str, variables: Mapping[str, tf.Variable]) -> dict[str, np.ndarray]:
        return {name: self._copy((group, name), v) for name, v in variables.items()}

    def _copy(self, key: tuple[str, str], variable: tf.Variable) -> np.ndarray:
        value = _view(variable)
        memory = self._memory.get(key)
        if memory is None or memory.shape != value.shape or memory.dtype != value.dtype:
            memory = self._memory[key] = np.empty_like(value)
        np.copyto(memory, value)
        return memory


def _view(variable: tf.Variable) -> np.ndarray:
    """Return the value of a variable as an array, without copying it if possible."""
    if not isinstance(variable, tf.distribute.DistributedValues):
        with suppress(ValueError, TypeError):  # bfloat16 does not support the buffer protocol.
            return np.asarray(memoryview(variable.read_value()))
    return variable.numpy()


def check_no_nan(values: Mapping[str, np.ndarray], step: int) -> None:
    """Raise `NumericsError` if weights are NaN, which a finite cost can hide.

    `tf.nn.relu` returns 0 for NaN on a CPU. A NaN in the input then reaches the first weights
    through their gradient, while the cost stays finite.
    """
    # The sum of an array with NaN is NaN, and needs no temporary array.
    suspects = [n for n, a in values.items() if a.dtype.kind == "f" and np.isnan(a.sum())]
    counts = {name: int(np.isnan(values[name]).sum()) for name in suspects}
    lines = [f"{name}: {count} of {values[name].size}" for name, count in counts.items() if count]
    if lines:
        raise NumericsError(
            f"Weights are NaN at step {step}, although the cost was finite.",
            got=", ".join(lines[:8]) + (", …" if len(lines) > 8 else ""),
            expected="finite weights (the NaN weights were not saved; earlier checkpoints are "
            "unchanged)",
            fix="check the data for NaN (tf.nn.relu can hide a NaN input) and the gradients for "
            "NaN and infinity, then run the same command again",
        )


def assign(
    variables: Mapping[str, tf.Variable], values: Mapping[str, np.ndarray], what: str
) -> None:
    """Assign saved values to variables of the same names. `what` describes the values in errors."""
    compare_names(
        {name: (tuple(v.numpy().shape), v.dtype.name) for name, v in variables.items()},
        {name: (tuple(values[name].shape), values[name].dtype.name) for name in values},
        what=what,
    )
    for name, variable in variables.items():
        variable.assign(values[name])
