"""Components of a source under the names of the model's inputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from towerpack._core.errors import SpecError
from towerpack._core.naming import did_you_mean
from towerpack.inputs._base import InputSource
from towerpack.inputs._proxy import ProxyInputSource


def remap_input_source(input: InputSource, names: Sequence[str]) -> InputSource:
    """Say which of the model's inputs each component of a source is for.

    Without it, components are taken in the order of the model's inputs.

    Args:
        input: A source of batches.
        names: Of the model's inputs, in the order of the source's components.

    Raises:
        SpecError: An input of the model is not among the names, or a name is none of its inputs;
            raised when training begins.
    """
    return _RemappedInput(input, names)


class _RemappedInput(ProxyInputSource):
    def __init__(self, input: InputSource, names: Sequence[str]) -> None:
        super().__init__(input)
        self._names = list(names)
        self._order: list[int] = []

    def setup(self, specs: Sequence[tf.TensorSpec], *, seed: int, replicas: int = 1) -> None:
        by_name = {str(spec.name): spec for spec in specs}
        if sorted(self._names) != sorted(by_name):
            wrong = next((name for name in self._names if name not in by_name), None)
            raise SpecError(
                "remap_input_source does not name each input of the model once.",
                got=f"{self._names}",
                expected=f"the model's inputs {list(by_name)}, in the order of the data",
                fix=None if wrong is None else did_you_mean(wrong, by_name),
            )
        self._order = [self._names.index(name) for name in by_name]
        self.input.setup([by_name[name] for name in self._names], seed=seed, replicas=replicas)

    def get(self, step: tf.Tensor | tf.Variable) -> list[tf.Tensor]:
        batch = self.input.get(step)
        return [batch[i] for i in self._order]

    def read_again(self, steps: int) -> list[np.ndarray] | None:
        row = self.input.read_again(steps)
        if row is None:
            return None
        starts = range(0, len(row), len(self._order))
        return [row[start + i] for start in starts for i in self._order]
