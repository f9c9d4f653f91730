"""Batches that several workers make together, each some rows of them."""

from __future__ import annotations

import gc
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processes import wait_until
from scaling import scaled
from shared_workers import shared_workers
from towerpack import MapError, WorkerError
from towerpack.dataflow import (
    BatchData,
    DataFlow,
    DataFromArrays,
    DataFromList,
    ItemRNG,
    MapData,
    PrefetchData,
    RepeatedData,
    ShuffleData,
    empty_row,
)
from towerpack.dataflow._blocks import Columns
from towerpack.dataflow.parallel import _run, _splitting, _unit
from towerpack.dataflow.parallel._crew import QUEUED, Crew
from towerpack.dataflow.parallel._layout import RowsArena, layout_of, shares
from towerpack.dataflow.testing import check_flow, same_datapoints

BACKENDS = pytest.mark.parametrize("backend", ["process", "thread"])
SIZE = 61


@pytest.fixture(autouse=True)
def divided(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Batches are made in parts however short they are. Gives how many parts each was made in."""
    counts: list[int] = []
    own = _unit.Division.__init__

    def counted(self: Any, whole: Any, layout: Any, count: int, next_seq: Any) -> None:
        own(self, whole, layout, count, next_seq)
        counts.append(len(self.parts))

    monkeypatch.setattr(_splitting, "_LONG_S", -1.0)
    monkeypatch.setattr(_splitting, "_PART_S", 1e9)
    monkeypatch.setattr(_unit.Division, "__init__", counted)
    return counts


@pytest.fixture(scope="module", autouse=True)
def _shared_workers() -> Iterator[None]:
    with shared_workers():
        yield


def numbers(size: int = SIZE) -> DataFlow:
    return ShuffleData(DataFromArrays(np.arange(size)))


def picture(dp: Any, rng: np.random.Generator) -> Any:
    image = np.full((40, 50, 3), dp[0] % 251, np.uint8)
    return {"image": image, "mask": image[::-1] + 1, "x": rng.random(), "n": int(dp[0])}


def lent(dp: Any, rng: np.random.Generator) -> Any:
    one, other = empty_row((40, 50, 3), np.uint8), empty_row((40, 50, 3), np.uint8)
    one[:], other[:] = dp[0] % 251, rng.integers(0, 255)
    return (other, one) if dp[0] % 9 == 0 else (one, other)  # some rows are not where they belong


def text(dp: Any, rng: np.random.Generator) -> Any:
    return np.full((40, 50), dp[0]), "text" * int(dp[0] % 3)


def ragged(dp: Any, rng: np.random.Generator) -> Any:
    return (np.full((1 + dp[0] % 3, 4000), dp[0]),)


def sometimes_float(dp: Any, rng: np.random.Generator) -> Any:
    return np.full((40, 50), dp[0]), 0.5 if dp[0] == 17 else 1


def draws(dp: Any, rng: np.random.Generator) -> Any:
    return np.full((40, 50), dp[0]), np.random.random() if dp[0] > 8 else 0.0


def shift(dp: Any, rng: ItemRNG) -> Any:
    return (np.zeros((len(dp[0]), 40, 50)) + rng.random()[:, None, None], dp[0])


def images() -> DataFlow:
    return DataFromArrays(np.random.default_rng(0).integers(0, 255, (SIZE, 50, 60), np.uint8))


MADE_IN_PARTS: dict[str, Callable[[], DataFlow]] = {
    "arrays": lambda: BatchData(ShuffleData(images()), 8, remainder=True),
    "a map": lambda: BatchData(MapData(numbers(), picture, rng=True), 8, remainder=True),
    "rows that were lent": lambda: BatchData(MapData(numbers(), lent, rng=True), 8),
    "vectorised": lambda: BatchData(MapData(numbers(), shift, rng=True, batched=True), 7),
    "repeated below": lambda: BatchData(RepeatedData(images(), 2), 9),
    "types that change": lambda: BatchData(MapData(numbers(), sometimes_float, rng=True), 8),
}
MADE_WHOLE: dict[str, Callable[[], DataFlow]] = {
    "text": lambda: BatchData(MapData(numbers(), text, rng=True), 8),
    "lists": lambda: BatchData(MapData(numbers(), picture, rng=True), 8, stack="list"),
    "no batches": lambda: MapData(numbers(), picture, rng=True),
    "a map above": lambda: MapData(BatchData(images(), 8), lambda dp: (dp[0][:, :5],)),
}
EITHER: dict[str, Callable[[], DataFlow]] = {
    **MADE_IN_PARTS,
    **MADE_WHOLE,
    "padded": lambda: BatchData(MapData(numbers(), ragged, rng=True), 2, pad=0),
}


@BACKENDS
@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("shape", EITHER)
def test_same_as_serial(backend: Any, workers: int, shape: str, divided: list[int]) -> None:
    for epoch in range(2):
        expected = list(EITHER[shape]().iterate(seed=5, epoch=epoch))
        flow = PrefetchData(EITHER[shape](), num_proc=workers, backend=backend)
        for found in (list(flow.iterate(seed=5, epoch=epoch)) for _ in range(2)):
            assert len(found) == len(expected)
            assert all(map(same_datapoints, found, expected))
    if shape in MADE_IN_PARTS:
        assert set(divided) == {workers}
    elif shape in MADE_WHOLE:
        assert not divided


@pytest.mark.parametrize("shape", ["a map", "padded"])
def test_laws(shape: str) -> None:
    check_flow(lambda: PrefetchData(EITHER[shape](), num_proc=2), stops=[1, 4])


@BACKENDS
def test_copies_unordered_and_kept_batches(backend: Any) -> None:
    expected = list(MADE_IN_PARTS["a map"]().iterate(seed=0, epoch=0))
    for copy in (True, False):
        flow = PrefetchData(MADE_IN_PARTS["a map"](), num_proc=2, backend=backend, copy=copy)
        assert same_datapoints(list(flow.iterate(seed=0, epoch=0)), expected)
    flow = PrefetchData(MADE_IN_PARTS["a map"](), num_proc=2, backend=backend, ordered=False)
    found = sorted(flow.iterate(seed=0, epoch=0), key=lambda dp: dp["n"].tolist())
    assert same_datapoints(found, sorted(expected, key=lambda dp: dp["n"].tolist()))


def test_long_batches_are_made_in_more_parts(
    divided: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_splitting, "_PART_S", 1e-9)
    flow = PrefetchData(MADE_IN_PARTS["a map"](), num_proc=2)
    assert same_datapoints(
        list(flow.iterate(seed=0, epoch=0)),
        list(MADE_IN_PARTS["a map"]().iterate(seed=0, epoch=0)),
    )
    assert max(divided) == 8


def test_draws_from_global_generators_do_not_depend_on_parts(divided: list[int]) -> None:
    flow = BatchData(MapData(numbers(), draws, rng=True), 8)
    whole = PrefetchData(flow, num_proc=1)  # one worker has nobody to share a batch with
    expected = list(whole.iterate(seed=0, epoch=0))
    assert not divided
    for workers in (2, 3):
        found = list(PrefetchData(flow, num_proc=workers).iterate(seed=0, epoch=0))
        assert same_datapoints(found, expected)
    assert 1 <= len(divided) < 2 * len(expected), "once seen, batches are made whole"


@BACKENDS
def test_errors_are_those_of_a_batch_that_is_made_whole(backend: Any) -> None:
    bad = {31}

    def fails(dp: Any) -> Any:
        if int(dp[0]) in bad:
            raise ValueError("a bad one")
        return (np.full((50, 50), dp[0]),)

    flow = BatchData(MapData(DataFromArrays(np.arange(64)), fails), 8)
    ahead = PrefetchData(flow, num_proc=2, backend=backend)
    list(itertools.islice(ahead.iterate(seed=0, epoch=0), 2))
    iterator = ahead.iterate(seed=0, epoch=0)
    assert [int(next(iterator)[0][0, 0, 0]) for _ in range(3)] == [0, 8, 16]
    for _ in range(2):
        with pytest.raises(MapError, match="datapoint 31 of epoch 0: a bad one"):
            next(iterator)
    if backend == "thread":
        bad.clear()
        assert [int(dp[0][0, 0, 0]) for dp in iterator] == [24, 32, 40, 48, 56]


def test_shapes_that_change(divided: list[int]) -> None:
    """After a few batches that were not as expected nothing more is expected."""

    def grows(dp: Any) -> Any:
        return (np.full((1 + int(dp[0]) // 4, 40_000), dp[0]),)  # so large that each goes alone

    flow = BatchData(MapData(DataFromArrays(np.arange(80)), grows), 4)
    ahead = PrefetchData(flow, num_proc=2)
    for _ in range(2):
        assert same_datapoints(list(ahead.iterate(seed=0, epoch=0)), list(flow.iterate(seed=0)))
    assert 1 <= len(divided) <= 8


@pytest.mark.parametrize("restart", [True, False])
def test_a_worker_that_is_killed_at_a_part(
    restart: bool, tmp_path: Path, divided: list[int]
) -> None:
    def dies(dp: Any) -> Any:
        died = tmp_path / f"died at {dp[0]}"
        if dp[0] in (29, 38, 39) and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return (np.full((60, 60), dp[0]),)

    flow = BatchData(MapData(DataFromArrays(np.arange(64)), dies), 8)
    ahead = PrefetchData(flow, num_proc=2, on_worker_death="restart" if restart else "raise")
    iterator = ahead.iterate(seed=0, epoch=0)
    if restart:
        found = list(iterator)
        assert [int(dp[0][i, 5, 5]) for dp in found for i in range(8)] == list(range(64))
        assert len(list(tmp_path.iterdir())) == 3
    else:
        assert [int(next(iterator)[0][0, 0, 0]) for _ in range(3)] == [0, 8, 16]
        with pytest.raises(WorkerError, match="SIGKILL at position 3 of epoch 0"):
            next(iterator)
    assert divided


@pytest.fixture
def crews(monkeypatch: pytest.MonkeyPatch) -> set[Crew]:
    """Those that begin a pass."""
    found: set[Crew] = set()
    begin = Crew.begin

    def seen(self: Crew, key: Any, job: Any) -> None:
        found.add(self)
        begin(self, key, job)

    monkeypatch.setattr(Crew, "begin", seen)
    return found


def check_slots(crews: set[Crew]) -> None:
    """When all passes are over and the workers at rest, every single slot has come back."""
    (crew,) = crews
    gc.collect()

    def at_rest() -> bool:
        crew.wait(0.0)
        return not any(member.queue for member in crew.members)

    assert wait_until(at_rest, 10)
    assert crew.slots.lent == (0, 0)
    crew.slots.trim(0)
    assert crew.slots.total_bytes == 0


@BACKENDS
def test_slots_come_back_from_passes_that_are_broken_off(backend: Any, crews: set[Crew]) -> None:
    flow = PrefetchData(MADE_IN_PARTS["a map"](), num_proc=2, backend=backend)
    list(flow.iterate(seed=0, epoch=0))
    (crew,) = crews
    # Those that wait for the next pass, and those of units that workers are still at.
    most = crew.options.workers * (1 + QUEUED) + _run._SPARE_SLOTS
    for epoch in range(30):
        iterator = flow.iterate(seed=0, epoch=epoch)
        found = list(itertools.islice(iterator, 1 + epoch % 5))
        iterator.close()
        del found, iterator
        assert crew.slots.total_bytes <= most * crew.slots.wanted
    list(flow.iterate(seed=0, epoch=0))
    check_slots(crews)


@pytest.mark.parametrize(
    ("backend", "ends"),
    [("process", "an exception"), ("process", "a death"), ("thread", "an exception")],
)
@pytest.mark.parametrize("batch_size", [1, 4])
def test_slots_come_back_from_what_failed(
    batch_size: int, backend: Any, ends: str, crews: set[Crew]
) -> None:
    def fails(dp: Any) -> Any:
        if dp[0] == 31 and ends == "a death":
            os.kill(os.getpid(), signal.SIGKILL)
        if dp[0] == 31:
            raise ValueError("a bad one")
        return (np.full((50, 50), dp[0]),)

    flow = BatchData(MapData(DataFromArrays(np.arange(64)), fails), batch_size)
    ahead = PrefetchData(flow, num_proc=2, backend=backend)
    for times in (1, 2, 3):
        iterator = ahead.iterate(seed=0, epoch=0)
        for _ in range(times):
            with pytest.raises((MapError, WorkerError)):
                list(iterator)
        iterator.close()
        del iterator
    check_slots(crews)


# ------------------------------------------------------------------ layouts


def test_layouts_are_of_plain_arrays() -> None:
    plain = np.zeros((4, 3))
    assert layout_of({"a": plain, "b": plain[:, 0].astype(np.uint8)}) is not None
    for odd in (
        (),
        [],
        plain,
        (plain, plain[:3]),
        (plain, 5),
        (np.array(5),),
        (np.zeros((0, 3)),),
        (np.zeros((4, 0)),),
        (np.array(["a", None], object),),
        (np.zeros(4, [("x", int)]),),
        (np.ma.masked_array(plain, plain > 0),),
    ):
        assert layout_of(odd) is None


@given(rows=st.integers(1, 300), parts=st.integers(1, 40))
def test_shares_are_even(rows: int, parts: int) -> None:
    found = shares(rows, parts)
    sizes = [stop - start for start, stop in found]
    assert [row for start, stop in found for row in range(start, stop)] == list(range(rows))
    assert len(found) == min(rows, parts)
    assert max(sizes) - min(sizes) <= 1


@settings(max_examples=scaled(400, at_least=40))
@given(data=st.data())
def test_rows_arena_keeps_what_it_is_given(data: st.DataObject) -> None:
    """Wherever the rows of a part lie: in their place, in another's, turned, or elsewhere."""
    count = data.draw(st.integers(1, 4))
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    batch = tuple(rng.integers(0, 255, (8, 5, 5), np.uint8) for _ in range(count))
    layout = layout_of(batch)
    assert layout is not None
    start = data.draw(st.integers(0, 7))
    stop = data.draw(st.integers(start + 1, 8))
    memory = np.zeros(layout.nbytes, np.uint8)
    arena = RowsArena(layout, memory, start, stop)
    asked = [arena.empty((stop - start, 5, 5), np.uint8) for _ in range(count)]
    part: list[np.ndarray[Any, Any]] = []
    for place in data.draw(st.permutations(range(count))):
        expected = batch[len(part)][start:stop]
        lies = asked[place]
        kind = data.draw(st.sampled_from(["there", "reversed", "turned", "elsewhere"]))
        if kind == "reversed":
            lies = lies[::-1]
        elif kind == "turned":
            lies = lies.swapaxes(1, 2)
        elif kind == "elsewhere":
            lies = np.empty_like(lies)
        lies[...] = expected
        part.append(lies)
    assert arena.take(tuple(part))
    made = layout.batch(memory)
    for found, expected in zip(made, batch, strict=True):
        assert np.array_equal(found[start:stop], expected[start:stop])
        assert not found[:start].any()
        assert not found[stop:].any()


def test_rows_arena_refuses_what_is_of_another_kind() -> None:
    layout = layout_of({"a": np.zeros((4, 2)), "b": np.zeros(4, np.int64)})
    assert layout is not None
    memory = np.zeros(layout.nbytes, np.uint8)
    a, b = np.ones((2, 2)), np.ones(2, np.int64)
    for odd in (
        {"a": a},
        {"a": a, "c": b},
        {"b": b, "a": a},
        (a, b),
        {"a": a, "b": b.astype(np.int32)},
        {"a": a, "b": b[:1]},
        {"a": a, "b": [1, 1]},
    ):
        assert not RowsArena(layout, memory, 1, 3).take(odd)
        assert not memory.any()
    assert RowsArena(layout, memory, 1, 3).take({"a": a, "b": b})
    assert layout.batch(memory)["b"].tolist() == [0, 1, 1, 0]


def test_a_block_of_columns_lies_in_its_place_at_once() -> None:
    flow = BatchData(images(), 8)
    node = flow.plan(seed=0).root
    whole = node.get(0, 1)
    layout = layout_of(whole)
    assert layout is not None
    memory = np.zeros(layout.nbytes, np.uint8)
    arena = RowsArena(layout, memory, 2, 6)
    node.lay_into(arena.empty)
    part: Any = node.part(0, 1, 2, 6)  # pyright: ignore[reportAttributeAccessIssue]
    assert not isinstance(part, Columns)
    assert np.shares_memory(part[0], memory)
    assert np.array_equal(layout.batch(memory)[0][2:6], whole[0][2:6])


def test_flows_that_are_lists() -> None:
    flow = BatchData(DataFromList([(np.full(3000, i), i) for i in range(40)]), 8)
    found = list(PrefetchData(flow, num_proc=2).iterate(seed=0))
    assert same_datapoints(found, list(flow.iterate(seed=0)))
