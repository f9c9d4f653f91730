"""Variables of which each replica has a copy of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf


def components_of(variable: Any) -> tuple[tf.Variable, ...]:
    """The copies that a distributed variable has in this process; any other one is its own."""
    return tuple(getattr(variable, "values", (variable,)))


def fold_replicas_into_seeds(index_of_replica: Callable[[], int]) -> None:
    """Make what Keras's seed generators draw differ from replica to replica.

    Their state is the same in all of them, as that of any variable, so that all replicas would drop
    the same units. From the first call on it holds for the whole process.

    Args:
        index_of_replica: 0 leaves the draw as it is.
    """
    original: Any = keras.random.SeedGenerator.next
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def next_seed(self: keras.random.SeedGenerator, ordered: bool = True) -> Any:
        seed = original(self, ordered=ordered)
        index = index_of_replica()
        if not index:
            return seed
        # [seed, counter]: an odd multiplier keeps the replicas apart.
        return seed + tf.constant([index * 0x9E3779B9 % 2**31, 0], seed.dtype)

    keras.random.SeedGenerator.next = next_seed
