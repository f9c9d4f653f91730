"""Permutations that need no memory: where does position p of n go, under this key?

Up to 4,096 elements the order is that of hashed indices (every permutation equally likely, which
a small Feistel network is not). Above, an unbalanced Feistel network of six rounds permutes the
smallest power of two that is at least n, and results outside 0..n-1 are fed back in until they
fall inside ("cycle walking", Black & Rogaway 2002), at most twice on average. Both are our own
arithmetic, so an order does not depend on the version of NumPy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]
_MASK = (1 << 64) - 1
_SORTED_UP_TO = 4096
_ROUNDS = 6


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

    Args:
        positions: Each in `range(size)`; not checked.
        size: At least 1, below 2**62.
        key: Any 64-bit integer.
    """
    if size <= _SORTED_UP_TO:
        hashed = mix(np.arange(size, dtype=np.uint64) ^ np.uint64(mix_int(key)))
        return np.argsort(hashed, kind="stable")[positions]
    bits = (size - 1).bit_length()
    keys = _round_keys(key)
    result = _feistel(positions.astype(np.uint64), bits, keys)
    outside = np.flatnonzero(result >= np.uint64(size))
    while len(outside):
        result[outside] = _feistel(result[outside], bits, keys)
        outside = outside[result[outside] >= np.uint64(size)]
    return result.astype(np.int64)


def _round_keys(key: int) -> list[np.uint64]:
    keys: list[np.uint64] = []
    for _ in range(_ROUNDS):
        key = mix_int(key)
        keys.append(np.uint64(key))
    return keys


def _feistel(values: U64, bits: int, keys: list[np.uint64]) -> U64:
    """Each half in turn is changed by a hash of the other; any such step can be undone."""
    low_bits = bits // 2
    high_bits = bits - low_bits
    low = values & np.uint64((1 << low_bits) - 1)
    high = values >> np.uint64(low_bits)
    for even, odd in zip(keys[::2], keys[1::2], strict=True):
        high = high ^ (_round(low, even) >> np.uint64(64 - high_bits))
        low = low ^ (_round(high, odd) >> np.uint64(64 - low_bits))
    return (high << np.uint64(low_bits)) | low


def _round(half: U64, key: np.uint64) -> U64:
    half = (half ^ key) * np.uint64(0xBF58476D1CE4E5B9)
    return (half ^ (half >> np.uint64(32))) * np.uint64(0x94D049BB133111EB)
