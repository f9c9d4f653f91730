from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from towerpack import ConfigError, FormatError
from towerpack.dataflow.formats._wire_rows import MOST_IN_BUNDLE, Bundle, unpack_bundle
from towerpack.dataflow.testing import same_datapoints

plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(),
    st.text(st.characters(), max_size=20),
    st.binary(max_size=40),
    st.integers(900, 1100).map(lambda n: b"x" * n),
)
others = st.one_of(
    plain,
    st.just(np.arange(3)),
    st.just(np.float64(2)),
    st.just({"a": [1]}),
    st.just(((), [()])),
)
tuples = st.lists(plain, max_size=4).map(tuple)
mixed = st.one_of(tuples, st.lists(plain, max_size=4), st.lists(others, max_size=3), others)


def bundle_of(datapoints: list[Any]) -> Bundle:
    bundle = Bundle(1 << 14)
    for datapoint in datapoints:
        assert bundle.add(datapoint) is None
    return bundle


@given(st.one_of(*(st.lists(one, min_size=1, max_size=8) for one in (tuples, mixed))))
def test_what_comes_out_is_what_went_in(datapoints: list[Any]) -> None:
    bundle = bundle_of(datapoints)
    assert len(bundle) == len(datapoints)
    packed = bundle.pack()
    assert len(packed) <= bundle.nbytes
    found = unpack_bundle(packed, len(datapoints))
    assert same_datapoints(found, datapoints), found
    for count in (len(datapoints) + 1, len(datapoints) - 1, 1 << 60):
        with pytest.raises(FormatError):
            unpack_bundle(packed, count)


def rows(*datapoints: Any) -> bytes:
    return bundle_of(list(datapoints)).pack()


def test_rows_are_quick_and_others_are_not() -> None:
    assert all(rows(one, one)[3] == 2 for one in ((1, b"x"), [1.5, "x", None, True], (), []))
    for one in (1, (np.int64(1),), ((1,),), {"a": 1}, np.arange(2), (np.float64(1),)):
        assert rows(one)[3] == 1
    assert rows((1,), [1])[3] == rows((1,), np.arange(2), (2,))[3] == 1


class Text(str):
    """Is not to become a str."""


class Pair(tuple[int, int]):
    """Is not to become a tuple."""


@pytest.mark.parametrize("bad", [object(), (1 << 64,), (-(1 << 63) - 1,), (Text(),), Pair((1, 2))])
def test_what_cannot_be_packed_leaves_the_others(bad: Any) -> None:
    for good in ((1, "x"), np.arange(3)):
        bundle = bundle_of([good])
        with pytest.raises(ConfigError):
            bundle.add(bad)
        assert bundle.add(good) is None
        assert same_datapoints(unpack_bundle(bundle.pack(), 2), [good, good])


@pytest.mark.parametrize("first", [(1,), [2], np.arange(3)])
def test_large_ones_are_given_back(first: Any) -> None:
    bundle = bundle_of([first])
    for large in ((b"x" * (1 << 14),), ["x" * 5000, "y" * 12_000], np.zeros(1 << 14)):
        assert bundle.add(large) is not None
    assert same_datapoints(unpack_bundle(bundle.pack(), 1), [first])
    many = tuple(range(MOST_IN_BUNDLE + 1))
    assert bundle.add(many) is None
    assert same_datapoints(unpack_bundle(bundle.pack(), 2), [first, many])


def test_what_is_kept_does_not_change() -> None:
    array, listed = np.zeros(2000, np.uint8), [1, "x"]
    for kept in ([listed], [(array, 1)], [listed, (array, 1), listed]):
        array[:], listed[0] = 0, 1
        packed = bundle_of(kept)
        expected = unpack_bundle(packed.pack(), len(kept))
        array[:], listed[0] = 7, 7
        assert same_datapoints(unpack_bundle(packed.pack(), len(kept)), expected)


@given(st.data())
def test_a_flipped_bit_is_an_error_or_other_rows(data: st.DataObject) -> None:
    packed = bytearray(rows((1, b"abc", "ä", None), (2.5, True, 1 << 40)))
    at = data.draw(st.integers(0, len(packed) * 8 - 1))
    packed[at // 8] ^= 1 << at % 8
    try:
        found = unpack_bundle(packed, 2)
    except FormatError:
        return
    plain_types = (type(None), bool, int, float, str, bytes)
    assert all(type(value) in plain_types for row in found for value in row)


@pytest.mark.parametrize("cut", range(24))
def test_a_piece_is_an_error(cut: int) -> None:
    packed = rows((1, b"abc", "ä", None), (2.5, True))
    assert len(packed) > 24
    with pytest.raises(FormatError):
        unpack_bundle(packed[:cut], 2)
    with pytest.raises(FormatError):
        unpack_bundle(packed + b"\x01", 2)


def forged(value: Any, code: bytes = b"t") -> bytes:
    packed: Any = msgpack.packb(value)
    return b"TPW\x02" + code + packed


@pytest.mark.parametrize(
    "value",
    [
        [1, 2],
        [[1], 2],
        [[[1]], [2]],
        [[[]], [2]],
        [{}, [1]],
        [[{}], [1]],
        [[msgpack.Timestamp(1)], [1]],
        [[msgpack.ExtType(5, b"")], [1]],
        {},
        5,
        "ab",
        None,
    ],
)
@pytest.mark.parametrize("code", [b"t", b"l"])
def test_rows_hold_plain_values(value: Any, code: bytes) -> None:
    with pytest.raises(FormatError):
        unpack_bundle(forged(value, code), 2)
    assert unpack_bundle(forged([[1], [2]], code), 2) == [[1], [2]] or code == b"t"


def test_there_are_two_kinds_of_rows() -> None:
    for code in (b"", b"x", b"\0", b"tt"):
        with pytest.raises(FormatError):
            unpack_bundle(forged([[1]], code), 1)


def test_arrays_that_claim_more_than_there_is_allocate_nothing() -> None:
    many = struct.pack(">BI", 0xDD, 0xFFFFFFFF)
    some = struct.pack(">BH", 0xDC, MOST_IN_BUNDLE)
    tracemalloc.start()
    for bomb in (many, many * 1000, some * 1000, b"\x91" * 5000, b"\xdf\xff\xff\xff\xff" * 100):
        for code in (b"t", b"l"):
            with pytest.raises(FormatError):
                unpack_bundle(b"TPW\x02" + code + bomb, 1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4_000_000
