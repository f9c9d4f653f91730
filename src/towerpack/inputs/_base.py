from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack._core.arguments import KeepsArguments
from towerpack.dataflow import Origin

Origins = list[list[Origin]]
"""Source rows of the batch of each replica."""


class InputSource(KeepsArguments, ABC):
    """Source of batches for the training loop. Each replica takes one batch per step.

    The loop calls `reserve` on the host to learn how many steps have their inputs ready. It runs
    these steps in one call, in which the graph takes batches with `get`, and then calls `consumed`.
    TensorFlow never waits for data, so signals, errors in feeding threads and the end of the data
    are noticed between two calls.
    """

    @abstractmethod
    def setup(self, specs: Sequence[tf.TensorSpec], *, seed: int, replicas: int = 1) -> None:
        """Prepare for the model's inputs. Called once, before the training step is traced.

        Args:
            specs: Specs of the model's inputs.
            seed: Seed of the run.
            replicas: Number of replicas, which is the number of batches per step.
        """

    @abstractmethod
    def get(self, step: tf.Tensor | tf.Variable) -> list[tf.Tensor]:
        """Return the tensors of one batch, in the order of the specs. Called in the graph.

        Args:
            step: Global step, an int64 scalar.
        """

    def weight(self, replica: int) -> tf.Tensor | None:
        """Return the weight of a replica's last batch in averages over all replicas.

        Called in the graph, after `get` for all replicas of this process. None stands for 1.

        Args:
            replica: Index of the replica in this process.
        """
        return None

    def start(self, state: Any = None) -> None:
        """Start reading.

        Args:
            state: Position to continue from, as returned by `state`. None starts at the beginning.
        """

    def reserve(self, steps: int, poll: Callable[[], None]) -> int:
        """Wait until batches are ready. Return the number of steps for which they suffice.

        Args:
            steps: Largest number of steps to reserve.
            poll: Function to call several times a second while waiting. It may raise.

        Returns:
            Number of steps from 1 to `steps`, or 0 at the end of the data.

        Raises:
            Exception: The data source failed.
        """
        return steps

    def consumed(self, steps: int) -> None:
        """Record that steps of the last reservation were run.

        Args:
            steps: Number of these steps.
        """

    def read_again(self, steps: int) -> list[np.ndarray] | None:
        """Read the arrays of a failed step again: those of the first replica, then the next.

        Args:
            steps: Number of steps between the last consumed step and the failed step.

        Returns:
            The arrays, or None if the source cannot read these batches again.

        Raises:
            Exception: The data source failed.
        """
        batch = self.read_step(self.state(), steps)
        return None if batch is None else batch[0]

    def read_step(self, state: Any, steps: int) -> tuple[list[np.ndarray], Origins] | None:
        """Return the arrays of a past step, as `read_again`, and the source rows of each replica.

        Call `setup` before.

        Args:
            state: Position to count from, as returned by `state`; None for the beginning.
            steps: Number of steps between this position and the step.

        Returns:
            None if the source cannot read these batches again.

        Raises:
            ConfigError: The data end before this step.
        """
        return None

    def state(self) -> Any:
        """Return the position after the last consumed batch, or None if the source has none."""
        return None

    def settings(self) -> Mapping[str, Any]:
        """Return settings that must be the same when a run is resumed, by full name."""
        return {}

    def steps_left(self, state: Any) -> int | None:
        """Return the number of steps until the data ends, or None if it is unknown.

        Args:
            state: Position to count from, as returned by `state`.
        """
        return None

    def stop(self) -> None:
        """Stop reading and end threads. Called once after training; `start` may follow."""

    def fill(self) -> float | None:
        """Return the filled share of the queue of batches, from 0 to 1. None if there is no queue.

        Near 1, the model is the bottleneck; near 0, the data.
        """
        return None

    def __len__(self) -> int:
        """Return the number of batches in one pass over the data.

        Raises:
            TypeError: The number is unknown.
        """
        raise TypeError(f"{type(self).__name__} has no known length")
