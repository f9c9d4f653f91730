"""Permutations that are computed, not stored: the order of a shuffle.

Where does position p of n go, under this key? The answer needs no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]
MASK = (1 << 64) - 1
_SORTED_UP_TO = 4096
_ROUNDS = 6
_TABLE_PAYS = 4
_PIECE = 8192  # so few stay in the cache, and their memory is not given back between steps

Round = Callable[[U64], U64]


def mix(values: U64) -> U64:
    """Hash 64-bit words (the finaliser of splitmix64, Steele et al. 2014); a bijection."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def mix_int(value: int) -> int:
    """`mix` of one Python integer, after a step of splitmix64's counter."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
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
