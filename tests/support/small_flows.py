"""Small flows, and functions for them, that tests put on each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from towerpack.dataflow import (
    DataFlow,
    DataFromArrays,
    DataFromGenerator,
    ItemRNG,
    ProxyDataFlow,
    RNGDataFlow,
)

# Flows of a user's own.


def pair(i: int, x: float) -> tuple[np.int64, np.float64]:
    """What the flows here give, so that anything can be put on anything."""
    return np.int64(i), np.float64(x)


class Indexed(DataFlow):
    """Can be read anywhere."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        return pair(index, -index)


class Counting(DataFlow):
    """Can only be read in order."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[Any]:
        for i in range(self.n):
            yield pair(i, i * 0.25)


class Noise(RNGDataFlow):
    """Draws random numbers."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[Any]:
        for i in range(self.n):
            yield pair(i, self.rng.random())


class Twice(ProxyDataFlow):
    """Reads what it wraps two times."""

    def __iter__(self) -> Iterator[Any]:
        yield from self.ds
        yield from self.ds

    def __len__(self) -> int:
        return 2 * len(self.ds)


def numbers(n: int) -> DataFlow:
    """(0,), (1,), …, with a plan."""
    return DataFromArrays(np.arange(n))


def generated(n: int) -> DataFlow:
    """The same, which can only be read in order; of unknown length."""
    return DataFromGenerator(lambda: ((i,) for i in range(n)))


# Functions that work on datapoints, batches and stacked columns alike.


def shift(dp: Any) -> Any:
    """No random numbers."""
    return (dp[0] + 1, *dp[1:])


def noisy(dp: Any, rng: np.random.Generator) -> Any:
    """Random numbers."""
    return (*dp[:-1], dp[-1] + np.float64(rng.random()))


def noisy_rows(dp: Any, rng: ItemRNG) -> Any:
    """Random numbers for each row."""
    return (*dp[:-1], dp[-1] + rng.random())


def heads(dp: Any, rng: np.random.Generator) -> bool:
    """True or false."""
    return bool(rng.random() < 0.6)


def not_third(dp: Any) -> np.bool_:
    """False for a third."""
    return np.sum(dp[0]) % 3 != 0


def refuse_thirds(dp: Any) -> Any:
    """Raises for a third."""
    if np.sum(dp[0]) % 3 == 0:
        raise ValueError(f"{dp[0]} is a multiple of 3")
    return dp


def ragged(dp: Any) -> Any:
    """Components of all kinds, of different sizes."""
    i = int(np.sum(dp[0]))
    return {
        "text": "ä" * (i % 4),
        "bytes": bytes(range(i % 5)),
        "rows": np.full((i % 3, 2), dp[-1], np.float32),
        "nested": [i, (True, None, float(np.sum(dp[-1])))],
        "flag": np.bool_(i % 2),
    }


def tokens(dp: Any) -> Any:
    """Two sequences of 0 to 7 integers."""
    i = int(np.sum(dp[0]))
    return {"ids": np.arange(i, i + i * 5 % 8), "mask": [i % 2] * (i * 5 % 8)}


def shaped(dp: Any) -> Any:
    """One of three shapes."""
    return (dp[0], np.zeros(int(np.sum(dp[0])) % 3))


def length(dp: Any) -> int:
    """From 0 to 8."""
    return int(np.sum(dp[0])) % 9
