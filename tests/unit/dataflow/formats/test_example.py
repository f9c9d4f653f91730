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


@pytest.mark.parametrize("name", [1, None, "\ud800"])
def test_names_that_cannot_be_written(name: Any) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        encode_example({name: 2})


class ForeignType:
    """A dtype of another library's, as `tf.int64` is."""


@pytest.mark.parametrize(
    ("shape", "dtype", "default", "told"),
    [
        *[((3,), kind, None, "dtype") for kind in (ForeignType(), "foo", None, "S3", complex, 3)],
        *[(shape, int, None, "shape") for shape in (None, -1, (2, None), "3", 2.0, (1.5,))],
        *[((3,), np.int64, value, "default does not fit") for value in ("x", [1, 2], {}, 1 << 70)],
    ],
)
def test_features_that_cannot_be(shape: Any, dtype: Any, default: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        FixedFeature(shape, dtype, default)
    if told == "dtype":
        with pytest.raises(ConfigError, match=told):
            VariableFeature(dtype)


def message(*parts: tuple[int, int, bytes]) -> bytes:
    """Fields of any wire type, as they are written by hand."""
    return b"".join(
        bytes([number << 3 | wire]) + (bytes([len(content)]) if wire == 2 else b"") + content
        for number, wire, content in parts
    )


def example(*lists: tuple[int, int, bytes]) -> bytes:
    entry = message((1, 2, b"x"), (2, 2, message(*lists)))
    return message((1, 2, message((1, 2, entry))))


def test_records_as_others_write_them() -> None:
    """Lists that are not packed, in pieces, of no values; what is repeated or unknown."""
    single = message((1, 0, b"\x05"), (1, 2, b"\xac\x02\x01"), (1, 0, b"\xff" * 9 + b"\x01"))
    assert parse_example(example((3, 2, single)))["x"].tolist() == [5, 300, 1, -1]
    pieces = example((3, 2, message((1, 2, b"\x01"))), (3, 2, message((1, 2, b"\x02"))))
    assert parse_example(pieces)["x"].tolist() == [1, 2]
    # As with TensorFlow, a default is for features of which nothing is stored.
    with pytest.raises(FormatError, match="0 values instead of 1"):
        parse_example(example((3, 2, b"")), {"x": FixedFeature((), int, default=5)})
    assert parse_example(example(), {"x": FixedFeature((), int, default=5)}) == {"x": 5}
    first, second = encode_example({"a": 1, "b": 1}), encode_example({"b": 2.5})
    merged = parse_example(first + message((9, 2, b"?"), (8, 0, b"\x01")) + second)
    assert merged["a"].tolist() == [1] and merged["b"].tolist() == [2.5]
    assert parse_example(b"") == {}


@given(st.data())
def test_damaged_records(data: st.DataObject) -> None:
    record = bytearray(RECORD)
    for _ in range(data.draw(st.integers(1, 3))):
        record[data.draw(st.integers(0, len(record) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    for damaged in (record, record[: data.draw(st.integers(0, len(record)))]):
        try:
            found = parse_example(bytes(damaged))
        except FormatError:
            continue
        assert all(isinstance(value, (list, np.ndarray)) for value in found.values())
    with pytest.raises(FormatError, match="damaged"):
        parse_example(RECORD[:-1])
