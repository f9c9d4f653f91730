"""The laws of `towerpack.dataflow.testing`, on every source and stage and on compositions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from scaling import scaled
from small_flows import (
    Indexed,
    Noise,
    Twice,
    heads,
    length,
    noisy,
    noisy_rows,
    not_third,
    pair,
    refuse_thirds,
    shaped,
    shift,
)
from towerpack._core.errors import DataFlowError
from towerpack.dataflow import (
    BatchByLength,
    BatchData,
    BatchDataByShape,
    CacheData,
    ConcatData,
    DataFlow,
    DataFromArrays,
    DataFromGenerator,
    DataFromIterable,
    DataFromList,
    FakeData,
    FilterData,
    FixedSizeData,
    JoinData,
    LocallyShuffleData,
    MapData,
    MapDataComponent,
    MixData,
    PrefetchData,
    PrintData,
    ProxyDataFlow,
    RandomChooseData,
    RandomMixData,
    RepeatedData,
    RepeatedDataPoint,
    SelectComponent,
    ShardData,
    ShardRows,
    ShuffleData,
    TestDataSpeed,
)
from towerpack.dataflow.testing import FlowLaws, LawError, check_flow, same_datapoints

Make = Callable[[], DataFlow]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("towerpack.dataflow")
    level = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(level)


# Sources. All give (int64, float64), so that anything can be put on anything.


def arrays(n: int) -> DataFlow:
    return DataFromArrays(np.arange(n), np.arange(n) * 0.5)


def in_list(n: int) -> DataFlow:
    return DataFromList([pair(i, i * 0.5) for i in range(n)], shuffle=True)


def generated(n: int) -> DataFlow:
    return DataFromGenerator(lambda: (pair(i, i * 0.5) for i in range(n)))


def generated_at_random(n: int) -> DataFlow:
    def draw(rng: np.random.Generator) -> Iterator[Any]:
        for i in range(n):
            yield pair(i, rng.random())

    return DataFromGenerator(draw, rng=True)


SOURCES: dict[str, Callable[[int], DataFlow]] = {
    "arrays": arrays,
    "list": in_list,
    "generator": generated,
    "random generator": generated_at_random,
    "iterable": lambda n: DataFromIterable([pair(i, 0) for i in range(n)]),
    "fake": lambda n: MapData(
        FakeData([[], []], n, dtype=["int64", "float64"], domain=(0, 99)),
        lambda dp: (dp[0][()], dp[1][()]),
    ),
    "indexed": Indexed,
    "noise": Noise,
}

STAGES: dict[str, Callable[[DataFlow], DataFlow]] = {
    "map": lambda ds: MapData(ds, shift),
    "map rng": lambda ds: MapData(ds, noisy, rng=True),
    "map rows": lambda ds: MapData(ds, noisy_rows, rng=True, batched=True),
    "map skip": lambda ds: MapData(ds, refuse_thirds, on_error="skip"),
    "map skip some": lambda ds: MapData(ds, refuse_thirds, on_error="skip", max_errors=30),
    "filter": lambda ds: FilterData(ds, not_third),
    "filter rng": lambda ds: FilterData(ds, heads, rng=True),
    "component": lambda ds: MapDataComponent(ds, lambda x: x * 2, 1),
    "select": lambda ds: SelectComponent(ds, [0, 1]),
    "shuffle": ShuffleData,
    "shuffle locally": lambda ds: LocallyShuffleData(ds, 5),
    "batch": lambda ds: BatchData(ds, 3),
    "batch all": lambda ds: BatchData(ds, 4, remainder=True),
    "shuffle locally, reusing": lambda ds: LocallyShuffleData(ds, 4, 2),
    "batch rows": lambda ds: ShardRows(BatchData(ds, 4), 2, 1),
    "batch lists": lambda ds: BatchData(ds, 4, remainder=True, stack="list"),
    "repeat": lambda ds: RepeatedData(ds, 2),
    "repeat for ever": RepeatedData,
    "fix": lambda ds: FixedSizeData(ds, 7),
    "fix afresh": lambda ds: FixedSizeData(ds, 7, keep_state=False),
    "repeat points": lambda ds: RepeatedDataPoint(ds, 3),
    "shard": lambda ds: ShardData(ds, 2, 1),
    "shard unevenly": lambda ds: ShardData(ds, 3, 0, tail="uneven"),
    "shard padded": lambda ds: ShardData(ds, 4, 3, tail="pad"),
    "cache": CacheData,
    "cache shuffled": lambda ds: CacheData(ds, shuffle=True),
    "print": lambda ds: PrintData(ds, 0),
    "speed": TestDataSpeed,
    "proxy": ProxyDataFlow,
    "twice": Twice,
    "join itself": lambda ds: JoinData([ds, ds]),
    "concat itself": lambda ds: ConcatData([ds, ds]),
    "join": lambda ds: JoinData([ds, generated_at_random(6)]),
    "concat": lambda ds: ConcatData([arrays(2), ds, generated(3)]),
    "mix": lambda ds: MixData([arrays(3), ds], [1, 2]),
    "mix all": lambda ds: MixData([ds, generated(5), ds], [0.5, 0.2, 0.3], stop="all"),
    "mix for ever": lambda ds: MixData([ds, arrays(2)], stop="repeat"),
    "mix choose": lambda ds: RandomChooseData([(ds, 0.7), (arrays(4), 0.3)]),
    "mix known": lambda ds: RandomMixData([arrays(4), MapData(Indexed(5), shift), ds]),
    "batch by shape": lambda ds: BatchDataByShape(MapData(ds, shaped), 3, 1),
    "batch by shape, few": lambda ds: BatchDataByShape(MapData(ds, shaped), 4, 1, max_waiting=4),
    "batch by length": lambda ds: BatchByLength(ds, 3, [2, 6], length=length),
    "batch by length, whole": lambda ds: BatchByLength(
        ds, [2, 3], [4], length=length, remainder=False
    ),
}
NEEDS_PLAN = {"shuffle"}
NEEDS_LENGTH = {"mix known"}
ENDLESS = {"repeat for ever", "mix for ever"}
STREAMS = {"generator", "random generator", "iterable", "noise"}


@pytest.mark.parametrize("size", [0, 1, 9])
@pytest.mark.parametrize("source", SOURCES)
def test_sources(source: str, size: int) -> None:
    check_flow(lambda: SOURCES[source](size))


@pytest.mark.parametrize("source", ["arrays", "random generator"])
@pytest.mark.parametrize("stage", STAGES)
def test_stages(stage: str, source: str) -> None:
    if stage in NEEDS_PLAN and source in STREAMS:
        pytest.skip("needs random access")
    inner = SOURCES[source]
    if stage in NEEDS_LENGTH and source in STREAMS:
        inner = SOURCES["iterable"]
    if source == "arrays" and stage != "shuffle":
        check_flow(lambda: STAGES[stage](ShuffleData(inner(11))), limit=40)
    check_flow(lambda: STAGES[stage](inner(11)), limit=40)


@pytest.mark.parametrize("source", ["arrays", "iterable"])
@pytest.mark.parametrize("stage", STAGES)
def test_stages_below_and_above_workers(stage: str, source: str) -> None:
    """The same datapoints, and states that fit with workers and without."""
    if stage in NEEDS_PLAN and source in STREAMS:
        pytest.skip("needs random access")
    make = STAGES[stage]

    def workers(ds: DataFlow) -> DataFlow:
        return PrefetchData(ds, None, 2, backend="thread")

    def inner() -> DataFlow:
        return MapData(SOURCES[source](11), noisy, rng=True)

    with make(inner()).iterate(seed=5, epoch=1) as iterator:
        first = list(islice(iterator, 7))
        state = iterator.state()
        rest = list(islice(iterator, 33))
    for flow in (workers(make(inner())), make(workers(inner()))):
        with flow.iterate(seed=5, epoch=1) as iterator:
            assert same_datapoints(list(islice(iterator, 7)), first)
            assert iterator.state() == state
        with flow.iterate(state=state) as iterator:
            assert same_datapoints(list(islice(iterator, 33)), rest)


# Compositions.


def has_plan(flow: DataFlow) -> bool:
    try:
        flow.plan(seed=0)
    except DataFlowError:
        return False
    except ValueError:
        return False
    return True


def has_length(flow: DataFlow) -> bool:
    try:
        len(flow)
    except TypeError:
        return False
    return True


def build(source: str, size: int, stages: tuple[str, ...]) -> DataFlow:
    flow = SOURCES[source](size)
    for stage in stages:
        flow = STAGES[stage](flow)
    return flow


def sensible(source: str, size: int, stages: tuple[str, ...]) -> tuple[str, ...]:
    """Leave out stages that the rest does not allow."""
    kept: list[str] = []
    for stage in stages:
        batched = any(one.startswith("batch") for one in kept)
        endless = bool(ENDLESS & set(kept))
        flow = build(source, size, tuple(kept))
        if stage == "shuffle" and (endless or not has_plan(flow)):
            continue
        if stage in NEEDS_LENGTH and not has_length(flow):
            continue
        if endless and stage.startswith(("cache", "filter")):
            continue
        with_others = stage.startswith("mix") or stage == "concat"
        if with_others and {"join", "join itself"} & set(kept):
            continue
        if batched and (with_others or stage.startswith("batch") or stage in {"map rows", "join"}):
            continue
        if "batch lists" in kept and stage.startswith(("map", "component")):
            continue
        kept.append(stage)
    return tuple(kept)


@settings(
    max_examples=scaled(1200),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    source=st.sampled_from(sorted(SOURCES)),
    size=st.integers(1, 13),
    stages=st.lists(st.sampled_from(sorted(STAGES)), min_size=2, max_size=5).map(tuple),
    seed=st.integers(0, 2**63 - 1),
)
def test_compositions(source: str, size: int, stages: tuple[str, ...], seed: int) -> None:
    stages = sensible(source, size, stages)
    try:
        check_flow(lambda: build(source, size, stages), seed=seed, limit=40)
    except DataFlowError as error:
        expected = ("no datapoints", "in a row", "bad datapoints")
        assume(not any(text in error.what for text in expected))
        raise


@settings(max_examples=scaled(1200))
@given(
    size=st.integers(0, 40),
    batch=st.integers(1, 7),
    window=st.integers(1, 9),
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 5),
)
def test_plans_and_streams_agree(size: int, batch: int, window: int, seed: int, epoch: int) -> None:
    """The same pipeline over an indexable source and over a generator of the same data."""

    def pipeline(source: DataFlow) -> DataFlow:
        ds: DataFlow = LocallyShuffleData(source, window)
        ds = MapData(ds, noisy, rng=True)
        ds = MapData(ds, noisy_rows, rng=True, batched=True)
        ds = RepeatedData(SelectComponent(ds, [1, 0]), 2)
        return BatchData(ds, batch, remainder=True)

    one, other = (
        list(pipeline(source(size)).iterate(seed=seed, epoch=epoch))
        for source in (arrays, generated)
    )
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert all(map(np.array_equal, a, b))


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
