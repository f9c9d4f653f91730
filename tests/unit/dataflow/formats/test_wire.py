from __future__ import annotations

import collections
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from towerpack import ConfigError, FormatError
from towerpack.dataflow.formats import pack, pack_frames, unpack, unpack_frames
from towerpack.dataflow.formats._wire import pack_all, take_apart, unpack_all
from towerpack.dataflow.testing import same_datapoints

WAYS: list[Callable[[Any], Any]] = [
    lambda dp: unpack(pack(dp)),
    lambda dp: unpack(bytearray(pack(dp)), copy=True),
    lambda dp: unpack_frames(pack_frames(dp)),
    lambda dp: unpack_frames([bytearray(frame) for frame in pack_frames(dp)], copy=True),
]

texts = st.text(st.characters(), max_size=20)
plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(),
    texts,
    st.binary(max_size=40),
    st.integers(1000, 1100).map(lambda n: b"x" * n),
    st.integers(300, 1100).map(lambda n: "ä\ud800" * n),
)
dtypes = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.floating_dtypes(),
    hnp.complex_number_dtypes(),
    hnp.byte_string_dtypes(),
    hnp.unicode_string_dtypes(),
).filter(lambda dtype: dtype.itemsize > 0)
arrays = st.one_of(
    hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6)),
    hnp.arrays(np.uint16, hnp.array_shapes(min_dims=2, max_dims=3, min_side=20, max_side=30)),
    hnp.arrays(object, hnp.array_shapes(max_side=4), elements=plain),
)
scalars = dtypes.flatmap(lambda dtype: hnp.arrays(dtype, ()).map(lambda array: array[()]))
datapoints = st.recursive(
    st.one_of(plain, arrays, scalars),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.one_of(texts, st.integers(-9, 9)), inner, max_size=4),
    ),
    max_leaves=12,
)

SAMPLE = [
    np.arange(600, dtype=np.int32).reshape(20, 30),
    {"label": 3, 7: (None, True, 2.5, "ä", b"\0"), "empty": []},
    np.array(["a", b"b", None, [1, (2,)]], object),
    np.float16(0.5),
    "x" * 2000,
    b"y" * 1500,
    np.zeros((0, 3)),
]


@given(datapoints)
def test_what_comes_out_is_what_went_in(datapoint: Any) -> None:
    for way in WAYS:
        found = way(datapoint)
        assert same_datapoints(found, datapoint), found


@pytest.mark.parametrize(
    "array",
    [
        np.arange(2000)[::-2],
        np.asfortranarray(np.arange(2000.0).reshape(40, 50)),
        np.broadcast_to(np.float32(1), (50, 50)),
        np.arange(2000).astype(">i4"),
        np.array("2020-02-03", "M8[D]"),
        np.arange(600).astype("m8[25s]"),
        np.zeros(200, np.longdouble),
    ],
)
def test_layouts_and_dtypes(array: Any) -> None:
    for way in WAYS:
        found = way(array)
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)


@given(st.lists(datapoints, min_size=1, max_size=5))
def test_several_in_one_piece(several: list[Any]) -> None:
    parts = [take_apart(datapoint) for datapoint in several]
    packed = pack_all(parts)
    assert same_datapoints(unpack_all(packed, len(several), copy=True), several)
    assert len(packed) <= sum(part.nbytes for part in parts)
    for count in (len(several) + 1, len(several) - 1, 1 << 60):
        with pytest.raises(FormatError):
            unpack_all(packed, count)


def test_what_is_kept_does_not_change() -> None:
    arrays = np.ones(2000), np.ones(3)
    parts = take_apart(arrays)
    parts.keep()
    for array in arrays:
        array[:] = 2
    assert all((array == 1).all() for array in unpack_all(pack_all([parts]), 1)[0])


def test_memory_is_not_copied_but_if_asked_for() -> None:
    big = np.zeros(5000, np.uint8)
    frames = pack_frames((big, 1))
    assert len(frames) == 2 and np.shares_memory(np.frombuffer(frames[1], np.uint8), big)
    assert np.shares_memory(unpack_frames(frames)[0], big)
    assert not np.shares_memory(unpack_frames(frames, copy=True)[0], big)
    message = pack((big, np.arange(1000.0), np.zeros(2)))
    views = unpack(message)
    assert not views[0].flags.writeable and not views[1].flags.owndata
    assert views[1].ctypes.data % 16 == np.frombuffer(message, np.uint8).ctypes.data % 16
    assert views[2].flags.writeable  # small ones are always the reader's own
    assert all(array.flags.writeable for array in unpack(message, copy=True))
    assert all(array.flags.writeable for array in unpack(bytearray(message)))


def test_memory_maps_travel_as_arrays(tmp_path: Any) -> None:
    mapped = np.memmap(tmp_path / "m", np.uint8, "w+", shape=(3, 1000))
    assert type(unpack(pack(mapped))) is np.ndarray


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (1 << 64, "integer of 65 bits"),
        (-(1 << 63) - 1, "integer of 64 bits"),
        ({1, 2}, "set cannot be packed"),
        (object(), "object"),
        (1j, "complex"),
        (collections.OrderedDict(), "OrderedDict"),
        (collections.namedtuple("Point", "x")(1), "Point"),
        (np.zeros(2, "i4,f4"), "structured"),
        (np.zeros(2, "i4,f4")[0], "structured"),
        (np.zeros(2, "V4"), "V4"),
        (np.ma.masked_array([1]), "MaskedArray"),
        (np.array([{1}], object), "set"),
        (deep(65), "nested"),
    ],
)
def test_what_cannot_be_packed(value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pack((1, value))


def test_a_list_that_holds_itself() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ConfigError, match="nested"):
        pack(loop)
    assert unpack(pack(deep(64))) == deep(64)
    with pytest.raises(ConfigError, match="20001 bits"):  # too many for Python to print
        pack(1 << 20000)


def good_or_error(read: Callable[[], Any]) -> None:
    try:
        read()
    except FormatError:
        return


@given(st.data())
def test_flipped_bits_and_cut_ends(data: st.DataObject) -> None:
    message = bytearray(pack(SAMPLE))
    # Most of a message is raw memory, where every bit pattern is as good as another.
    interesting = message.index(b"x" * 100)
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, interesting))] ^= 1 << data.draw(st.integers(0, 7))
    good_or_error(lambda: unpack(bytes(message)))
    cut = data.draw(st.integers(0, len(message) - 1))
    with pytest.raises(FormatError):
        unpack(pack(SAMPLE)[:cut])
    with pytest.raises(FormatError):
        unpack(pack(SAMPLE) + b"\0")


@given(st.lists(st.binary(max_size=60), max_size=4), st.binary(max_size=40))
def test_random_bytes(frames: list[bytes], values: bytes) -> None:
    codes = b"".join(frames)
    header = b"TPW\x01" + struct.pack("<II", len(codes), len(values)) + codes + values
    for read in (
        lambda: unpack(values),
        lambda: unpack(header),
        lambda: unpack_frames(frames),
        lambda: unpack_frames([header, *frames]),
    ):
        good_or_error(read)


@given(
    st.text("vsbaigoltd?", max_size=12),
    st.lists(
        st.one_of(
            st.integers(-2, 5),
            st.sampled_from(["|u1", "<f4", "<U0", "|O", "i4,f4", 1 << 61, 1 << 63, None, b"", "é"]),
            st.lists(st.integers(0, 9), max_size=2),
        ),
        max_size=12,
    ),
)
def test_headers_that_make_no_sense(codes: str, values: list[Any]) -> None:
    good_or_error(lambda: unpack(message_of(codes.encode(), values)))


def message_of(codes: bytes, values: Any) -> bytes:
    packed = msgpack.packb(values)
    return b"TPW\x01" + struct.pack("<II", len(codes), len(packed)) + codes + packed


NESTED = b"\xdd\x00\xff\xff\xff" * 200


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "at least 12 bytes"),
        (b"TPW\x02" + bytes(8), "version 2"),
        (b"PK\x03\x04" + bytes(8), "does not begin"),
        (b"TPW\x01" + struct.pack("<II", 1 << 31, 1 << 31), "header of"),
        (b"TPW\x01" + struct.pack("<II", 1, 0) + b"v", "no values"),
        (b"TPW\x01" + struct.pack("<II", 1, len(NESTED)) + b"v" + NESTED, "exceeds"),
        (message_of(b"l", [1 << 40]), "items where 0 are left"),
        (message_of(b"a", ["|u1", 1, 1 << 40]), "bytes are missing"),
        (message_of(b"a", ["|u1", 3, 1 << 61, 1 << 61, 0]), "0 bytes are missing"),
        (message_of(b"i", ["|u1", 3, 1 << 61, 1 << 61, 0, b""]), "too big"),
        (message_of(b"a", ["|u1", 1 << 40]), "dimensions"),
        (message_of(b"i", ["|O", 1, 1, b"12345678"]), "no dtype"),
        (message_of(b"i", ["|u1", 1, -1, b""]), "number of -1"),
        (message_of(b"i", ["|u1", 1, 2, b"1"]), "1 bytes instead of 2"),
        (message_of(b"s", [1 << 40]), "bytes are missing"),
        (message_of(b"o", [1, 1 << 40, 0]), "0 objects"),
        (message_of(b"dvv", [3, 1, 2]), "items where 2 are left"),
        (message_of(b"dvvvv", [4, 1, 2, 1, 2]), "key comes twice"),
        (message_of(b"dlv", [2, 0, 1]), "unhashable"),
        (message_of(b"vv", [1, 2]), "left over"),
        (message_of(b"v", [1, 2]), "left over"),
        (message_of(b"v", [[1]]), "exceeds"),
        (message_of(b"v", [msgpack.ExtType(5, b"")]), "ExtType"),
        (message_of(b"l" * 70, [1] * 70), "nested"),
        (message_of(b"q", [1]), "no code"),
    ],
)
def test_hostile_messages(message: bytes, reason: str) -> None:
    tracemalloc.start()
    with pytest.raises(FormatError, match=reason):
        unpack(message)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 24


def test_frames_must_be_those_that_belong() -> None:
    frames = pack_frames(SAMPLE)
    for wrong in (
        [],
        frames[:-1],
        [*frames, b""],
        [frames[0], *frames[:0:-1]],
        [bytes(frames[0]) + b"\0", *frames[1:]],
    ):
        with pytest.raises(FormatError):
            unpack_frames(wrong)
