from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack._core.errors import SpecError
from towerpack._core.naming import did_you_mean
from towerpack.inputs._base import InputSource, Origins
from towerpack.inputs._proxy import ProxyInputSource


def remap_input_source(input: InputSource, names: Sequence[str]) -> InputSource:
    """Wrap an input source so that its components are matched to the model's inputs by name.

    Without this function, components are matched to the model's inputs by their order.

    Args:
        input: Source of batches.
        names: For each component of the source, the name of the model's input that gets it.

    Raises:
        SpecError: The names are not exactly those of the model's inputs. Raised at setup.
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
                "The names of remap_input_source must be those of the model's inputs, each once.",
                got=f"{self._names}",
                expected=f"the model's inputs {list(by_name)}, in the order of the data",
                fix=did_you_mean(wrong, by_name) if wrong else "list each input of the model once",
            )
        self._order = [self._names.index(name) for name in by_name]
        self.input.setup([by_name[name] for name in self._names], seed=seed, replicas=replicas)

    def get(self, step: tf.Tensor | tf.Variable) -> list[tf.Tensor]:
        batch = self.input.get(step)
        return [batch[i] for i in self._order]

    def read_step(self, state: Any, steps: int) -> tuple[list[np.ndarray], Origins] | None:
        if (batch := self.input.read_step(state, steps)) is None:
            return None
        arrays, origins = batch
        starts = range(0, len(arrays), len(self._order))
        return [arrays[start + i] for start in starts for i in self._order], origins
