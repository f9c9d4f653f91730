"""What subclasses override counts, under every stage: `__iter__`, `__getitem__`, `reset_state`."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from towerpack import ConfigError, DataFlowError
from towerpack.dataflow import (
    BatchData,
    ConcatData,
    DataFlow,
    DataFromList,
    DiskCacheData,
    HDF5Serializer,
    JoinData,
    LMDBSerializer,
    MapData,
    MultiThreadMapData,
    NumpySerializer,
    PrefetchData,
    ProxyDataFlow,
    ShuffleData,
    TestDataSpeed,
    TFRecordSerializer,
    profile,
)
from towerpack.dataflow._user_code import with_method
from towerpack.dataflow.testing import check_flow

LIST = [(i,) for i in range(8)]


class Later:
    """Mixed in: one more than what the class gives by itself."""

    def __iter__(self) -> Iterator[Any]:
        for dp in super().__iter__():  # type: ignore[misc]
            yield (dp[0] + 100,)


class ListLater(Later, DataFromList):
    pass


class MapLater(Later, MapData):
    pass


class Files(DataFlow):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return (index,)


class FilesLater(Later, Files):
    """Python goes by `__iter__`, so everything does."""


class ListByNumber(DataFromList):
    def __getitem__(self, index: int) -> Any:
        return (super().__getitem__(index)[0] + 100,)


class ProxyByNumber(ProxyDataFlow):
    def __getitem__(self, index: int) -> Any:
        return (index + 100,)


def minus(dp: tuple[int]) -> tuple[int]:
    return (-dp[0],)


OVERRIDING: list[Callable[[], DataFlow]] = [
    lambda: ListLater(LIST),
    lambda: MapLater(DataFromList([(-i,) for i in range(8)]), minus),
    FilesLater,
    lambda: ListByNumber(LIST),
    lambda: ProxyByNumber(DataFromList(LIST)),
]


@pytest.mark.parametrize("make", OVERRIDING)
def test_what_is_overridden_counts_under_every_stage(make: Callable[[], DataFlow]) -> None:
    for ds in (make(), PrefetchData(MapData(make(), lambda dp: dp), num_proc=0)):
        assert [int(dp[0]) for dp in ds] == list(range(100, 108))
        batches = BatchData(ds, 4)
        assert [dp[0].tolist() for dp in batches] == [[100, 101, 102, 103], [104, 105, 106, 107]]
        assert [int(a[0]) for a in JoinData([ds])] == list(range(100, 108))
    check_flow(make)


def test_by_number_needs_no_iter_of_its_own() -> None:
    assert ListByNumber(LIST).plan(seed=0).get(3) == (103,)
    assert sorted(dp[0] for dp in ShuffleData(ListByNumber(LIST))) == list(range(100, 108))
    for ds in (ListLater(LIST), FilesLater()):
        with pytest.raises(ConfigError, match="no __iter__"):
            ds.plan(seed=0)
        with pytest.raises(ConfigError, match="no __iter__"):
            ShuffleData(ds).iterate()


# ---------------------------------------------------------------------------- reset_state


class OpensFirst(DataFlow):
    """What opens its files in `reset_state`, as flows for the predecessor do."""

    calls = 0
    pid = 0

    def reset_state(self) -> None:
        super().reset_state()
        self.calls += 1
        self.pid = os.getpid()


class Opens(OpensFirst):
    def __iter__(self) -> Iterator[Any]:
        for i in range(4):
            yield (self.calls, self.pid, i)


class OpensByNumber(OpensFirst):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return (self.calls, self.pid, index)


class Doubles(ProxyDataFlow):
    calls = 0

    def reset_state(self) -> None:
        super().reset_state()
        self.calls += 1

    def __iter__(self) -> Iterator[Any]:
        for dp in self.ds:
            yield (*dp, self.calls)


@pytest.mark.parametrize("cls", [Opens, OpensByNumber])
@pytest.mark.parametrize("by_hand", [False, True])
def test_it_is_called_once_in_a_process(cls: type[OpensFirst], by_hand: bool) -> None:
    opens = cls()
    ds = BatchData(Doubles(opens), 2)
    if by_hand:
        ds.reset_state()
    for _ in range(3):
        for calls, _, _, outer in ds:
            assert calls.tolist() == [1, 1] and outer.tolist() == [1, 1]
    assert (opens.calls, opens.pid) == (1, os.getpid())


def test_it_is_called_in_each_worker() -> None:
    opens = OpensByNumber()
    ds = PrefetchData(opens, num_proc=2)
    ds.reset_state()
    for _ in range(2):
        got = list(ds)
        assert {dp[0] for dp in got} == {1} and os.getpid() not in {dp[1] for dp in got}
    assert opens.calls == 0  # what is open here could not be sent to workers


def test_threads_wait_for_it() -> None:
    class Slow(OpensByNumber):
        def reset_state(self) -> None:
            self.calls += 1
            threading.Event().wait(0.05)
            self.pid = os.getpid()

    got = list(MultiThreadMapData(Slow(), 4, lambda dp: dp))
    assert {dp[:2] for dp in got} == {(1, os.getpid())}


@pytest.mark.parametrize("cls", [Opens, OpensByNumber])
def test_one_that_fails_is_called_again(cls: type[OpensFirst]) -> None:
    class Fails(cls):  # type: ignore[misc, valid-type]
        def reset_state(self) -> None:
            self.calls += 1
            if self.calls == 1:
                raise OSError("not there yet")

    iterator = Fails().iterate()
    with pytest.raises((DataFlowError, OSError), match="not there yet"):
        next(iterator)
    assert next(iterator)[0] == 2


def test_a_view_without_the_override_travels() -> None:
    view = with_method(ListLater(LIST), DataFlow.__iter__)
    for again in (cloudpickle.loads(cloudpickle.dumps(view)), view):
        assert list(again) == list(BatchData(again, 1, stack="list").ds) == LIST
        assert repr(again) == "ListLater(8)"


# What fills itself in `reset_state`: every reader gets all of it, and the right length


class Fills(DataFlow):
    """Data that are there, and counted, only after `reset_state`."""

    def __init__(self) -> None:
        self.items: Any = []

    def reset_state(self) -> None:
        super().reset_state()
        self.items = [[np.float32(i)] for i in range(6)]

    def __len__(self) -> int:
        return len(self.items)


class FillsIter(Fills):
    def __iter__(self) -> Iterator[Any]:
        yield from self.items


class FillsItems(Fills):
    def __getitem__(self, index: int) -> Any:
        return self.items[index]


class FillsNone(FillsIter):
    def __init__(self) -> None:
        self.items = None


class FillsNothing(FillsIter):
    def __init__(self) -> None:
        pass


class FillsList(DataFromList):
    def __init__(self) -> None:
        super().__init__([])

    def reset_state(self) -> None:
        self.lst = [[np.float32(i)] for i in range(6)]


class Adds(MapData):
    """A stage of the user's whose function needs `reset_state`."""

    def __init__(self) -> None:
        super().__init__(DataFromList([[np.float32(i - 10)] for i in range(6)]), self._add)

    def reset_state(self) -> None:
        super().reset_state()
        self.added = 10

    def _add(self, dp: Any) -> Any:
        return [dp[0] + self.added]


def _saved(serializer: Any, *arguments: Any, **options: Any) -> Any:
    def read(flow: DataFlow, tmp_path: Path) -> Any:
        serializer.save(flow, tmp_path / "file", *arguments)
        return serializer.load(tmp_path / "file", *arguments, **options)

    return read


READERS: dict[str, Any] = {
    "iter": lambda flow, _: flow,
    "iterate": lambda flow, _: flow.iterate(seed=0),
    "by the user": lambda flow, _: ProxyDataFlow(flow),
    "stage": lambda flow, _: MapData(flow, lambda dp: dp),
    "processes": lambda flow, _: PrefetchData(flow, num_proc=2),
    "maps in processes": lambda flow, _: PrefetchData(MapData(flow, lambda dp: dp), num_proc=2),
    "threads": lambda flow, _: MultiThreadMapData(flow, 2, lambda dp: dp),
    "joined": lambda flow, _: ConcatData([flow, DataFromList([])]),
    "lmdb": _saved(LMDBSerializer, shuffle=False),
    "tfrecord": _saved(TFRecordSerializer),
    "numpy": _saved(NumpySerializer, shuffle=False),
    "hdf5": _saved(HDF5Serializer, ["x"], shuffle=False),
    "disk cache": lambda flow, path: DiskCacheData(flow, path / "cache"),
}
FILLING = [FillsIter, FillsItems, FillsNone, FillsNothing, FillsList, Adds]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("cls", FILLING)
def test_all_readers_get_what_reset_state_fills(cls: Any, reader: str, tmp_path: Path) -> None:
    assert [float(dp[0]) for dp in READERS[reader](cls(), tmp_path)] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("cls", FILLING)
def test_lengths_are_those_after_reset_state(cls: Any) -> None:
    assert len(cls()) == 6
    assert len(BatchData(cls(), 2)) == 3
    assert len(MapData(cls(), lambda dp: dp)) == 6


@pytest.mark.parametrize("cls", FILLING)
def test_measuring_readers_read_all(cls: Any) -> None:
    TestDataSpeed(cls(), size=6, warmup=0).start()
    profile(BatchData(cls(), 2), seconds=0.02)


def test_a_length_that_reset_state_changes_is_an_error() -> None:
    class Guesses(FillsItems):
        def __len__(self) -> int:
            return len(self.items) or 100

    with pytest.raises(DataFlowError, match="was 100 before reset_state and is 6"):
        list(Guesses())


@pytest.mark.parametrize("length", [2, 10])
def test_a_wrong_length_is_no_file_of_zeros(length: int, tmp_path: Path) -> None:
    class Lies(FillsIter):
        def __init__(self) -> None:
            self.reset_state()

        def __len__(self) -> int:
            return length

    with pytest.raises(DataFlowError, match=f"its length is {length}"):
        HDF5Serializer.save(Lies(), tmp_path / "x.h5", ["x"])
    assert not list(tmp_path.iterdir())
