"""Copies of a running training for its checkpoints, and their way back."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from towerpack._core.errors import NumericsError
from towerpack.checkpoint import compare_names


class Snapshot(NamedTuple):
    """What a checkpoint holds.

    Attributes:
        step: The global step.
        place: Global step and where in the epoch; equal places have equal states.
        tensors: Copies of the variables, in groups.
        state: Everything else.
    """

    step: int
    place: tuple[Any, ...]
    tensors: dict[str, dict[str, np.ndarray]]
    state: dict[str, Any]


class HostCopies:
    """Copies of variables, in memory that is used again: fresh pages cost ten times the copying.

    What it has given changes with the next copies.
    """

    def __init__(self) -> None:
        self._memory: dict[tuple[str, str], np.ndarray] = {}

    def of(self, group: str, variables: Mapping[str, tf.Variable]) -> dict[str, np.ndarray]:
        return {name: self._copy((group, name), v) for name, v in variables.items()}

    def _copy(self, key: tuple[str, str], variable: tf.Variable) -> np.ndarray:
        value = _view(variable)
        memory = self._memory.get(key)
        if memory is None or memory.shape != value.shape or memory.dtype != value.dtype:
            memory = self._memory[key] = np.empty_like(value)
        np.copyto(memory, value)
        return memory


def _view(variable: tf.Variable) -> np.ndarray:
    """The value, without a copy where there can be none."""
    if not isinstance(variable, tf.distribute.DistributedValues):
        with suppress(ValueError, TypeError):  # bfloat16 is no buffer.
            return np.asarray(memoryview(variable.read_value()))
    return variable.numpy()


def check_no_nan(values: Mapping[str, np.ndarray], step: int) -> None:
    """Refuse to go on with weights that are NaN, which a finite cost can hide.

    `tf.nn.relu` gives 0 for NaN on a CPU: a NaN among the inputs of a network goes through the
    gradient into its first weights, and the cost stays finite and wrong.
    """
    # A sum is NaN wherever a value is, and takes one pass without a temporary.
    suspects = [n for n, a in values.items() if a.dtype.kind == "f" and np.isnan(a.sum())]
    bad = {name: int(np.isnan(values[name]).sum()) for name in suspects}
    found = [f"{name}: {count} of {values[name].size}" for name, count in bad.items() if count]
    if found:
        raise NumericsError(
            f"Weights are NaN at step {step}, although the cost was finite.",
            got=", ".join(found[:8]) + (", …" if len(found) > 8 else ""),
            expected="numbers; such weights are not saved, earlier checkpoints are untouched",
            fix="look for NaN in the data (a NaN input can pass tf.nn.relu unseen) and for "
            "gradients that are not finite; then run the same command again",
        )


def assign(
    variables: Mapping[str, tf.Variable], values: Mapping[str, np.ndarray], what: str
) -> None:
    """Set variables to saved values, by exact name.

    Args:
        variables: Where to.
        values: From where.
        what: Names the source in the error.
    """
    compare_names(
        {name: (_shape(v), v.dtype.name) for name, v in variables.items()},
        {name: (tuple(values[name].shape), values[name].dtype.name) for name in values},
        what=what,
    )
    for name, variable in variables.items():
        variable.assign(values[name])


def _shape(variable: tf.Variable) -> tuple[int, ...]:
    return tuple(variable.numpy().shape)
