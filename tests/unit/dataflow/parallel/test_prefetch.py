"""What `PrefetchData` does besides the laws: memory, who does what, and errors."""

from __future__ import annotations

import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import cloudpickle
import numpy as np
import pytest

from processes import children_of, wait_until
from shared_workers import shared_workers
from small_flows import generated, numbers
from towerpack import ConfigError, DataFlowError, MapError
from towerpack.dataflow import (
    BatchData,
    ConcatData,
    DataFlow,
    DataFromArrays,
    DataFromGenerator,
    DataFromList,
    MapData,
    MultiProcessMapData,
    MultiThreadRunner,
    PrefetchData,
    PrefetchDataZMQ,
    RepeatedData,
    ShuffleData,
)
from towerpack.dataflow.parallel import is_lent
from towerpack.dataflow.stage_context import StageContext
from towerpack.dataflow.testing import same_datapoints

BACKENDS = pytest.mark.parametrize("backend", ["process", "thread"])


@pytest.fixture(scope="module", autouse=True)
def _shared_workers() -> Iterator[None]:
    with shared_workers():
        yield


class Pair(NamedTuple):
    left: Any
    right: Any


def large(dp: Any) -> Any:
    return (np.full((50, 1000), dp[0] % 251, np.uint8), dp[0])


def own_workers() -> set[int]:
    return set(children_of(os.getpid()))


# ------------------------------------------------------------------ memory


@BACKENDS
def test_what_is_kept_never_changes(backend: Any) -> None:
    flow = PrefetchData(BatchData(MapData(numbers(200), large), 4), 3, 2, backend=backend)
    kept: list[Any] = []
    for index, (images, labels) in enumerate(flow.iterate(seed=0)):
        assert (images[:, 0, 0] == labels % 251).all()
        if index % 3 == 0:
            kept.append((images[1:3, ::2], labels[1:3]))  # views alone keep a slot
        images[:] = 255  # it is ours
    assert index == 49
    changed = [bool((images != 255).any()) for images, _ in kept]
    assert not any(changed)


def test_a_consumer_that_keeps_everything_is_given_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("towerpack.dataflow.parallel._pool._MOST_LENT", 5)
    flow = PrefetchData(BatchData(MapData(numbers(40), large), 2), num_proc=2)
    kept = list(flow.iterate(seed=0, epoch=0))
    assert sum(is_lent(images) for images, _ in kept) == 5
    assert all((images[:, 0, 0] == labels % 251).all() for images, labels in kept)
    flow = PrefetchData(flow.ds, num_proc=2, copy=True)
    assert not any(is_lent(images) for images, _ in flow.iterate(seed=0))


def test_threads_where_there_are_only_rows_to_move() -> None:
    """Unless something is asked for that threads do not have; and the most workers count."""
    rows = DataFromArrays(np.arange(300).reshape(100, 3), np.arange(100))
    moved = BatchData(RepeatedData(ShuffleData(ConcatData([rows, rows])), 2), 10)
    objects = DataFromArrays(np.array([str(i) for i in range(100)], object))
    for flow, options, backend in (
        (moved, {}, "thread"),
        (moved, {"backend": "process"}, "process"),
        (moved, {"on_worker_death": "restart"}, "process"),
        (moved, {"start": "fork"}, "process"),
        (MapData(moved, lambda dp: dp), {}, "process"),
        (BatchData(objects, 10), {}, "process"),
    ):
        ahead = PrefetchData(flow, num_proc=2, **cast("Any", options))
        assert (
            ahead.workers().options_for(ahead, flow.compile_in(StageContext(0))).backend == backend
        )
    before = own_workers()
    inner = MultiProcessMapData(moved, 3, lambda dp: dp)
    assert PrefetchDataZMQ(inner, 1).workers().options_for(BatchData(inner, 2)).workers == 3
    for ordered in (True, False):
        found = list(PrefetchData(moved, num_proc=2, ordered=ordered).iterate(seed=0))
        assert not ordered or same_datapoints(found, list(moved.iterate(seed=0)))
    assert own_workers() == before


BIG = np.arange(5000, dtype=np.float64)
VALUES: list[Any] = [
    (BIG, 3), BIG.reshape(50, 100).T, BIG[::2], np.asfortranarray(BIG.reshape(50, 100)),
    np.zeros((0, 7), np.int8), np.array("text"), np.array([b"a\0", None, "x"], object),
    np.zeros(300, [("a", "i4"), ("b", "f8", 3)]), BIG.astype(">f4"), np.float32(1.5),
    {"a": [1, {2: b"x" * 9000}], None: (True, 1e300, 1 << 80)}, "ü" * 9000, [], (),
    np.datetime64("2026-01-01"), np.zeros(9000, bool), 1j, {1, 2}, range(3), Pair(BIG, "x"),
]  # fmt: skip
# Datapoints that lie near one another, which may travel as columns.
ROWS: list[list[Any]] = [
    [(np.arange(3) + i, np.float32(i), i, f"{i}", None) for i in range(5)],
    [{"a": np.full((2, 2), i), "b": [i]} for i in range(3)],
    [[np.arange(i)] for i in range(4)], [(np.array(i),) for i in range(4)],
    [(np.zeros(2, np.int8),), (np.zeros(2, np.int16),)], [(np.int8(1),), (np.int16(1),)],
    [(np.zeros((3, 2)).T,), (np.zeros((2, 3)),)], [(np.zeros(2),), (np.zeros(2), 2)],
    [{"a": np.zeros(2), "b": 1}, {"b": 1, "a": np.zeros(2)}], [(np.zeros(2),), [np.zeros(2)]],
    [(np.array([1, "x"], object),)], [(np.zeros(2, ">i2"),)], [(np.ma.array([1, 2]),)],
    [Pair(np.zeros(2), 1)], [(True, np.True_)], [(np.zeros((2, 0)),)],
]  # fmt: skip


@pytest.mark.parametrize("read_in_order", [False, True])
def test_every_value_arrives_as_it_is(read_in_order: bool) -> None:
    for rows in (VALUES, *(rows * (100 // len(rows)) for rows in ROWS)):
        ds = DataFromGenerator(lambda: iter(rows)) if read_in_order else DataFromList(rows)  # noqa: B023
        found = list(PrefetchData(MapData(ds, lambda dp: dp), num_proc=1))
        assert same_datapoints(found, rows)


def test_many_large_arrays_reach_workers() -> None:
    flow = ConcatData([DataFromArrays(np.full((1, 9000), i)) for i in range(99)])
    found = [int(dp[0][0]) for dp in PrefetchData(flow, num_proc=1, backend="process")]
    assert found == list(range(99))


def test_objects_of_the_programs_own_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    main = sys.modules["__main__"]
    own = type("Own", (), {"__module__": "__main__"})
    monkeypatch.setattr(main, "Own", own, raising=False)
    flow = MapData(DataFromGenerator(lambda: iter([(own(),)])), lambda dp: dp)
    ((found,),) = PrefetchData(flow, num_proc=1)
    assert type(found) is own


def test_no_worker_for_zero() -> None:
    before = own_workers()
    names = []
    flow = PrefetchData(
        MapData(numbers(5), lambda dp: names.append(threading.current_thread().name) or dp),
        num_proc=0,
    )
    assert len(list(flow)) == 5
    assert set(names) == {"MainThread"}
    assert own_workers() == before


def test_batches_are_made_in_workers_and_maps_above_in_the_consumer() -> None:
    flow = BatchData(MultiProcessMapData(numbers(64), 2, lambda dp: (dp[0], os.getpid())), 8)
    for _, pids, own in MapData(RepeatedData(flow, 2), lambda dp: (*dp, os.getpid())):
        assert len(set(pids.tolist())) == 1, "one worker made the whole batch"
        assert pids[0] != os.getpid() == own


def test_prefetching_crosses_the_border_of_passes() -> None:
    made: list[int] = []
    flow = MultiThreadRunner(
        lambda: BatchData(MapData(numbers(8), lambda dp: made.append(1) or dp), 2), 8, 1
    )
    iterator = RepeatedData(flow, -1).iterate(seed=0)
    for _ in range(3):
        next(iterator)
    assert wait_until(lambda: len(made) > 8, 5), "the next pass has begun"
    iterator.close()


def test_a_flow_with_workers_pickles() -> None:
    flow = PrefetchData(numbers(5), num_proc=1)
    assert len(list(flow)) == 5
    copy = pickle.loads(cloudpickle.dumps(flow))
    assert [dp[0] for dp in copy] == [0, 1, 2, 3, 4]


def test_workers_do_not_draw_the_same_from_global_generators() -> None:
    def draw(dp: Any) -> Any:
        import random

        return (random.random(), np.random.random())

    flow = PrefetchData(BatchData(MapData(numbers(64), draw), 8), num_proc=2)
    for column in zip(*flow.iterate(seed=0), strict=True):
        assert len(np.unique(np.concatenate(column))) == 64


# ------------------------------------------------------------------ failures


class TwoArgumentsError(ValueError):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")


class UnpicklableError(ValueError):
    def __reduce__(self) -> Any:
        raise TypeError("no")


@pytest.mark.parametrize(
    ("make", "kind", "told"),
    [
        (lambda: FileNotFoundError(2, "No such file", "x.jpg"), FileNotFoundError, "x.jpg"),
        (lambda: ConfigError("bad", got="x" * 200_000, fix="that"), ConfigError, "fix    that"),
        (lambda: TwoArgumentsError(1, "x"), DataFlowError, "TwoArgumentsError: 1: x"),
        (lambda: UnpicklableError("1: x"), DataFlowError, "UnpicklableError: 1: x"),
    ],
)
def test_errors_keep_type_causes_and_the_workers_traceback(
    make: Callable[[], Exception], kind: type[Exception], told: str
) -> None:
    def fails(dp: Any) -> Any:
        raise make() from KeyError("why")

    with pytest.raises(MapError, match=r"(?s)Traceback in the worker.*in fails") as caught:
        list(PrefetchData(MapData(numbers(3), fails), num_proc=1))
    cause = caught.value.__cause__
    assert type(cause) is kind and told in str(cause)
    assert isinstance(cause.__cause__, KeyError)


@BACKENDS
@pytest.mark.parametrize("source", [numbers, generated])
def test_errors_come_after_what_was_before_them(
    source: Callable[[int], DataFlow], backend: Any, tmp_path: Path
) -> None:
    mended = tmp_path / "mended"

    def fails(dp: Any) -> Any:
        if dp[0] == 37 and not mended.exists():
            raise KeyError("no such thing")
        return dp

    flow = PrefetchData(MapData(source(60), fails), 40, 2, backend=backend)
    iterator = flow.iterate(seed=0)
    assert [next(iterator)[0] for _ in range(37)] == list(range(37))
    state = iterator.state()
    for _ in range(2):
        with pytest.raises(MapError, match="datapoint 37 of epoch 0") as caught:
            next(iterator)
        assert isinstance(caught.value.__cause__, KeyError)
    assert iterator.state() == state
    mended.touch()
    assert [dp[0] for dp in iterator] == list(range(37, 60))


def test_a_function_that_does_not_pickle_is_named() -> None:
    lock = threading.Lock()

    def guarded(dp: Any) -> Any:
        with lock:
            return dp

    flow = PrefetchData(MapData(numbers(8), guarded), num_proc=1)
    with pytest.raises(ConfigError, match=r"(?s)lock of .*guarded.*MapData\(guarded\)"):
        next(flow.iterate(seed=0))
    assert len(list(PrefetchData(MapData(numbers(8), guarded), num_proc=1, backend="thread"))) == 8


def test_an_open_file_is_not_sent(tmp_path: Path) -> None:
    (tmp_path / "numbers.txt").write_text("0\n1\n2\n")
    with (tmp_path / "numbers.txt").open() as file:
        ds = PrefetchData(MapData(numbers(3), lambda dp: (file.readline(),)), num_proc=1)
        words = r"(?s)the file '.*numbers.txt' must be opened where.*file of .*<lambda>"
        with pytest.raises(ConfigError, match=words):
            next(ds.iterate())

        def says(dp: Any) -> Any:
            print("said", file=sys.stderr)
            return dp

        assert len(list(PrefetchData(MapData(numbers(3), says), num_proc=1))) == 3


def test_a_result_that_does_not_pickle_is_named() -> None:
    flow = MapData(numbers(8), lambda dp: (dp[0], threading.Lock()))
    with pytest.raises(DataFlowError, match=r"(?s)position.*lock"):
        list(PrefetchData(flow, num_proc=1))


@pytest.mark.parametrize(
    "wrong",
    [{"num_proc": -1}, {"num_proc": "2"}, {"num_proc": 1.5}, {"num_prefetch": 0},
     {"num_prefetch": 2.5}, {"backend": "gpu"}, {"on_worker_death": "ignore"}, {"stall_s": 0},
     {"start": "spawn"}, {"max_restarts": -1}, {"max_restarts": 1.5}],
)  # fmt: skip
def test_arguments_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        PrefetchData(numbers(3), **wrong)
