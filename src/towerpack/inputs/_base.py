"""How data enters the device: the contract between a source of batches and the training loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack._core.arguments import KeepsArguments


class InputSource(KeepsArguments, ABC):
    """Give each step of each replica its own batch.

    The loop asks, on the host, how many steps have their inputs ready (`reserve`); then runs that
    many in one call, in which the graph takes batches by `get`; then says how many were consumed.
    So TensorFlow never waits for data: a signal, an error in a feeding thread and the end of the
    data are all noticed on the host, between two calls.
    """

    @abstractmethod
    def setup(self, specs: Sequence[tf.TensorSpec], *, seed: int, replicas: int = 1) -> None:
        """Learn the model's input specs. Called once, before anything is traced.

        Args:
            specs: The model's inputs.
            seed: The run's seed.
            replicas: How many batches each step takes, one for each replica.
        """

    @abstractmethod
    def get(self, step: tf.Tensor | tf.Variable) -> list[tf.Tensor]:
        """In the graph: the tensors of one batch, in the order of the specs.

        Args:
            step: The global step, int64 scalar.
        """

    def start(self, state: Any = None) -> None:
        """Begin, from where `state` was taken."""

    def reserve(self, steps: int, poll: Callable[[], None]) -> int:
        """Wait until inputs are ready, and say for how many steps, at most `steps`.

        Args:
            steps: What the loop would like to run in one call.
            poll: To be called several times a second while waiting; may raise.

        Returns:
            At least 1; 0 at the end of the data.

        Raises:
            Exception: Whatever went wrong where the data come from.
        """
        return steps

    def consumed(self, steps: int) -> None:
        """Steps of the last reservation that were really run."""

    def read_again(self, steps: int) -> list[np.ndarray] | None:
        """The batches of one step that has failed, of all replicas in a row.

        Args:
            steps: Steps between the last consumed one and the failed one.

        Returns:
            None where they cannot be had once more.

        Raises:
            Exception: Whatever went wrong where the data come from.
        """
        return None

    def state(self) -> Any:
        """Where the last *consumed* batch stands; None for sources without a position."""
        return None

    def settings(self) -> Mapping[str, Any]:
        """What decides how training goes on, by whole names: a continued run compares."""
        return {}

    def steps_left(self, state: Any) -> int | None:
        """Steps from `state` to the end, where the source knows it; None: the epochs decide."""
        return None

    def stop(self) -> None:
        """End threads. Called once, however training ended; `start` may follow."""

    def fill(self) -> float | None:
        """Batches that wait to be consumed, as a share of what can wait. None if nothing can.

        Near 1 the model is the bottleneck, near 0 the data.
        """
        return None

    def __len__(self) -> int:
        """Batches of one pass over the data.

        Raises:
            TypeError: Unknown.
        """
        raise TypeError(f"{type(self).__name__} has no known length")
