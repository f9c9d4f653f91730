from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from towerpack import ConfigError, FormatError
from towerpack.dataflow.formats import (
    FixedFeature,
    VariableFeature,
    encode_example,
    parse_example,
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([b"", b"x"], [b"", b"x"]),
        ("ä", ["ä".encode()]),
        (["a", b"b"], [b"a", b"b"]),
        (np.array(["ab", "c"]), [b"ab", b"c"]),
        (7, np.array([7])),
        (True, np.array([1])),
        (-(1 << 63), np.array([-(1 << 63)])),
        ([1, 2.5], np.array([1, 2.5], np.float32)),
        (memoryview(b"xy")[::-1], [b"yx"]),
        ([1 << 63, 0.5], np.array([1 << 63, 0.5], np.float32)),
        (np.arange(6, dtype=np.uint8).reshape(2, 3), np.arange(6)),
        (np.asfortranarray(np.arange(6).reshape(2, 3)), np.arange(6)),
        (np.zeros((0, 3)), []),
    ],
)
def test_values(value: Any, expected: Any) -> None:
    found = parse_example(encode_example({"ä\0": value}))["ä\0"]
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
    with pytest.raises(ConfigError, match=r"feature 'x' cannot be stored"):
        encode_example({"x": value})


DATAPOINT = {"i": [1, 300, -1], "f": [0.5, 2.0], "b": [b"p", b"\xff"], "one": [5], "none": []}
RECORD = encode_example(DATAPOINT)


@pytest.mark.parametrize(
    ("name", "feature", "expected"),
    [
        ("i", FixedFeature((3,), np.int16), np.array([1, 300, -1], np.int16)),
        ("i", FixedFeature(3, np.int64), np.array([1, 300, -1])),
        ("none", FixedFeature((), int, default=5), np.int64(5)),
        ("none", FixedFeature((0, 3), np.uint8), np.zeros((0, 3), np.uint8)),
        ("away", FixedFeature((3,), int, default=[1, 2, 3]), np.array([1, 2, 3])),
        ("f", VariableFeature(np.float64), np.array([0.5, 2.0])),
        ("one", FixedFeature((), np.uint8), np.uint8(5)),
        ("away", VariableFeature(np.float32), np.array([], np.float32)),
        ("away", FixedFeature((), str, default="?"), "?"),
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
        ("away", FixedFeature((), bytes), "0 values instead of 1"),
        ("i", FixedFeature((2,), np.int64), "3 values instead of 2"),
        ("i", FixedFeature((3,), np.uint8), "do not fit uint8"),
        ("i", VariableFeature(np.float32), "holds int64, not float32"),
        ("i", VariableFeature(bytes), "holds int64, not bytes"),
        ("f", VariableFeature(np.int64), "holds float32, not int64"),
        ("b", VariableFeature(str), "can't decode"),
    ],
)
def test_features_that_are_others(name: str, feature: Any, reason: str) -> None:
    with pytest.raises(FormatError, match=reason) as caught:
        parse_example(RECORD, {name: feature})
    assert repr(name) in str(caught.value) and "i: 3 int64" in str(caught.value)


def test_features_that_cannot_be() -> None:
    kinds = [((3,), kind) for kind in (object(), "foo", "S3", complex)]
    for shape, dtype in (*kinds, *[(shape, int) for shape in (None, -1, (2, None), "3", 2.0)]):
        with pytest.raises(ConfigError, match="The shape or the dtype"):
            FixedFeature(shape, dtype)  # type: ignore[arg-type]


def test_records_as_others_write_them() -> None:
    """As with TensorFlow, a default is for features of which nothing is stored."""
    default = {"x": FixedFeature((), int, default=5)}
    with pytest.raises(FormatError, match="0 values instead of 1"):
        parse_example(b"\n\t\n\x07\n\x01x\x12\x02\x1a\x00", default)
    assert parse_example(b"\n\x07\n\x05\n\x01x\x12\x00", default) == {"x": 5}
    first, second = encode_example({"a": 1, "b": 1}), encode_example({"b": 2.5})
    merged = parse_example(first + b"\x4a\x01?" + second)  # a field that nobody knows, and more
    assert merged["a"].tolist() == [1] and merged["b"].tolist() == [2.5]
    assert parse_example(b"") == {}
    with pytest.raises(FormatError, match="not a valid tf"):
        parse_example(RECORD[:-1])
