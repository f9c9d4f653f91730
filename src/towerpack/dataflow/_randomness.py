"""Random orders and numbers, each a pure function of (key, epoch, position).

So a datapoint gets the same numbers whether it is read alone, within a block of any size, by any
worker, or again after a resume. Permutations need no memory: where does position p of n go, under
this key?
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack._core.randomness import derive_seed
from towerpack.dataflow._datapoints import Positions, as_array

U64 = NDArray[np.uint64]
_MASK = (1 << 64) - 1
_SORTED_UP_TO = 4096
_ROUNDS = 6
_TABLE_PAYS = 4
_PIECE = 8192  # so few stay in the cache, and their memory is not given back between steps
_STRIDE = np.uint64(0x9E3779B97F4A7C15)
# A draw for some thousand rows costs hardly more than one for a hundred.
_AHEAD = 16
_AHEAD_ROWS = 4096
_KEPT_WORDS = 1 << 15

Round = Callable[[U64], U64]


def mix(values: U64) -> U64:
    """Hash 64-bit words (the finaliser of splitmix64, Steele et al. 2014); a bijection."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def mix_int(value: int) -> int:
    """`mix` of one Python integer, after a step of splitmix64's counter."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def permute(positions: NDArray[np.int64], size: int, key: int) -> NDArray[np.int64]:
    """Images of `positions` under the permutation of `range(size)` that `key` names.

    Up to 4,096 elements the order is that of hashed indices (every permutation equally likely,
    which a small Feistel network is not). Above, an unbalanced Feistel network of six rounds
    permutes the smallest power of two that is at least `size`, and results outside are fed back in
    until they fall inside ("cycle walking", Black & Rogaway 2002), at most twice on average. Both
    are our own arithmetic, so an order does not depend on the version of NumPy.

    Args:
        positions: Each in `range(size)`; not checked.
        size: At least 1, below 2**62.
        key: Any 64-bit integer.
    """
    if size <= _SORTED_UP_TO:
        hashed = mix(np.arange(size, dtype=np.uint64) ^ np.uint64(mix_int(key)))
        return np.argsort(hashed, kind="stable")[positions]
    bits = (size - 1).bit_length()
    rounds = _rounds(bits, key, len(positions))
    result = np.empty(len(positions), np.uint64)
    for start in range(0, len(positions), _PIECE):
        piece = slice(start, start + _PIECE)
        result[piece] = _feistel(positions[piece].astype(np.uint64), bits, rounds)
    outside = np.flatnonzero(result >= np.uint64(size))
    while len(outside):
        result[outside] = _feistel(result[outside], bits, rounds)
        outside = outside[result[outside] >= np.uint64(size)]
    return result.view(np.int64)  # below 2**62; a copy would be as large as the result


def _feistel(values: U64, bits: int, rounds: Sequence[Round]) -> U64:
    """Each half in turn is changed by a hash of the other; any such step can be undone."""
    low_bits = np.uint64(bits // 2)
    low = values & ((np.uint64(1) << low_bits) - np.uint64(1))
    high = values >> low_bits
    for even, odd in zip(rounds[::2], rounds[1::2], strict=True):
        high ^= even(low)
        low ^= odd(high)
    high <<= low_bits
    high |= low
    return high


def _rounds(bits: int, key: int, count: int) -> list[Round]:
    """The hashes of halves: of low ones to as many bits as high ones have, and so on in turn."""
    half_bits, other_bits = bits // 2, bits - bits // 2
    rounds: list[Round] = []
    for _ in range(_ROUNDS):
        key = mix_int(key)
        rounds.append(_round(half_bits, np.uint64(key), other_bits, count))
        half_bits, other_bits = other_bits, half_bits
    return rounds


def _round(half_bits: int, key: np.uint64, result_bits: int, count: int) -> Round:
    shift = np.uint64(64 - result_bits)

    def hashed(half: U64) -> U64:
        half = (half ^ key) * np.uint64(0xBF58476D1CE4E5B9)
        return (half ^ (half >> np.uint64(32))) * np.uint64(0x94D049BB133111EB) >> shift

    if count < _TABLE_PAYS << half_bits:
        return hashed
    # There are few halves, each many times: looking a hash up takes a sixth of computing it.
    table = hashed(np.arange(1 << half_bits, dtype=np.uint64))
    return lambda half: table.take(half.view(np.int64), mode="clip")


def position_rng(key: int, epoch: int, position: int) -> np.random.Generator:
    """The generator of one datapoint: Philox, keyed by stage and epoch, counting from position."""
    philox = np.random.Philox(
        key=np.array((key, epoch & _MASK), np.uint64),
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
        """Whether the words of these rows are here."""
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
