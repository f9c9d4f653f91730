"""Random numbers of datapoints, as a pure function of (key, epoch, position)."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack._core.randomness import derive_seed
from towerpack.dataflow._permutation import MASK, U64, mix, mix_int
from towerpack.dataflow.datapoints import Positions, as_array

_STRIDE = np.uint64(0x9E3779B97F4A7C15)
# A draw for some thousand rows costs hardly more than one for a hundred.
_AHEAD = 16
_AHEAD_ROWS = 4096
_CACHED_WORDS = 1 << 15


def position_rng(key: int, epoch: int, position: int) -> np.random.Generator:
    """Return the random generator of one datapoint: Philox with a counter based on `position`."""
    philox = np.random.Philox(
        key=np.array((key, epoch & MASK), np.uint64),
        counter=np.array((0, position, 0, 0), np.uint64),
    )
    return np.random.Generator(philox)


class Words:
    """Cached random 64-bit words of several rows, drawn for all rows at once."""

    def __init__(self, key: int, epoch: int, positions: Positions) -> None:
        self.epoch = epoch
        self.positions = positions
        self._key = derive_seed(key, "items", epoch)
        counters = as_array(positions).astype(np.uint64) * _STRIDE
        self._rows = mix(counters + np.uint64(mix_int(self._key)))
        self._cache: dict[tuple[int, tuple[int, ...]], U64] = {}
        self._room = _CACHED_WORDS

    def hold(self, epoch: int, positions: range) -> bool:
        first, last = self.positions[0], self.positions[-1]
        return self.epoch == epoch and first <= positions.start and positions.stop - 1 <= last

    def draw(self, call: int, shape: tuple[int, ...], rows: slice) -> U64:
        """Return the read-only words of some rows for one call, of shape [rows, *shape]."""
        words = self._cache.get((call, shape))
        if words is None:
            size = len(self._rows) * math.prod(shape)
            if size > self._room:
                return self._drawn(call, shape, rows)
            self._room -= size
            words = self._cache[call, shape] = self._drawn(call, shape, slice(None))
        return words[rows]

    def _drawn(self, call: int, shape: tuple[int, ...], rows: slice) -> U64:
        words = mix(self._rows[rows] ^ np.uint64(mix_int(self._key + call)))
        if not shape:
            return words
        lanes = np.arange(math.prod(shape), dtype=np.uint64) * _STRIDE
        return mix(words[:, None] + lanes).reshape(len(words), *shape)


class ItemRNG:
    """Random number generator for a block of datapoints.

    The numbers of a datapoint depend on its position and on the number of the call (first, second,
    ...), not on the block. A vectorized map must therefore make the same calls for every block.

    Args:
        key: Random key of the stage.
        epoch: Number of the pass.
        positions: Positions of the datapoints in the block.
        words: Cached words of a range that contains these positions.
    """

    def __init__(
        self, key: int, epoch: int, positions: Positions, words: Words | None = None
    ) -> None:
        self._words = words or Words(key, epoch, positions)
        first = 0 if words is None else int(positions[0] - words.positions[0])
        self._rows = slice(first, first + len(positions))
        self._calls = 0

    def __len__(self) -> int:
        return self._rows.stop - self._rows.start

    def random(self, size: int | tuple[int, ...] = ()) -> NDArray[np.float64]:
        """Draw uniform numbers in [0, 1).

        Args:
            size: Shape of the numbers for each datapoint.

        Returns:
            Numbers of shape `[datapoints, *size]`, as for all methods.
        """
        return (self._draw(size) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def uniform(
        self, low: float = 0.0, high: float = 1.0, size: int | tuple[int, ...] = ()
    ) -> NDArray[np.float64]:
        """Draw uniform numbers in [low, high).

        Args:
            low, high: Ends of the interval.
            size: Shape of the numbers for each datapoint.
        """
        return low + (high - low) * self.random(size)

    def integers(self, low: int, high: int, size: int | tuple[int, ...] = ()) -> NDArray[np.int64]:
        """Draw uniform integers in low..high-1.

        Args:
            low, high: Ends of the range; `high` is excluded.
            size: Shape of the numbers for each datapoint.

        Raises:
            ConfigError: The range is empty or has more than 2**32 values.
        """
        if not 0 < high - low <= 1 << 32:
            raise ConfigError(f"high - low must be in 1..2**32, got low={low}, high={high}.")
        words = (self._draw(size) >> np.uint64(32)) * np.uint64(high - low)
        return (words >> np.uint64(32)).astype(np.int64) + low

    def normal(
        self, loc: float = 0.0, scale: float = 1.0, size: int | tuple[int, ...] = ()
    ) -> NDArray[np.float64]:
        """Draw normally distributed numbers (Box & Muller 1958).

        Args:
            loc, scale: Mean and standard deviation.
            size: Shape of the numbers for each datapoint.
        """
        radius = np.sqrt(-2.0 * np.log1p(-self.random(size)))
        return loc + scale * radius * np.cos(2.0 * math.pi * self.random(size))

    def _draw(self, size: int | tuple[int, ...]) -> U64:
        self._calls += 1
        shape = (size,) if isinstance(size, int) else tuple(size)
        return self._words.draw(self._calls, shape, self._rows)


class ItemRNGs:
    """Thread-safe factory of the random generator (`ItemRNG`) of each block of datapoints."""

    def __init__(self, key: int, size: int | None = None) -> None:
        self._key = key
        self._size = size
        self._last: Words | None = None

    def __call__(self, epoch: int, positions: Positions) -> ItemRNG:
        if not isinstance(positions, range):
            return ItemRNG(self._key, epoch, positions)
        words = self._last
        if words is None or not words.hold(epoch, positions):
            count = max(len(positions), min(_AHEAD * len(positions), _AHEAD_ROWS))
            stop = min(positions.start + count, sys.maxsize if self._size is None else self._size)
            words = Words(self._key, epoch, range(positions.start, stop))
            self._last = words  # one assignment, so this is thread-safe
        return ItemRNG(self._key, epoch, positions, words)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}
