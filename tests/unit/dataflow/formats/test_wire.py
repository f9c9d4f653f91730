from __future__ import annotations

import collections
import contextlib
import struct
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


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (LOOP, "reduce the nesting"),
        ([1 << 20000], "20001 bits"),  # too many for Python to print
        ({1, 2}, "set cannot be packed"),
        (collections.OrderedDict(), "OrderedDict"),
        (collections.namedtuple("Point", "x")(1), "Point"),
        (np.zeros(2, "i4,f4"), "structured"),
        (np.array([{1}], object), "set"),
    ],
)
def test_what_cannot_be_packed(value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pack((1, value))


def good_or_error(read: Callable[[], Any]) -> None:
    with contextlib.suppress(FormatError):
        read()


@given(st.data())
def test_flipped_bits_and_cut_ends(data: st.DataObject) -> None:
    message = bytearray(pack(SAMPLE))
    # Most of a message is raw memory, where every bit pattern is as good as another.
    interesting = message.index(b"x" * 100)
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, interesting))] ^= 1 << data.draw(st.integers(0, 7))
    good_or_error(lambda: unpack(bytes(message)))
    cut = data.draw(st.integers(0, len(message) - 1))
    for wrong in (pack(SAMPLE)[:cut], pack(SAMPLE) + b"\0"):
        with pytest.raises(FormatError):
            unpack(wrong)


def message_of(*values: Any, memory: bytes = b"") -> bytes:
    """A message of one list, whose first value is of an extension type if it is bytes."""
    first, *rest = values
    packed = msgpack.packb([msgpack.ExtType(first, b""), *rest])
    return b"TPW\x02" + struct.pack("<I", len(packed)) + packed + memory


TUPLE, ARRAY, FRAME, SCALAR, OBJECTS = range(1, 6)
NESTED = b"TPW\x02" + struct.pack("<I", 1000) + b"\xdd\x00\x00\x03\xe8" * 200


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "8 bytes"),
        (b"TPW\x01" + bytes(8), "another version"),
        (b"TPW\x02" + struct.pack("<I", 1 << 31), "."),
        (NESTED, "."),
        (message_of(9), "not a valid _Kind"),
        (message_of(TUPLE, 1) + b"x", "left|bytes instead"),
        (message_of(FRAME, "|u1", [1 << 40]), "cannot reshape"),
        (message_of(ARRAY, "|O", [1], b"12345678"), "the dtype .* is unknown"),
        (message_of(ARRAY, "i4,f4", [1], b"12345678"), "the dtype .* is unknown"),
        (message_of(ARRAY, "|u1", [2], b"1"), "cannot reshape"),
        (message_of(SCALAR, "<i4", [], bytes(8)), "cannot reshape"),
        (message_of(OBJECTS, [3], [1]), "cannot reshape"),
    ],
)
def test_hostile_messages(message: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        unpack(message)


@given(st.lists(st.binary(max_size=60), max_size=4), st.binary(max_size=40))
def test_random_bytes(frames: list[bytes], values: bytes) -> None:
    header = b"TPW\x02" + struct.pack("<I", len(values)) + values
    for read in (
        lambda: unpack(values),
        lambda: unpack(header),
        lambda: unpack_frames(frames),
        lambda: unpack_frames([header, *frames]),
    ):
        good_or_error(read)


def test_frames_must_be_those_that_belong() -> None:
    frames = pack_frames(SAMPLE)
    for wrong in ([], frames[:-1], [*frames, b""], [bytes(frames[0]) + b"\0", *frames[1:]]):
        with pytest.raises(FormatError):
            unpack_frames(wrong)
