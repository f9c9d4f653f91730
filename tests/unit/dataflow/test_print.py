"""TestDataSpeed and PrintData."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from towerpack._core.errors import ConfigError, DataFlowError
from towerpack.dataflow import (
    BatchData,
    DataFromArrays,
    DataFromGenerator,
    DataFromList,
    MapData,
    PrefetchData,
    PrintData,
    RepeatedData,
    ShuffleData,
    TestDataSpeed,
)


def test_speed(capsys: pytest.CaptureFixture[str]) -> None:
    ticks = itertools.count()
    ds = BatchData(DataFromArrays(np.zeros((10, 25), np.float32)), 2)
    report = TestDataSpeed(ds, 20, 7, clock=lambda: 4.0 * next(ticks)).start()
    assert report.datapoints == 20
    assert report.seconds == 4
    assert report.nbytes == 20 * 2 * 25 * 4
    assert report.datapoints_per_second == 5
    assert report.bytes_per_second == 1000
    assert report.first_s == 4
    captured = capsys.readouterr()
    assert "DataFromArrays(10) > BatchData(2)" in captured.out and "5.0 /s" in captured.out
    assert "first       after 4 s" in captured.out and captured.err == ""


def test_warm_up_is_read_but_not_counted() -> None:
    read: list[int] = []
    ds = MapData(DataFromList([(i,) for i in range(4)]), lambda dp: read.append(dp[0]) or dp)
    assert TestDataSpeed(ds, 6, 3).start().datapoints == 6
    assert read == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    assert TestDataSpeed(ds, 1).start().datapoints == 1


@pytest.mark.parametrize("stage", [PrintData, TestDataSpeed, lambda ds: PrefetchData(ds, 1, 0)])
def test_states_and_random_order_ignore_stages_that_change_no_datapoint(stage: Any) -> None:
    source = DataFromList([(i,) for i in range(20)])
    plain, wrapped = ShuffleData(source), stage(ShuffleData(stage(source)))
    expected = list(plain.iterate(seed=5, epoch=1))
    assert list(wrapped.iterate(seed=5, epoch=1)) == expected
    iterator = plain.iterate(seed=5, epoch=1)
    next(iterator)
    assert list(wrapped.iterate(state=iterator.state())) == expected[1:]


def test_speed_of_streams_and_scalars() -> None:
    ds = DataFromGenerator(lambda: iter([(1, 2.0, "abc", b"de", True, None)]))
    assert TestDataSpeed(ds, 3).start().nbytes == 3 * (8 + 8 + 3 + 2 + 8)
    ds = DataFromList([(np.zeros(i, np.uint8),) for i in range(1000)])
    assert 450_000 < TestDataSpeed(ds, 1000).start().nbytes < 550_000
    with pytest.raises(DataFlowError, match="has no datapoints"):
        TestDataSpeed(DataFromList([])).start()
    with pytest.raises(ConfigError):
        TestDataSpeed(DataFromList([]), 0)


DATA = [{"image": np.zeros((2, 3), np.uint8), "boxes": list(range(9)), "name": "x" * 90}] * 5


@pytest.mark.parametrize("make", [DataFromList, lambda data: DataFromGenerator(lambda: iter(data))])
def test_print(make: object, capsys: pytest.CaptureFixture[str]) -> None:
    ds = PrintData(make(DATA), 2, name="train")  # type: ignore[operator]
    assert len(list(RepeatedData(ds, 2))) == 10
    out = capsys.readouterr().out
    assert out.count("train: datapoint") == 2
    lines = out.splitlines()
    assert lines[0].startswith("train: datapoint 0 of DataFrom")
    assert lines[1:9] == [
        "  dict of 3",
        "    image: array uint8 [2, 3] in [0, 0]",
        "    boxes: list of 9",
        "      0: int 0",
        "      1: int 1",
        "      2: int 2",
        "      ... and 6 more",
        f"    name: str of length 90: {'x' * 40!r}",
    ]


def test_print_looks_beneath_batches_and_shuffles(capsys: pytest.CaptureFixture[str]) -> None:
    source = PrintData(DataFromArrays(np.arange(10)), 3)
    list(BatchData(ShuffleData(source), 5))
    out = capsys.readouterr().out
    assert sorted(line.strip() for line in out.splitlines() if "0: int64" in line) == [
        "0: int64 0",
        "0: int64 1",
        "0: int64 2",
    ]


def test_print_says_it_once_per_iterator(capsys: pytest.CaptureFixture[str]) -> None:
    ds = PrintData(DataFromList([(np.float32(1.5),)]))
    list(ds)
    list(ds)
    assert capsys.readouterr().out.count("float32 1.5") == 2
    resumed = PrintData(DataFromGenerator(lambda: iter([(1,), (2,)])))
    iterator = resumed.iterate()
    next(iterator)
    capsys.readouterr()
    assert list(resumed.iterate(state=iterator.state())) == [(2,)]
    assert capsys.readouterr().out == ""
