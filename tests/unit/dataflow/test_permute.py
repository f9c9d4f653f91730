"""Permutations: each position goes somewhere, no two to the same place."""

from __future__ import annotations

import zlib
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from towerpack.dataflow._permutation import permute


@settings(max_examples=25)
@given(size=st.integers(1, 70_000), key=st.integers(0, 2**63 - 1))
@example(size=4096, key=3)
@example(size=4097, key=3)
@example(size=65_536, key=3)
def test_bijection(size: int, key: int) -> None:
    order = permute(np.arange(size), size, key)
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(size))


@pytest.mark.parametrize("size", [100, 8193, 65_537, 10**9])
def test_many_at_once_are_as_few(size: int) -> None:
    positions = np.arange(max(0, size - 30_000), size)
    whole = permute(positions, size, key=5)
    parts = [permute(part, size, key=5) for part in np.array_split(positions, 700)]
    assert np.array_equal(whole, np.concatenate(parts))
    assert np.array_equal(permute(positions[::-1], size, key=5), whole[::-1])
    assert len(permute(positions[:0], size, key=5)) == 0


def test_huge_sizes_need_no_memory() -> None:
    size = 10**15 + 7
    positions = np.arange(size - 1000, size)
    order = permute(positions, size, key=1)
    assert len(set(order.tolist())) == 1000
    assert order.min() >= 0 and order.max() < size


@pytest.mark.parametrize("size", [1000, 20_000])
def test_keys_give_unrelated_orders(size: int) -> None:
    orders = [permute(np.arange(size), size, key) for key in range(20)]
    for one in range(20):
        for other in range(one):
            # Two random permutations agree in one place on average.
            assert np.count_nonzero(orders[one] == orders[other]) < 12


def test_small_permutations_are_equally_likely() -> None:
    counts = Counter(tuple(permute(np.arange(4), 4, key)) for key in range(4800))
    assert len(counts) == 24
    # 200 each expected; the standard deviation is 14.
    assert min(counts.values()) > 130 and max(counts.values()) < 270


def test_orders_stay_as_they_are() -> None:
    """Checkpoints hold positions in these orders: changing them breaks resuming."""
    assert permute(np.arange(8), 8, key=42).tolist() == GOLDEN_SMALL
    assert permute(np.arange(5), 10_000, key=42).tolist() == GOLDEN_LARGE
    for size, golden in GOLDEN_CRC.items():
        order = permute(np.arange(size - 50_000, size), size, key=42)
        assert zlib.crc32(order.astype("<i8").tobytes()) == golden


# Computed by this implementation on the day it was written.
GOLDEN_SMALL = [5, 4, 2, 3, 7, 0, 1, 6]
GOLDEN_LARGE = [1710, 2600, 9662, 72, 159]
GOLDEN_CRC = {50_000: 180048902, 100_003: 2741237518, 10**6: 3108667063, 10**9: 2468843232}
