"""Values into slots and out of them."""

from __future__ import annotations

import mmap
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from scaling import scaled
from towerpack.dataflow._datapoints import Columns, to_rows
from towerpack.dataflow._memory import Arena, lend, lent_empty
from towerpack.dataflow.parallel._packing import Packed, bundle, unpack
from towerpack.dataflow.testing import same_datapoints


class Pair(NamedTuple):
    left: Any
    right: Any


def memory(nbytes: int) -> Any:
    return np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)


def through(value: Any, *, copy: bool, nbytes: int = 1 << 22) -> Any:
    slot = memory(nbytes)
    parcel = Packed(value).put(Arena(slot))
    assert parcel is not None
    return unpack(parcel, slot, copy=copy)


BIG = np.arange(5000, dtype=np.float64)
VALUES: list[Any] = [
    (BIG, 3), BIG.reshape(50, 100).T, BIG[::2], np.asfortranarray(BIG.reshape(50, 100)),
    np.zeros((0, 7), np.int8), np.array("text"), np.array([b"a\0", None, "x"], object),
    np.zeros(300, [("a", "i4"), ("b", "f8", 3)]), BIG.astype(">f4"), np.float32(1.5),
    {"a": [1, {2: b"x" * 9000}], None: (True, 1e300, 1 << 80)}, "ü" * 9000, None, [], (),
    np.datetime64("2026-01-01"), np.zeros(9000, bool), 1j, {1, 2}, range(3), Pair(BIG, "x"),
]  # fmt: skip


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_every_value(value: Any, copy: bool) -> None:
    assert same_datapoints(through(value, copy=copy), value)


@settings(max_examples=scaled(1000, at_least=30))
@given(st.lists(hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(max_side=40)), max_size=5))
def test_any_arrays(arrays: list[Any]) -> None:
    found = through(arrays, copy=False)
    for one, other in zip(found, arrays, strict=True):
        # NumPy's own pickles may turn the bytes of dates round; `==` does not hold for NaT.
        assert one.dtype.newbyteorder("=") == other.dtype.newbyteorder("=")
        assert one.shape == other.shape
        assert one.astype(other.dtype).tobytes() == other.tobytes()


def test_large_arrays_lie_in_the_slot_aligned_and_writable() -> None:
    slot = memory(1 << 20)
    parcel = Packed((BIG, BIG.astype(np.uint8))).put(Arena(slot))
    assert parcel is not None
    large, small = unpack(parcel, slot, copy=False)
    assert np.shares_memory(large, slot)
    assert np.shares_memory(small, slot)
    assert large.ctypes.data % 64 == small.ctypes.data % 64 == 0
    large[0] = -1.0
    own, _ = unpack(parcel, slot, copy=True)
    assert own[0] == -1.0
    assert not np.shares_memory(own, slot)


def test_what_lies_in_the_arena_is_not_copied() -> None:
    slot = memory(1 << 20)
    arena = Arena(slot)
    with lend(arena):
        array = lent_empty((1000, 100), np.uint8)
    array[:] = 7
    used = arena.needed
    parcel = Packed([array]).put(arena)
    assert parcel is not None
    assert arena.needed - used < 1000  # the pickle alone
    (back,) = unpack(parcel, slot, copy=False)
    assert back.ctypes.data == array.ctypes.data


def test_too_small_a_slot_is_said() -> None:
    packed = Packed([BIG])
    assert packed.put(Arena(memory(4096))) is None
    assert packed.most >= BIG.nbytes
    assert packed.put(Arena(memory(packed.most))) is not None


def test_an_arena_gives_other_memory_when_it_is_full() -> None:
    slot = memory(4096)
    arena = Arena(slot)
    inside, outside = arena.empty((4000,), np.uint8), arena.empty((4000,), np.uint8)
    assert np.shares_memory(inside, slot)
    assert not np.shares_memory(outside, slot)
    assert arena.needed >= 8000
    assert not np.shares_memory(arena.empty((2,), object), slot)
    assert arena.empty((0, 3), np.int16).shape == (0, 3)


ROWS: list[list[Any]] = [
    [(np.arange(3) + i, np.float32(i), i, f"{i}", None) for i in range(5)],
    [{"a": np.full((2, 2), i), "b": [i]} for i in range(3)],
    [[np.arange(i)] for i in range(4)],  # ragged
    [(np.array(i),) for i in range(4)],  # without axes
    [(np.zeros(2, np.int8),), (np.zeros(2, np.int16),)],
    [(np.int8(1),), (np.int16(1),)],
    [(np.zeros((3, 2)).T,), (np.zeros((2, 3)),)],
    [(1,), (1, 2)],
    [{"a": 1}, {"b": 1}],
    [{"a": np.zeros(2), "b": 1}, {"b": 1, "a": np.zeros(2)}],
    [(np.zeros(2),), [np.zeros(2)]],
    [(np.array([1, "x"], object),)] * 2,
    [(np.zeros(2, ">i2"),)] * 2,
    [(np.ma.array([1, 2]),)] * 2,
    [Pair(np.zeros(2), 1)] * 2,
    [(True, np.True_)] * 2,
    ["no", "components"],
    [(np.zeros((2, 0)),)] * 2,
]


@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_bundles_lose_nothing(rows: list[Any]) -> None:
    back = to_rows(through(bundle(rows), copy=False))
    assert len(back) == len(rows)
    assert all(map(same_datapoints, back, rows))


def test_rows_that_are_alike_become_columns() -> None:
    block = bundle(ROWS[0])
    assert isinstance(block, Columns)
    assert [type(column) for column in block.data] == [np.ndarray, np.ndarray, list, list, list]
    assert isinstance(bundle(ROWS[2]), list)
