"""Random permutations that are computed position by position, without storing the order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]
MASK = (1 << 64) - 1
_SORTED_UP_TO = 4096
_ROUNDS = 6
_TABLE_PAYS = 4
_PIECE = 8192  # so few numbers stay in the CPU cache

Round = Callable[[U64], U64]


def mix(values: U64) -> U64:
    """Hash 64-bit words by a bijection: the finalizer of splitmix64 (Steele et al. 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def mix_int(value: int) -> int:
    """Return `mix` of one Python integer, after a counter step of splitmix64."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def permute(positions: NDArray[np.int64], size: int, key: int) -> NDArray[np.int64]:
    """Return the images of `positions` under a random permutation of `range(size)`.

    Up to 4,096 elements are sorted by hashes, so that all permutations are equally likely. More
    elements are permuted by an unbalanced Feistel network of six rounds over the next power of two.
    Results of at least `size` are permuted again ("cycle walking", Black & Rogaway 2002). The order
    does not depend on the version of NumPy. `size` must be below 2**62.
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
    # There are few different halves: looking up a hash takes a sixth of the time to compute it.
    table = hashed(np.arange(1 << half_bits, dtype=np.uint64))
    return lambda half: table.take(half.view(np.int64), mode="clip")
