from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from towerpack import ConfigError, FormatError
from towerpack.dataflow.formats import (
    FixedFeature,
    VariableFeature,
    encode_example,
    parse_example,
)
from towerpack.dataflow.formats._protobuf import fields, pack_varints, packed_varints, varint

features = st.dictionaries(
    st.text(max_size=9),
    st.one_of(
        st.lists(st.binary(max_size=200), min_size=1, max_size=4),
        hnp.arrays(np.int64, st.integers(1, 20)),
        hnp.arrays(np.float32, st.integers(1, 20)),
    ),
    max_size=5,
)


@given(features)
def test_what_comes_out_is_what_went_in(datapoint: dict[str, Any]) -> None:
    found = parse_example(encode_example(datapoint))
    np.testing.assert_equal(found, datapoint)
    for name, value in found.items():
        assert isinstance(value, list) or value.dtype == datapoint[name].dtype


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"x", [b"x"]),
        ("ä", ["ä".encode()]),
        (["a", b"b"], [b"a", b"b"]),
        (("a",), [b"a"]),
        (np.array(["ab", "c"]), [b"ab", b"c"]),
        (np.array([b"ab", "c"], object), [b"ab", b"c"]),
        (7, np.array([7])),
        (True, np.array([1])),
        (-(1 << 63), np.array([-(1 << 63)])),
        ([1, 2], np.array([1, 2])),
        (2.5, np.array([2.5], np.float32)),
        ([1, 2.5], np.array([1, 2.5], np.float32)),
        (bytearray(b"x"), [b"x"]),
        (memoryview(b"xy")[::-1], [b"yx"]),
        ([bytearray(b"x"), "y"], [b"x", b"y"]),
        ([1 << 63, 0.5], np.array([1 << 63, 0.5], np.float32)),
        (np.arange(6, dtype=np.uint8).reshape(2, 3), np.arange(6)),
        (np.arange(6, dtype=np.float16), np.arange(6, dtype=np.float32)),
        (np.array([200, 1 << 62], np.uint64), np.array([200, 1 << 62])),
        (np.asfortranarray(np.arange(6).reshape(2, 3)), np.arange(6)),
        ([], []),
        (np.zeros((0, 3)), []),
    ],
)
def test_values(value: Any, expected: Any) -> None:
    found = parse_example(encode_example({"x": value}))["x"]
    np.testing.assert_equal(found, expected)
    assert type(found) is type(expected)
    if isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype


@pytest.mark.parametrize(
    "value",
    [
        *[None, {}, 1 << 63, [1 << 64], [b"a", 1], [[1], [2, 3]], 1j, np.array([1 << 63], "u8")],
        *[[1 << 63, -1], [np.uint64(1 << 63), np.int64(-1)], "\ud800", ["a", "\ud800"]],
    ],
)
def test_values_that_cannot_be_written(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"feature 'x' cannot be written"):
        encode_example({"x": value})


DATAPOINT = {"i": [1, 300, -1], "f": [0.5, 2.0], "b": [b"p", b"\xff"], "one": [5], "none": []}
RECORD = encode_example(DATAPOINT)


@pytest.mark.parametrize(
    ("name", "feature", "expected"),
    [
        ("i", FixedFeature((3,), np.int16), np.array([1, 300, -1], np.int16)),
        ("i", FixedFeature(3, np.int64), np.array([1, 300, -1])),
        ("none", FixedFeature((), int, default=5), np.int64(5)),
        ("none", FixedFeature((2,), bytes, default=b"x"), np.array([b"x", b"x"], object)),
        ("none", FixedFeature((0, 3), np.uint8), np.zeros((0, 3), np.uint8)),
        ("away", FixedFeature((3,), int, default=[1, 2, 3]), np.array([1, 2, 3])),
        ("i", FixedFeature((3, 1), np.int64), np.array([[1], [300], [-1]])),
        ("f", VariableFeature(np.float64), np.array([0.5, 2.0])),
        ("one", FixedFeature((), np.uint8), np.uint8(5)),
        ("one", FixedFeature((), int), np.int64(5)),
        ("none", VariableFeature(bytes), np.array([], object)),
        ("none", VariableFeature(np.int32), np.array([], np.int32)),
        ("away", VariableFeature(np.float32), np.array([], np.float32)),
        ("away", FixedFeature((2,), np.int32, default=-1), np.array([-1, -1], np.int32)),
        ("away", FixedFeature((), str, default="?"), "?"),
        ("away", FixedFeature((), np.float32, default=0), np.float32(0)),
        ("b", FixedFeature((2,), bytes), np.array([b"p", b"\xff"], object)),
    ],
)
def test_features(name: str, feature: Any, expected: Any) -> None:
    found = parse_example(RECORD, {name: feature})[name]
    assert type(found) is type(expected)
    np.testing.assert_array_equal(found, expected)
    if isinstance(expected, (np.ndarray, np.generic)):
        assert found.dtype == expected.dtype
    if isinstance(found, np.ndarray) and found.size:
        found[:] = found[0]  # it is the reader's own
        np.testing.assert_array_equal(parse_example(RECORD, {name: feature})[name], expected)


@pytest.mark.parametrize(
    ("name", "feature", "reason"),
    [
        ("away", FixedFeature((), bytes), "not there"),
        ("none", FixedFeature((), int), "not there"),
        ("i", FixedFeature((2,), np.int64), "3 values instead of 2"),
        ("i", FixedFeature((3,), np.uint8), "do not fit uint8"),
        ("i", VariableFeature(np.uint64), "do not fit uint64"),
        ("i", VariableFeature(bool), "do not fit bool"),
        ("i", VariableFeature(np.float32), "holds int64, not float32"),
        ("i", VariableFeature(bytes), "holds int64, not bytes"),
        ("f", VariableFeature(np.int64), "holds float32, not int64"),
        ("b", VariableFeature(np.int64), "holds bytes, not int64"),
        ("b", VariableFeature(str), "can't decode"),
    ],
)
def test_features_that_are_others(name: str, feature: Any, reason: str) -> None:
    with pytest.raises(FormatError, match=reason) as caught:
        parse_example(RECORD, {name: feature})
    assert repr(name) in str(caught.value) and "i: 3 int64" in str(caught.value)


@pytest.mark.parametrize("name", [1, None, b"a", "\ud800"])
def test_names_that_cannot_be_written(name: Any) -> None:
    with pytest.raises(ConfigError, match="no name of a feature"):
        encode_example({name: 2})


def test_a_list_without_values_is_there() -> None:
    """As with TensorFlow, a default is for features of which nothing is stored."""
    with pytest.raises(FormatError, match="0 values instead of 1"):
        parse_example(example((3, 2, b"")), {"x": FixedFeature((), int, default=5)})
    assert parse_example(example(), {"x": FixedFeature((), int, default=5)}) == {"x": 5}


class ForeignType:
    """A dtype of another library's, as `tf.int64` is."""


@pytest.mark.parametrize("dtype", [ForeignType(), "foo", None, object, "S3", "M8[s]", complex, 3])
def test_features_of_no_dtype(dtype: Any) -> None:
    for make in (lambda: FixedFeature((3,), dtype), lambda: VariableFeature(dtype)):
        with pytest.raises(ConfigError, match="no features of this dtype"):
            make()


@pytest.mark.parametrize("shape", [None, -1, (2, None), (-1,), "3", 2.0, (1.5,)])
def test_features_of_no_shape(shape: Any) -> None:
    with pytest.raises(ConfigError, match="no features of this shape"):
        FixedFeature(shape, int)


@pytest.mark.parametrize("default", ["x", [1, 2], {}, 1 << 70])
def test_defaults_that_do_not_fit(default: Any) -> None:
    with pytest.raises(ConfigError, match="default does not fit"):
        FixedFeature((3,), np.int64, default=default)


def message(*parts: tuple[int, int, bytes]) -> bytes:
    """Fields of any wire type, as they are written by hand."""
    return b"".join(
        varint(number << 3 | wire) + (varint(len(content)) if wire == 2 else b"") + content
        for number, wire, content in parts
    )


def example(*lists: tuple[int, int, bytes]) -> bytes:
    entry = message((1, 2, b"x"), (2, 2, message(*lists)))
    return message((1, 2, message((1, 2, entry))))


def test_lists_that_are_not_packed_or_in_pieces() -> None:
    single = message((1, 0, b"\x05"), (1, 2, b"\xac\x02\x01"), (1, 0, b"\xff" * 9 + b"\x01"))
    assert parse_example(example((3, 2, single)))["x"].tolist() == [5, 300, 1, -1]
    one = np.array([1.5], "<f4").tobytes()
    floats = message((1, 5, one), (1, 5, one), (1, 2, one * 2), (1, 5, one))
    assert parse_example(example((2, 2, floats)))["x"].tolist() == [1.5] * 5
    pieces = example((3, 2, message((1, 2, b"\x01"))), (3, 2, message((1, 2, b"\x02"))))
    assert parse_example(pieces)["x"].tolist() == [1, 2]
    kinds = example((3, 2, message((1, 2, b"\x01"))), (1, 2, message((1, 2, b"ab"))))
    assert parse_example(kinds)["x"] == [b"ab"]


def test_what_is_repeated_or_unknown() -> None:
    first, second = encode_example({"a": 1, "b": 1}), encode_example({"b": 2.5})
    merged = parse_example(first + message((9, 2, b"?"), (8, 0, b"\x01")) + second)
    assert merged["a"].tolist() == [1] and merged["b"].tolist() == [2.5]
    assert parse_example(b"") == {}


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b"\x08\x01", "wire type 0"),
        (message((1, 2, b"\x08\x01")), "wire type 0"),
        (message((1, 2, message((1, 2, message((1, 0, b"\x01")))))), "wire type 0"),
        (message((1, 2, message((1, 2, message((1, 2, b"\xff")))))), "can't decode"),
        (example((1, 0, b"\x01")), "wire type 0"),
        (example((1, 2, message((1, 0, b"\x01")))), "wire type 0"),
        (example((2, 2, message((1, 0, b"\x01")))), "floats is of wire type 0"),
        (example((2, 2, message((1, 2, b"123")))), "ends within one"),
        (example((3, 2, message((1, 2, b"\xff")))), "ends within one"),
        (example((3, 2, message((1, 2, b"\xff" * 10 + b"\x01")))), "no end"),
        (example((3, 2, message((1, 5, b"1234")))), "integers is of wire type 5"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "claims"),
        (b"\x0a", "ends within a number"),
        (b"\x0b", "wire type 3"),
    ],
)
def test_damaged_records(record: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        parse_example(record)


@given(st.data())
def test_flipped_bits_and_cut_ends(data: st.DataObject) -> None:
    record = bytearray(RECORD)
    for _ in range(data.draw(st.integers(1, 3))):
        record[data.draw(st.integers(0, len(record) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    for damaged in (record, record[: data.draw(st.integers(0, len(record)))]):
        good_or_error(bytes(damaged))


@given(st.binary(max_size=100))
def test_random_bytes(record: bytes) -> None:
    good_or_error(record)
    good_or_error(message((1, 2, message((1, 2, message((2, 2, record)))))))


def good_or_error(record: bytes) -> None:
    try:
        found = parse_example(record)
    except FormatError:
        return
    assert all(isinstance(value, (list, np.ndarray)) for value in found.values())


def test_hostile_records_do_not_take_for_ever() -> None:
    tiny = 20_000
    one = np.array([1], "<f4").tobytes()
    hostile = [
        example(*[(1, 2, message((1, 2, b"")))] * tiny),
        example((3, 2, message(*[(1, 2, b"\x01")] * tiny))),
        example((3, 2, message(*[(1, 0, b"\x01")] * tiny))),
        example((2, 2, message(*[(1, 5, one), (1, 5, one), (2, 0, b"\x01")] * (tiny // 3)))),
        message((1, 2, message((1, 2, b"")))) * tiny,
    ]
    for record in hostile:
        parse_example(record)  # what grows with the square would take minutes


@given(hnp.arrays(np.int64, st.integers(0, 30)))
def test_varints(values: np.ndarray[Any, Any]) -> None:
    raw = pack_varints(values)
    assert raw == b"".join(map(varint, values.tolist()))
    np.testing.assert_array_equal(packed_varints(memoryview(raw)), values)


@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from([1, 5])), max_size=60))
def test_repeated_numbers_of_fixed_size(tags: list[tuple[int, int]]) -> None:
    sizes = {1: 8, 5: 4}
    parts = [(number, wire, bytes([i]) * sizes[wire]) for i, (number, wire) in enumerate(tags)]
    found: list[tuple[int, int, bytes]] = []
    for number, wire, content in fields(memoryview(message(*parts))):
        assert not isinstance(content, int)
        size = sizes[wire]
        found += [
            (number, wire, bytes(content[i : i + size])) for i in range(0, len(content), size)
        ]
    assert found == parts
