"""Random numbers of datapoints, each a pure function of (key, epoch, position).

So a datapoint gets the same numbers whether it is read alone, within a block of any size, by any
worker, or again after a resume.
"""

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
_KEPT_WORDS = 1 << 15


def position_rng(key: int, epoch: int, position: int) -> np.random.Generator:
    """The generator of one datapoint: Philox, keyed by stage and epoch, counting from position."""
    philox = np.random.Philox(
        key=np.array((key, epoch & MASK), np.uint64),
        counter=np.array((0, position, 0, 0), np.uint64),
    )
    return np.random.Generator(philox)


class Words:
    """The random words of some rows, drawn for all at once and kept for whoever asks next."""

    def __init__(self, key: int, epoch: int, positions: Positions) -> None:
        self.epoch = epoch
        self.positions = positions
        self._key = derive_seed(key, "items", epoch)
        counters = as_array(positions).astype(np.uint64) * _STRIDE
        self._rows = mix(counters + np.uint64(mix_int(self._key)))
        self._kept: dict[tuple[int, tuple[int, ...]], U64] = {}
        self._room = _KEPT_WORDS

    def hold(self, epoch: int, positions: range) -> bool:
        own = self.positions
        return self.epoch == epoch and own[0] <= positions.start and positions.stop - 1 <= own[-1]

    def draw(self, call: int, shape: tuple[int, ...], rows: slice) -> U64:
        """Words of some rows for one call, of shape [rows, *shape]; not to be changed."""
        kept = self._kept.get((call, shape))
        if kept is None:
            size = len(self._rows) * math.prod(shape)
            if size > self._room:
                return self._drawn(call, shape, rows)
            self._room -= size
            kept = self._kept[call, shape] = self._drawn(call, shape, slice(None))
        return kept[rows]

    def _drawn(self, call: int, shape: tuple[int, ...], rows: slice) -> U64:
        words = mix(self._rows[rows] ^ np.uint64(mix_int(self._key + call)))
        if not shape:
            return words
        lanes = np.arange(math.prod(shape), dtype=np.uint64) * _STRIDE
        return mix(words[:, None] + lanes).reshape(len(words), *shape)


class ItemRNG:
    """Draw random numbers for a block of datapoints: each call gives every one its own.

    What a datapoint gets depends on its position and on which call it is (the first, the second
    ...), never on the block it is read in. So a vectorised map must make the same calls for every
    block: no `if` on the data around a draw.

    Args:
        key: Names the stage.
        epoch: The pass.
        positions: Of the datapoints in the block.
        words: Those of a range that these positions are within, if they were drawn before.
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
        """Uniform in [0, 1), of shape [datapoints, *size]."""
        return (self._draw(size) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def uniform(
        self, low: float = 0.0, high: float = 1.0, size: int | tuple[int, ...] = ()
    ) -> NDArray[np.float64]:
        """Uniform in [low, high), of shape [datapoints, *size]."""
        return low + (high - low) * self.random(size)

    def integers(self, low: int, high: int, size: int | tuple[int, ...] = ()) -> NDArray[np.int64]:
        """Integers in low..high-1, of shape [datapoints, *size].

        Raises:
            ConfigError: The range is empty or has more than 2**32 values.
        """
        if not 0 < high - low <= 1 << 32:
            raise ConfigError(
                f"integers({low}, {high}) has {high - low} values to choose from.",
                expected="1 to 2**32 values: low <= drawn < high",
            )
        words = (self._draw(size) >> np.uint64(32)) * np.uint64(high - low)
        return (words >> np.uint64(32)).astype(np.int64) + low

    def normal(
        self, loc: float = 0.0, scale: float = 1.0, size: int | tuple[int, ...] = ()
    ) -> NDArray[np.float64]:
        """Normal numbers of shape [datapoints, *size] (Box & Muller 1958)."""
        radius = np.sqrt(-2.0 * np.log1p(-self.random(size)))
        return loc + scale * radius * np.cos(2.0 * math.pi * self.random(size))

    def _draw(self, size: int | tuple[int, ...]) -> U64:
        self._calls += 1
        shape = (size,) if isinstance(size, int) else tuple(size)
        return self._words.draw(self._calls, shape, self._rows)


class ItemRNGs:
    """Make the `ItemRNG` of each block of a stage, drawing ahead; for several threads at once."""

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
            self._last = words  # one assignment: safe between threads
        return ItemRNG(self._key, epoch, positions, words)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}
