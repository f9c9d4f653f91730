"""Sources that write over what they have given: workers get what was given all the same."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from shared_workers import shared_workers
from towerpack import DataFlowError
from towerpack.dataflow import (
    BatchByLength,
    BatchData,
    BatchDataByShape,
    CacheData,
    ConcatData,
    DataFlow,
    DataFromGenerator,
    DataFromIterable,
    DataFromList,
    DiskCacheData,
    FilterData,
    FixedSizeData,
    HDF5Serializer,
    JoinData,
    LMDBSerializer,
    LocallyShuffleData,
    MapData,
    MixData,
    MultiThreadMapData,
    NumpySerializer,
    PrefetchData,
    ProxyDataFlow,
    RepeatedData,
    RepeatedDataPoint,
    SelectComponent,
    ShardData,
    ShardRows,
    TarSerializer,
    TFRecordSerializer,
)
from towerpack.dataflow._flow import may_write_over
from towerpack.dataflow.datapoints import duplicate

COUNT = 40
BACKENDS = pytest.mark.parametrize("backend", ["process", "thread"])


@pytest.fixture(scope="module", autouse=True)
def _shared_workers() -> Iterator[None]:
    with shared_workers():
        yield


def shots() -> Iterator[Any]:
    frame = np.zeros((2, 2), np.uint8)
    for i in range(COUNT):
        frame[:] = i
        yield (frame, i)


class Camera(DataFlow):
    """Gives one array again and again."""

    def __iter__(self) -> Iterator[Any]:
        return shots()


def kept(dp: Any) -> Any:
    """What a map makes of it; by itself, it is right."""
    return (dp[0].copy(), dp[1])


def same(dp: Any) -> Any:
    return dp


def numbers(flow: DataFlow) -> list[int]:
    """One pixel of each frame, of datapoints or of batches of them."""
    frames = [np.reshape(frame, (-1, 4)) for frame, _ in flow.iterate(seed=0)]
    return np.concatenate(frames)[:, -1].tolist()


def test_without_maps_it_is_the_serial_pipeline() -> None:
    for serial in (RepeatedData(Camera(), 2), BatchData(Camera(), 4)):
        assert numbers(PrefetchData(serial, num_proc=2)) == numbers(serial)
    assert numbers(RepeatedData(PrefetchData(Camera(), num_proc=2), 2)) == [COUNT - 1] * 2 * COUNT


class OneList(ProxyDataFlow):
    """Gives one list again and again."""

    def __iter__(self) -> Iterator[Any]:
        row: list[Any] = []
        for row[:] in self.ds:
            yield row


SOURCES: dict[str, Callable[[], DataFlow]] = {
    "generator function": lambda: DataFromGenerator(shots),
    "iterator": lambda: DataFromIterable(shots()),
    "wrapper": lambda: OneList(DataFromList([(np.full((2, 2), i), i) for i in range(COUNT)])),
    "below stages": lambda: SelectComponent(FixedSizeData(FilterData(Camera(), bool), 40), [0, 1]),
    "one of two": lambda: ConcatData([DataFromList([]), Camera()]),
}


@BACKENDS
@pytest.mark.parametrize("source", SOURCES)
def test_all_code_of_the_users(source: str, backend: Any) -> None:
    flow = SOURCES[source]()
    assert may_write_over(flow)
    flow = PrefetchData(MapData(flow, kept), num_proc=2, backend=backend)
    assert numbers(flow) == list(range(COUNT))


def test_sources_of_the_library_are_not_copied() -> None:
    items = [(np.full((2, 2), i), i) for i in range(COUNT)]
    given = {id(frame) for frame, _ in items}
    flow = FilterData(DataFromList(items), bool)
    assert not may_write_over(flow)
    flow = MultiThreadMapData(flow, 2, lambda dp: (id(dp[0]) in given,))
    assert all(found for (found,) in flow)


# ------------------------------------------------------------------ kinds of datapoints


class Shot(NamedTuple):
    frame: Any
    number: int


@dataclass
class Mine:
    frame: Any


def objects(frame: Any) -> Any:
    array = np.empty(1, object)
    array[0] = frame
    return array


KEEPING: dict[str, Callable[[DataFlow], DataFlow]] = {
    "batches": lambda ds: BatchData(ds, 5),
    "batches, prefetched": lambda ds: PrefetchData(BatchData(ds, 5), num_proc=1),
    "batches of lists": lambda ds: BatchData(ds, 5, stack="list"),
    "batches by shape": lambda ds: BatchDataByShape(ds, 5, 0),
    "batches by length": lambda ds: BatchByLength(ds, 5, [3], pad=0),
    "batches of maps": lambda ds: BatchData(MapData(ds, same), 5),
    "batches of a shard": lambda ds: ShardData(BatchData(ds, 5), 1, 0),
    "rows of batches": lambda ds: ShardRows(BatchData(ds, 5), 1, 0),
    "vectorized map": lambda ds: MapData(ds, same, batched=True),
    "shuffle": lambda ds: LocallyShuffleData(ds, 8),
    "shuffle, reused": lambda ds: LocallyShuffleData(ds, 8, 2),
    "cache": CacheData,
    "cache, shuffled": lambda ds: CacheData(ds, shuffle=True),
    "second pass of a cache": lambda ds: RepeatedData(CacheData(ds), 2),
    "repeated datapoints": lambda ds: RepeatedDataPoint(ds, 2),
    "shard": lambda ds: ConcatData([ShardData(ds, 4, i) for i in range(4)]),
    "fixed size": lambda ds: BatchData(FixedSizeData(ds, COUNT), 5),
    "mixed": lambda ds: BatchData(MixData([ds, ds], [1, 1]), 5),
    "joined with itself": lambda ds: JoinData(
        [ds, MapData(FilterData(RepeatedData(ds, 2), lambda dp: dp[1] > 0), lambda dp: dp[:0])]
    ),
    "below a flow of the user's": lambda ds: BatchData(ProxyDataFlow(ds), 5),
}


class OneBuffer(DataFlow):
    """Shares one array among all of its passes."""

    def __init__(self) -> None:
        self.frame = np.zeros((2, 2), np.uint8)

    def __iter__(self) -> Iterator[Any]:
        for i in range(COUNT):
            self.frame[:] = i
            yield (self.frame, i)


@pytest.mark.parametrize("make", [Camera, OneBuffer, lambda: DataFromGenerator(shots)])
@pytest.mark.parametrize("name", KEEPING)
def test_every_stage_that_keeps_datapoints(
    name: str, make: Callable[[], DataFlow], tmp_path: Path
) -> None:
    found: list[tuple[int, int]] = []
    for dp in KEEPING[name](make()).iterate(seed=3):
        frames, labels = np.reshape(dp[0], (-1, 4))[:, -1], np.reshape(dp[1], -1)
        found += zip(frames.tolist(), labels.tolist(), strict=True)
    assert len(found) in (COUNT, 2 * COUNT)
    assert {label for _, label in found} == set(range(COUNT))
    assert all(frame == label for frame, label in found)


@pytest.mark.parametrize("make", [Camera, lambda: DataFromGenerator(shots)])
def test_every_writer(make: Callable[[], DataFlow], tmp_path: Path) -> None:
    NumpySerializer.save(make(), tmp_path / "a.npz")
    HDF5Serializer.save(make(), tmp_path / "a.h5", ["frame", "label"])
    LMDBSerializer.save(make(), tmp_path / "a.lmdb")
    TFRecordSerializer.save(make(), tmp_path / "a.tfrecord")
    TarSerializer.save(MapData(make(), lambda dp: {"npy": dp[0], "cls": dp[1]}), tmp_path / "a.tar")
    read = [
        NumpySerializer.load(tmp_path / "a.npz", shuffle=False),
        HDF5Serializer.load(tmp_path / "a.h5", ["frame", "label"], shuffle=False),
        LMDBSerializer.load(tmp_path / "a.lmdb", shuffle=False),
        TFRecordSerializer.load(tmp_path / "a.tfrecord"),
        MapData(TarSerializer.load(tmp_path / "a.tar"), lambda dp: (dp["npy"], dp["cls"])),
        DiskCacheData(make(), tmp_path / "cache"),
    ]
    for flow in read:
        for _ in range(2):
            assert [int(dp[0].max()) for dp in flow] == list(range(COUNT)), flow


KINDS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "array": (lambda a: a, lambda dp: dp),
    "tuple": (lambda a: (a, 1), lambda dp: dp[0]),
    "named": (lambda a: Shot(a, 1), lambda dp: dp.frame),
    "list": (lambda a: ["x", a, 1], lambda dp: dp[1]),
    "dict": (lambda a: {"frame": a, "more": None}, lambda dp: dp["frame"]),
    "ordered": (lambda a: collections.OrderedDict(frame=a), lambda dp: dp["frame"]),
    "default": (lambda a: collections.defaultdict(list, frame=a), lambda dp: dp["frame"]),
    "nested": (lambda a: (1, [{"a": ((a,),)}]), lambda dp: dp[1][0]["a"][0][0]),
    "view": (lambda a: a[::-1, :1], lambda dp: dp),
    "objects": (objects, lambda dp: dp[0]),
    "masked": (lambda a: np.ma.masked_array(a, copy=False), lambda dp: dp.data),
    "record": (lambda a: a.view([("x", "u1")])[0, 0], lambda dp: dp["x"]),
    "bytes": (lambda a: a.base.base.obj, lambda dp: np.frombuffer(dp, np.uint8)),
    "memory": (lambda a: a.base.base, lambda dp: np.frombuffer(dp, np.uint8)),
}


@BACKENDS
@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_of_datapoints(kind: str, backend: Any) -> None:
    make, unmake = KINDS[kind]

    def generate() -> Iterator[Any]:
        frame = np.frombuffer(bytearray(4), np.uint8).reshape(2, 2)
        one = make(frame)
        for i in range(COUNT):
            frame[:] = i
            yield one

    flow = MapData(DataFromGenerator(generate), lambda dp: (int(np.max(unmake(dp))),))
    flow = PrefetchData(flow, num_proc=1, backend=backend)
    assert [number for (number,) in flow] == list(range(COUNT))


def test_what_does_not_pickle_is_still_an_error_in_its_turn() -> None:
    flow = MapData(DataFromGenerator(lambda: iter([(1,), (threading.Lock(),), (2,)])), same)
    iterator = PrefetchData(flow, num_proc=1).iterate()
    assert next(iterator) == (1,)
    with pytest.raises(DataFlowError, match=r"cannot be sent.*lock"):
        next(iterator)
    iterator.close()


def test_threads_are_given_what_cannot_be_copied() -> None:
    lock = threading.Lock()
    flow = MapData(DataFromGenerator(lambda: iter([(lock, 1)])), lambda dp: (dp[0] is lock,))
    assert list(PrefetchData(flow, num_proc=1, backend="thread")) == [(True,)]


class Lines(list[str]):
    """A list that is more than one."""


@pytest.mark.parametrize("one", [Lines("ab"), Mine([3])])
def test_objects_of_the_users_stay_for_threads(one: Any) -> None:
    for deep in (False, True):
        ((made, number),) = duplicate({"a": (one, 1)}, deep=deep).values()
        assert (type(made), made, number) == (type(one), one, 1)
        assert (made is one) is not deep


def test_what_is_one_object_stays_one() -> None:
    frame, names = np.zeros(3), ["a"]
    made = duplicate({"a": frame, "b": [frame, names, names]}, deep=False)
    assert made["a"] is made["b"][0]
    assert made["a"] is not frame
    assert made["b"][1] is made["b"][2]
    assert made["b"][1] is not names
    ring: list[Any] = [frame]
    ring.append(ring)
    made = duplicate(ring, deep=False)
    assert made is not ring
    assert made[1] is made
