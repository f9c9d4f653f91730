"""Batches and what stacks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from towerpack._core.errors import BatchError, ConfigError
from towerpack.dataflow import (
    BatchData,
    DataFlow,
    DataFromArrays,
    DataFromGenerator,
    DataFromList,
    MapData,
    PrefetchData,
    RepeatedData,
    ShuffleData,
)


def batch(*rows: Any, n: int | None = None, **options: Any) -> Any:
    """The first batch of datapoints."""
    return next(iter(BatchData(DataFromList(list(rows)), n or len(rows), **options)))


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        ([True, False], np.bool_, [True, False]),
        ([1, -2], np.int64, [1, -2]),
        ([1.5, 2.5], np.float32, [1.5, 2.5]),
        ([1, 2.5], np.float32, [1, 2.5]),
        ([np.float64(1), np.float64(2)], np.float64, [1, 2]),
        # Numbers of Python's beside NumPy's scalars of the dtype that they become.
        ([1, np.int64(2)], np.int64, [1, 2]),
        ([np.int64(-(2**63)), 2**63 - 1, np.int64(0)], np.int64, [-(2**63), 2**63 - 1, 0]),
        ([np.float32(2.5), 1, 0.5], np.float32, [2.5, 1, 0.5]),
        ([np.True_, False, True], np.bool_, [True, False, True]),
        ([np.array(3, np.int16), np.array(4, np.int16)], np.int16, [3, 4]),
        ([np.zeros(2, np.float16)] * 2, np.float16, [[0, 0], [0, 0]]),
        (["a", "bcd"], object, ["a", "bcd"]),
        ([np.str_("a"), np.str_("bcd")], object, ["a", "bcd"]),
        ([b"a\0", b"bc\0\0"], object, [b"a\0", b"bc\0\0"]),
        ([[1, 2], [3, 4]], np.int64, [[1, 2], [3, 4]]),
        ([(1.0, 2.0), (3.0, 4.0)], np.float32, [[1, 2], [3, 4]]),
        ([[True], [False]], np.bool_, [[True], [False]]),
        ([[np.float64(1)], [np.float64(2)]], np.float64, [[1], [2]]),
    ],
)
def test_dtypes(values: list[Any], dtype: Any, expected: list[Any]) -> None:
    (column,) = batch(*[(value,) for value in values])
    assert column.dtype == dtype
    assert column.tolist() == expected


def test_kind_of_datapoint_is_kept() -> None:
    assert type(batch((1, 2), (3, 4))) is tuple
    assert type(batch([1, 2], [3, 4])) is list
    dicts = {"b": 1, "a": 2}, {"a": 4, "b": 3}
    assert list(batch(*dicts)) == ["b", "a"] and batch(*dicts)["a"].tolist() == [2, 4]
    assert batch(*dicts, stack="list") == {"b": [1, 3], "a": [2, 4]}


def test_remainder() -> None:
    ten = DataFromList([(i,) for i in range(10)])
    stream = DataFromGenerator(lambda: ((i,) for i in range(10)))
    for ds in (ten, stream):
        assert [b[0].tolist() for b in BatchData(ds, 4)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert [len(b[0]) for b in BatchData(ds, 4, remainder=True)] == [4, 4, 2]
        assert [len(b[0]) for b in BatchData(ds, 5, remainder=True)] == [5, 5]
        assert list(BatchData(ds, 11)) == []
    assert len(BatchData(ten, 4)) == 2
    assert len(BatchData(ten, 4, True)) == 3
    with pytest.raises(TypeError):
        BatchData(ten, 3, True, True)  # type: ignore[misc]  # use_list: taken for nothing else
    with pytest.raises(ConfigError, match=r"stack must be .*, got 'lists'"):
        BatchData(ten, 3, stack="lists")  # type: ignore[arg-type]


class Numbers(DataFlow):
    """Its length is known, and it can only be read in order."""

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[Any]:
        return ((i,) for i in range(3))


def unknown() -> DataFlow:
    return DataFromGenerator(lambda: ((i,) for i in range(3)))


@pytest.mark.parametrize("three", [lambda: DataFromArrays(np.arange(3)), Numbers, unknown])
def test_batches_larger_than_a_pass_are_told_once(
    three: Callable[[], DataFlow], caplog: pytest.LogCaptureFixture
) -> None:
    ds = BatchData(three(), 8)
    assert list(ds) == list(ds) == []
    (message,) = caplog.messages
    assert message.startswith(f"{ds} yields no batch: a pass has 3 datapoints, a batch needs 8.")
    caplog.clear()
    ahead = PrefetchData(BatchData(three(), 8), num_proc=1, backend="thread")
    assert list(ahead) == list(ahead) == []
    assert len(caplog.messages) == 1
    caplog.clear()
    # Nothing is lost of an empty flow, nor of one that never ends, nor at the end of a resumed one.
    assert list(BatchData(DataFromList([]), 8)) == []
    next(iter(BatchData(RepeatedData(three()), 8)))
    ds = BatchData(three(), 2)
    iterator = ds.iterate(seed=0)
    next(iterator)
    assert list(ds.iterate(state=iterator.state())) == []
    assert len(list(BatchData(three(), 8, remainder=True))) == 1
    assert caplog.messages == []


def test_ragged_items_show_both_shapes() -> None:
    rows = [{"image": np.zeros((480, 640, 3), np.uint8)}] * 7
    rows.append({"image": np.zeros((375, 500, 3), np.uint8)})
    with pytest.raises(BatchError) as caught:
        next(iter(BatchData(MapData(DataFromList(rows), lambda dp: dp), 8)))
    assert str(caught.value).splitlines() == [
        "Datapoint 7 of a batch cannot be stacked with datapoint 0.",
        "  got       image uint8 [375, 500, 3]",
        "  expected  image uint8 [480, 640, 3], as in datapoint 0",
        "  to fix    make the shapes agree before batching, or use BatchData(pad=...) or "
        'BatchData(stack="list")',
        "  pipeline  DataFromList(8) > MapData(<lambda>) > BatchData(8)",
    ]
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(np.zeros(2),), (np.zeros(2, "f4"),)], "float32"),
        ([(True,), (1,)], "component 0 int"),
        ([(1,), ("1",)], "str of length 1"),
        ([(1,), (np.int64(1),), (np.uint8(1),)], "Datapoint 2 .*\n  got       component 0 uint8"),
        ([(np.float64(1),), (1.0,)], "component 0 float\n  expected  component 0 float64"),
        ([(1,), (np.int64(1),), (None,)], "Datapoint 2 .*\n  got       component 0 None"),
        ([(np.int64(1),), (1,), (np.zeros(1, np.int64),)], r"component 0 int64 \[1\]"),
        ([(1, 2), (1,)], "tuple \\(int\\)"),
        ([(1,), [1]], "list \\(int\\)"),
        ([{"a": 1}, {"b": 1}], "dict {b: int}"),
        ([(object(),), (object(),)], "object"),
        ([5, 6], "values into a tuple: \\(x,\\)"),
        ([(1 << 70,), (1,)], "beyond 64 bits"),
        ([([[1], [2, 3]],), ([1],)], "ragged list"),
        ([([1],), (3,)], "component 0 int"),
        ([(np.arange(2),), (np.ma.masked_array([1, 2]),)], "datapoint 1 is a masked array"),
    ],
)
def test_what_does_not_stack(rows: list[Any], message: str) -> None:
    with pytest.raises(BatchError, match=r"stack|to batch|64|ragged|masked") as caught:
        batch(*rows)
    assert re.search(message, str(caught.value))


def test_pad() -> None:
    rows = [(np.ones((1, 2), np.int32), i) for i in range(2)]
    rows.append((np.ones((2, 1), np.int32), 2))
    padded, index = batch(*rows, pad=-1)
    assert padded.dtype == np.int32
    assert padded.tolist() == [[[1, 1], [-1, -1]], [[1, 1], [-1, -1]], [[1, -1], [1, -1]]]
    assert index.tolist() == [0, 1, 2]
    dicts = [{"a": np.ones(i), "b": np.ones(i, np.uint8)} for i in (1, 2)]
    assert batch(*dicts, pad={"a": np.nan, "b": 7})["b"].tolist() == [[1, 7], [1, 1]]
    with pytest.raises(BatchError, match="Datapoint 1 of a batch cannot be stacked"):
        batch(*dicts, pad={"a": 0})


def test_pads_that_do_not_fit() -> None:
    with pytest.raises(
        BatchError, match="names the component 'x', but datapoints have no such component"
    ) as caught:
        batch({"a": 1, "b": 2}, {"a": 1, "b": 2}, pad={"x": 0})
    assert caught.value.expected == "'a' or 'b'"
    for pad in ("x", 2**64, np.nan, 0.5, -1):
        with pytest.raises(BatchError, match="cannot be padded with"):
            batch((np.zeros(2, np.uint8),), (np.zeros(1, np.uint8),), pad=pad)


def test_empty_lists_are_of_the_kind_of_the_others() -> None:
    (ids,) = batch(([],), ([1, 2],), ([],), pad=7)
    assert ids.dtype == np.int64 and ids.tolist() == [[7, 7], [1, 2], [7, 7]]
    (boxes,) = batch(([[1.0, 2, 3, 4]],), ([],), pad=0)
    assert boxes.dtype == np.float32 and boxes.tolist() == [[[1, 2, 3, 4]], [[0] * 4]]
    assert batch(([],), ([],))[0].shape == (2, 0)
    with pytest.raises(BatchError, match=r"int64 \[0\]"):
        batch(([1, 2],), ([],))


def test_lists() -> None:
    rows = [(np.zeros(i), "x", None) for i in range(3)]
    arrays, texts, nothing = batch(*rows, stack="list")
    assert [len(a) for a in arrays] == [0, 1, 2]
    assert texts == ["x"] * 3 and nothing == [None] * 3
    columns = next(iter(BatchData(DataFromArrays(np.arange(4)), 2, stack="list")))
    assert columns == ([0, 1],)


def test_fast_path_gives_what_the_slow_path_gives() -> None:
    texts = ["a", "bb", "c", "d", "eee", "f"]
    for array in (
        np.arange(12).reshape(6, 2),
        np.array(texts),
        np.array(texts, bytes),
        np.array(texts, object),
        np.arange(6).astype("datetime64[s]"),
    ):
        ds = ShuffleData(DataFromArrays(array), seed=1)
        slow = MapData(ds, lambda dp: dp)
        for (one,), (other,) in zip(BatchData(ds, 3), BatchData(slow, 3), strict=True):
            assert one.dtype == other.dtype
            assert one.tolist() == other.tolist()
