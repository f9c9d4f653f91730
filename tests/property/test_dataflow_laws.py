"""The laws of `towerpack.dataflow.testing`, on every source and stage; and that they can fail."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataset_files import damaged
from every_flow import SOURCES, STAGES, assert_same, in_order, planned, random_pairs
from scaling import SCALE, scaled
from small_flows import Counting, Indexed, Noise, noisy, noisy_rows, pair, shift
from towerpack._core.errors import ConfigError, DataFlowError, FormatError
from towerpack.dataflow import (
    BatchData,
    DataFlow,
    DataFromArrays,
    DataFromGenerator,
    DataFromList,
    FixedSizeData,
    LocallyShuffleData,
    MapData,
    RepeatedData,
    SelectComponent,
    ShuffleData,
)
from towerpack.dataflow.testing import FlowLaws, LawError, check_flow, same_datapoints

Make = Callable[[], DataFlow]
pytestmark = pytest.mark.usefixtures("quiet")


def some_stops(name: str) -> list[int]:
    """Where to stop, other places for others: a third of those of a short pass."""
    return list(range(len(name) % 3, 31, 3))


@pytest.mark.parametrize("name", SOURCES)
def test_sources(name: str, folder: Path) -> None:
    check_flow(lambda: SOURCES[name][1](folder), limit=12, stops=some_stops(name))


@pytest.mark.parametrize("name", [*SOURCES, *STAGES])
def test_plans_are_read_in_any_order_by_threads_at_once(name: str, folder: Path) -> None:
    flow = SOURCES[name][1](folder) if name in SOURCES else STAGES[name].plain(planned)
    expected = list(islice(flow.iterate(seed=1, epoch=3), 30))
    try:
        plan = flow.plan(seed=1)
    except ConfigError:
        return  # it can only be read in order
    assert plan.size is None or plan.size == len(expected) or len(expected) == 30
    parts = [plan.read(range(i, min(i + 4, len(expected))), epoch=3) for i in range(0, 30, 4)]
    assert same_datapoints([dp for part in parts for dp in part], expected)

    def read(seed: int) -> bool:
        order = np.random.default_rng(seed).permutation(len(expected)).tolist()
        wanted = [expected[i] for i in order]
        found = [plan.get(i, epoch=3) for i in order]
        return same_datapoints(found, wanted) and same_datapoints(plan.read(order, epoch=3), wanted)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, range(8)))


@pytest.mark.parametrize("name", [*SOURCES, *STAGES])
def test_laps_are_epochs(name: str, folder: Path) -> None:
    """Also of one plan, whichever epochs were read from it before."""
    for source in (planned, in_order):
        if name in SOURCES:
            make: Make = partial(SOURCES[name][1], folder)
        elif STAGES[name].needs_plan and source is in_order:
            continue
        else:
            make = partial(STAGES[name].plain, source)
        epochs = [list(islice(make().iterate(seed=3, epoch=epoch), 40)) for epoch in range(4)]
        endless = len(epochs[0]) == 40
        for n in (1, 2, 3):
            repeated = RepeatedData(make(), n)
            for epoch in range(4 // n):
                laps = [epochs[0]] if endless else epochs[epoch * n : (epoch + 1) * n]
                expected = [datapoint for lap in laps for datapoint in lap]
                found = list(islice(repeated.iterate(seed=3, epoch=epoch), len(expected)))
                assert_same(found, expected, f"{repeated} over {source}, epoch {epoch}")
                if endless:
                    break
        try:
            plan = make().plan(seed=3)
        except ConfigError:
            continue
        whole = range(len(epochs[0]))
        for epoch in (0, 1, 0, 3, 0):
            assert_same(plan.read(whole, epoch=epoch), epochs[epoch], f"{name}, epoch {epoch}")
        for position in whole:
            for epoch in (0, 1, 0):
                alone = plan.get(position, epoch=epoch), plan.root.get(epoch, position)
                assert same_datapoints(alone, (epochs[epoch][position],) * 2), f"{name}, {epoch}"


@pytest.mark.parametrize("source", [planned, in_order])
def test_passes_of_a_fixed_size_are_cut_from_endless_ones(
    source: Callable[[int], DataFlow],
) -> None:
    """For sizes below, at and above the length of the source, and multiples of it."""
    for size in (1, 2, 3, 4, 5, 6, 8, 9, 13):
        whole = list(islice(RepeatedData(source(4)).iterate(seed=3), 3 * size))
        used = FixedSizeData(source(4), size)
        for epoch in (0, 1, 2, 1, 0):
            expected = whole[epoch * size : (epoch + 1) * size]
            for flow in (used, FixedSizeData(source(4), size)):
                assert_same(list(flow.iterate(seed=3, epoch=epoch)), expected, f"{flow}, {epoch}")
        afresh = FixedSizeData(source(4), size, keep_state=False)
        drawn = set[float]()
        for epoch in (0, 1, 2):
            found = list(afresh.iterate(seed=3, epoch=epoch))
            first = list(source(4).iterate(seed=3, epoch=epoch))
            assert_same(found[:4], first[:size], f"{afresh}, {epoch}")
            laps = [{dp[0] for dp in found[start : start + 4]} for start in range(0, size, 4)]
            assert sum(map(len, laps)) == size
            drawn |= {dp[1] for dp in found}
        assert len(drawn) == 3 * size  # no pass repeats what another one drew


# Their libraries crash over some damaged files; each has a test in a process of its own.
CRASHING = ("HDF5", "Parquet", "LMDB", "CaffeLMDB", "HFData")  # HFData: datasets reads files


@pytest.mark.parametrize("seed", range(scaled(200)))
def test_damage_of_files_is_an_error_or_harmless(seed: int, folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    draw = random.Random(seed)
    for path in sorted(copy.rglob("*")):
        if path.is_file() and path.stat().st_size and draw.random() < 0.7:
            path.write_bytes(damaged(path.read_bytes(), draw.randrange))
    for name, (_, make) in SOURCES.items():
        if not name.startswith(CRASHING):
            try:
                list(islice(make(copy), 30))
            except (FormatError, ConfigError, DataFlowError) as error:
                assert str(copy) in str(error) or name == "SQLData", name  # knows no file


def in_list(n: int) -> DataFlow:
    return DataFromList([pair(i, i * 0.5) for i in range(n)], shuffle=True)


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("source", [planned, in_order, in_list, Indexed, Counting, Noise])
def test_hardly_any_data(source: Callable[[int], DataFlow], size: int) -> None:
    check_flow(lambda: source(size))


def unsized(n: int) -> DataFlow:
    return DataFromGenerator(random_pairs, rng=True)


@pytest.mark.parametrize("source", [planned, unsized])
@pytest.mark.parametrize("name", [name for name, case in STAGES.items() if case.make is case.plain])
def test_stages(name: str, source: Callable[[int], DataFlow]) -> None:
    if source is unsized and (STAGES[name].needs_plan or name == "RandomMixData"):
        source = in_order if name == "RandomMixData" else planned
    stops = None if SCALE == 1 else some_stops(name)
    check_flow(lambda: STAGES[name].make(source), limit=30, stops=stops)


def arrays(n: int) -> DataFlow:
    return DataFromArrays(np.arange(n), np.arange(n) * 0.5)


def generated(n: int) -> DataFlow:
    return DataFromGenerator(lambda: (pair(i, i * 0.5) for i in range(n)))


@pytest.mark.parametrize("number", range(scaled(600)))
def test_plans_and_streams_agree(number: int) -> None:
    """The same pipeline over an indexable source and over a generator of the same data."""
    rng = random.Random(number)
    size, batch, window = rng.randrange(41), rng.randrange(1, 8), rng.randrange(1, 10)

    def passed(source: DataFlow) -> list[Any]:
        ds: DataFlow = LocallyShuffleData(source, window)
        ds = MapData(ds, noisy, rng=True)
        ds = MapData(ds, noisy_rows, rng=True, batched=True)
        ds = RepeatedData(SelectComponent(ds, [1, 0]), 2)
        return list(BatchData(ds, batch, remainder=True).iterate(seed=number, epoch=number % 6))

    assert_same(passed(arrays(size)), passed(generated(size)), f"{size}, {batch}, {window}")


class TestLawsAsAClass(FlowLaws):
    """The base class, as users derive from it."""

    def make(self) -> DataFlow:
        return BatchData(ShuffleData(arrays(20)), 3)


# Flows that break a law are found out.


class Forgetful(DataFlow):
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng()

    def __iter__(self) -> Iterator[Any]:
        for _ in range(5):
            yield (self.rng.random(),)


class Boastful(DataFlow):
    def __iter__(self) -> Iterator[Any]:
        yield (1,)

    def __len__(self) -> int:
        return 2


class Entangled(DataFlow):
    """Keeps its position in the flow."""

    def __iter__(self) -> Iterator[Any]:
        self.position = 0
        while self.position < 6:
            self.position += 1
            yield (self.position,)


class Misplaced(Indexed):
    """Answers differently the second time."""

    def __init__(self) -> None:
        super().__init__(4)
        self.reads = 0

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        return (self.reads, index)


@pytest.mark.parametrize("make", [Forgetful, Boastful, Entangled, Misplaced])
def test_broken_flows_are_found_out(make: Make) -> None:
    with pytest.raises(LawError):
        check_flow(make)


@pytest.mark.parametrize(("always", "where"), [(True, "at 0 once"), (False, "and 0 later")])
def test_a_wrong_state_is_found_out(always: bool, where: str) -> None:
    class Late(MapData):
        """Says that it is one further than it is, always or only after it was restored."""

        def open(self, place: Any, epoch: int, state: Any) -> Any:
            stream = super().open(place, epoch, state)
            if always or state is not None:
                tell = stream.state
                stream.state = lambda: {**tell(), "inner": tell()["inner"] + 1}  # type: ignore[method-assign]
            return stream

    with pytest.raises(LawError, match=where):
        check_flow(lambda: Late(generated(5), shift))
