from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack.inputs._base import InputSource, Origins


class ProxyInputSource(InputSource):
    """Wrapper that forwards every call to another source. Subclasses override methods.

    Args:
        input: Source to wrap.

    Raises:
        ConfigError: `input` is not an `InputSource`.
    """

    def __init__(self, input: InputSource) -> None:
        if not isinstance(input, InputSource):
            raise ConfigError(
                f"{type(self).__name__} needs an InputSource, got {type(input).__name__}.",
                fix=f"write {type(self).__name__}(QueueInput(flow), …)",
            )
        self.input = input

    @property
    def dataflow(self) -> Any:
        """DataFlow that the data come from, or None."""
        return getattr(self.input, "dataflow", None)

    def setup(self, specs: Sequence[tf.TensorSpec], *, seed: int, replicas: int = 1) -> None:
        self.input.setup(specs, seed=seed, replicas=replicas)

    def get(self, step: tf.Tensor | tf.Variable) -> list[tf.Tensor]:
        return self.input.get(step)

    def weight(self, replica: int) -> tf.Tensor | None:
        return self.input.weight(replica)

    def start(self, state: Any = None) -> None:
        self.input.start(state)

    def reserve(self, steps: int, poll: Callable[[], None]) -> int:
        return self.input.reserve(steps, poll)

    def consumed(self, steps: int) -> None:
        self.input.consumed(steps)

    def read_step(self, state: Any, steps: int) -> tuple[list[np.ndarray], Origins] | None:
        return self.input.read_step(state, steps)

    def state(self) -> Any:
        return self.input.state()

    def settings(self) -> Mapping[str, Any]:
        return self.input.settings()

    def steps_left(self, state: Any) -> int | None:
        return self.input.steps_left(state)

    def stop(self) -> None:
        self.input.stop()

    def fill(self) -> float | None:
        return self.input.fill()

    def __len__(self) -> int:
        return len(self.input)
