"""Every public flow gives the same with any workers, and goes on with any others."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest

from every_flow import (
    NO_CASE,
    SOURCES,
    STAGES,
    Case,
    Source,
    assert_same,
    in_order,
    packed_state,
    pictured,
    planned,
    public_flows,
)
from scaling import SCALE, sample, scaled
from small_flows import Twice, ragged, shift
from towerpack._core.errors import ConfigError, DataFlowError
from towerpack.dataflow import (
    BatchData,
    CacheData,
    DataFlow,
    LocallyShuffleData,
    MapData,
    PrefetchData,
    PrintData,
    ProxyDataFlow,
    RNGDataFlow,
    ShuffleData,
)
from towerpack.dataflow.formats import DiskCacheData
from towerpack.dataflow.images import Mosaic
from towerpack.dataflow.parallel._idle_pools import IdlePools
from towerpack.dataflow.parallel._options import Backend, Options
from towerpack.dataflow.parallel._pool import Pool
from towerpack.dataflow.pipeline_names import flows_in
from towerpack.dataflow.testing import check_flow, check_independence, same_datapoints

pytestmark = pytest.mark.usefixtures("quiet")
T = TypeVar("T")

SEED = 11
LIMIT = 22  # of datapoints looked at: some flows are endless
EPOCHS = (0, 1)


@dataclass(frozen=True)
class Workers:
    """How a flow is read.

    Attributes:
        count: How many workers; `None` for no parallel stage.
        backend: What they are.
    """

    count: int | None
    backend: Backend = "process"

    def wrap(self, ds: DataFlow, **options: Any) -> DataFlow:
        """The flow, with a parallel stage."""
        if self.count is None:
            return ds
        return PrefetchData(ds, num_proc=self.count, backend=self.backend, **options)


ALL_WORKERS = [
    Workers(2),
    Workers(3, "thread"),
    Workers(None),
    Workers(1),
    Workers(0),
    Workers(2, "thread"),
    Workers(1, "thread"),
    *([Workers(3)] if SCALE == 1 else []),
]
Placed = Literal["above", "below", "both"]
KINDS: list[tuple[Source, Placed]] = [
    (source, placed) for placed in ("above", "below", "both") for source in (planned, in_order)
]


class Pools:
    """Pools that wait for whichever flow is next: they take longer to start than all it does."""

    def __init__(self) -> None:
        self._waiting: list[Pool] = []

    def take(self, options: Options) -> Pool:
        for pool in self._waiting:
            same = (pool.options.workers, pool.options.backend) == (
                options.workers,
                options.backend,
            )
            if pool.usable and same:
                self._waiting.remove(pool)
                pool.options = options
                return pool
        return IdlePools().take(options)

    def put_back(self, pool: Pool) -> None:
        self._waiting.append(pool)

    def close(self) -> None:
        for pool in self._waiting:
            pool.close()


@pytest.fixture(scope="module")
def pools() -> Iterator[Pools]:
    pools = Pools()
    yield pools
    gc.collect()  # passes that were given up come back
    pools.close()


def chosen(cases: Sequence[T], turn: int, *, at_least: int = 1) -> list[T]:
    """A sample, another one in each turn."""
    turn %= len(cases)
    return sample([*cases[turn:], *cases[:turn]], at_least=at_least)


def parallel_stages(flow: DataFlow) -> list[PrefetchData]:
    """Those in a pipeline."""
    return [one for one in flows_in(flow) if isinstance(one, PrefetchData)]


def make_with(
    case: Case, source: Source, placed: Placed, pools: Pools, workers: Workers
) -> DataFlow:
    """A case with workers above it, below it, or both."""

    def below(n: int) -> DataFlow:
        return source(n) if placed == "above" else workers.wrap(source(n))

    flow = case.make(below)
    return settled(flow if placed == "below" else workers.wrap(flow), workers, pools)


def settled(flow: DataFlow, workers: Workers, pools: Pools) -> DataFlow:
    """A flow whose parallel stages have so many workers, which they share with other flows."""
    for stage in parallel_stages(flow):
        stage.options = replace(stage.options, workers=workers.count or 0)
        share_pools(stage, pools)
    return flow


def share_pools(stage: Any, pools: Pools) -> None:
    """Has a stage take its workers from `pools`."""
    assert hasattr(stage, "_idle")  # or each flow would start its own, without a word
    stage._idle = pools


def passes(flow: DataFlow) -> list[list[Any]]:
    """The beginnings of its first passes."""
    return [list(islice(flow.iterate(seed=SEED, epoch=epoch), LIMIT)) for epoch in EPOCHS]


Stops = dict[int, Any]


def states_of(flow: DataFlow, epoch: int, expected: list[Any], where: str) -> Stops:
    """Read a pass, and take a state at each place."""
    states: Stops = {}
    with flow.iterate(seed=SEED, epoch=epoch) as iterator:
        for index, datapoint in enumerate(expected):
            states[index] = packed_state(iterator)
            assert same_datapoints(next(iterator), datapoint), f"{where}, epoch {epoch}, {index}"
        states[len(expected)] = packed_state(iterator)
        if len(expected) < LIMIT:
            assert next(iterator, None) is None, where
    return states


def check_workers(
    make: Callable[[Workers], DataFlow], expected: list[list[Any]], turn: int, where: str
) -> None:
    """The same with any workers, and after a restore with any others."""
    for first in chosen(ALL_WORKERS, turn):
        flow = make(first)
        for epoch in EPOCHS:
            whole = expected[epoch]
            here = f"{where}, {first}, epoch {epoch}"
            states = states_of(flow, epoch, whole, here)
            for then in chosen(ALL_WORKERS, turn + epoch + 2):
                turn += 5
                stop = turn % len(states)
                rest = list(islice(make(then).iterate(state=states[stop]), len(whole) - stop))
                assert_same(rest, whole[stop:], f"{here}, from {stop} on with {then}")


# The registry.


def test_every_public_flow_has_a_case() -> None:
    covered = {case.flow for case in STAGES.values()} | {flow for flow, _ in SOURCES.values()}
    assert not set(NO_CASE) & covered
    missing = [name for flow, name in public_flows().items() if flow not in {*covered, *NO_CASE}]
    assert not missing


def test_cases_are_what_they_say(folder: Path) -> None:
    made = {name: (case.flow, case.make(planned)) for name, case in STAGES.items()}
    made |= {name: (kind, make(folder)) for name, (kind, make) in SOURCES.items()}
    for name, (kind, flow) in made.items():
        for_users = kind in (DataFlow, ProxyDataFlow, RNGDataFlow)
        kinds = [kind] if not for_users else [kind, *kind.__subclasses__()]
        assert any(type(one) in kinds for one in flows_in(flow)), name


# The laws.


@pytest.mark.slow
@pytest.mark.parametrize("name", STAGES)
def test_stages(name: str, pools: Pools) -> None:
    case, index = STAGES[name], list(STAGES).index(name)
    for turn, (source, placed) in enumerate(chosen(KINDS, index)):
        if case.needs_plan and source is in_order:
            continue
        where = f"{name}, {source.__name__}, workers {placed}"
        make = partial(make_with, case, source, placed, pools)
        check_workers(make, passes(case.plain(source)), index + turn, where)


@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCES)
def test_sources(name: str, folder: Path, pools: Pools) -> None:
    make, index = SOURCES[name][1], list(SOURCES).index(name)
    check_workers(
        lambda workers: settled(workers.wrap(make(folder)), workers, pools),
        passes(make(folder)),
        index,
        name,
    )


@pytest.mark.parametrize("number", range(scaled(200)))
def test_any_sizes(number: int, pools: Pools) -> None:
    rng = random.Random(number)
    size, batch, stop, lifted = (
        rng.randrange(71),
        rng.randrange(1, 10),
        rng.randrange(21),
        number % 2,
    )
    prefetch, workers = rng.choice([None, *range(1, 21)]), rng.choice(ALL_WORKERS)

    def make(one: Workers) -> DataFlow:
        ds: DataFlow = planned(size)
        if lifted:
            ds = one.wrap(ds, num_prefetch=prefetch)
        ds = BatchData(ds, batch, remainder=True)
        return settled(ds if lifted else one.wrap(ds, num_prefetch=prefetch), one, pools)

    expected = list(make(Workers(None)).iterate(seed=SEED))
    iterator = make(workers).iterate(seed=SEED)
    first = list(islice(iterator, stop))
    rest = list(make(workers).iterate(state=iterator.state()))
    assert_same([*first, *rest], expected, f"{size} in {batch} with {workers}")


@pytest.mark.slow
@pytest.mark.parametrize("name", sample([*STAGES, *SOURCES], at_least=3))
def test_in_workers_that_have_seen_nothing_else(name: str, folder: Path) -> None:
    if name in SOURCES:
        make = partial(SOURCES[name][1], folder)
        plain = make
    else:
        make, plain = (partial(one, planned) for one in (STAGES[name].make, STAGES[name].plain))
    flow = PrefetchData(make(), num_proc=1, backend="process")
    for _ in range(2):
        for epoch, whole in enumerate(passes(plain())):
            found = list(islice(flow.iterate(seed=SEED, epoch=epoch), LIMIT))
            assert_same(found, whole, f"{name}, epoch {epoch}")


@pytest.mark.slow
@pytest.mark.parametrize("source", [planned, in_order])
def test_long_passes(source: Source, pools: Pools) -> None:
    """Units grow, and many are ready before they are asked for."""
    count = 700

    def make(workers: Workers) -> DataFlow:
        ds = workers.wrap(MapData(source(count), ragged))
        return settled(LocallyShuffleData(ds, 100), workers, pools)

    expected = list(make(Workers(None)).iterate(seed=SEED))
    for turn, first in enumerate(sample(ALL_WORKERS, at_least=2)):
        states, found = {}, list[Any]()
        with make(first).iterate(seed=SEED) as iterator:
            for stop in (1, 399 + turn, count - 1, count):
                found += islice(iterator, stop - len(found))
                states[stop] = packed_state(iterator)
            assert next(iterator, None) is None
        assert_same(found, expected, f"{first}")
        for stop, state in states.items():
            then = ALL_WORKERS[(stop + turn) % len(ALL_WORKERS)]
            rest = list(make(then).iterate(state=state))
            assert_same(rest, expected[stop:], f"{first}, from {stop} on with {then}")


@pytest.mark.slow
@pytest.mark.parametrize("name", sample([*STAGES], at_least=25))
def test_passes_in_turns_and_given_up(name: str, pools: Pools) -> None:
    case, index = STAGES[name], list(STAGES).index(name)
    for turn, (source, placed) in enumerate(chosen(KINDS, index)):
        if case.needs_plan and source is in_order:
            continue
        expected = passes(case.plain(source))[1]
        for workers in chosen(ALL_WORKERS, index + turn):
            make = partial(make_with, case, source, placed, pools, workers)
            check_independence(make, seed=SEED, limit=LIMIT)
            flow = make()
            for stop in (0, 1, 3):
                for count, _ in enumerate(flow.iterate(seed=SEED, epoch=0)):
                    if count == stop:
                        break
            again = list(islice(flow.iterate(seed=SEED, epoch=1), LIMIT))
            assert_same(again, expected, f"{source.__name__}, {workers} {placed}")


@pytest.mark.slow
@pytest.mark.parametrize("name", sample([*STAGES][1:], at_least=25))
def test_in_any_order(name: str, pools: Pools) -> None:
    """With `ordered=False` every datapoint comes once, with a restore in between too."""
    case, index = STAGES[name], list(STAGES).index(name)
    for turn, source in enumerate((planned, in_order)):
        if (case.needs_plan and source is in_order) or name.endswith("for_ever"):
            continue
        whole = list(case.plain(source).iterate(seed=SEED, epoch=1))
        for workers in chosen([w for w in ALL_WORKERS if w.count], index + turn):

            def make(workers: Workers = workers, source: Source = source) -> DataFlow:
                return settled(workers.wrap(case.make(source), ordered=False), workers, pools)

            iterator = make().iterate(seed=SEED, epoch=1)
            stop = (index + turn) % (len(whole) + 1)
            found = list(islice(iterator, stop))
            state = packed_state(iterator)
            where = f"{name}, {source.__name__}, {workers}"
            assert_same_set([*found, *iterator], whole, where)
            rest = list(make().iterate(state=state))
            assert_same_set([*found, *rest], whole, f"{where}, from {stop} on")


@pytest.mark.parametrize(
    "make",
    [
        lambda ds: ShuffleData(MapData(ds, shift)),
        lambda ds: ShuffleData(CacheData(ds)),
        lambda ds: Mosaic(MapData(ds, pictured), 32),
    ],
)
def test_a_plan_over_what_comes_in_any_order(
    make: Callable[[DataFlow], DataFlow], pools: Pools
) -> None:
    whole = list(make(planned(9)).iterate(seed=SEED))
    for workers in (Workers(2), Workers(2, "thread")):
        flow = settled(make(workers.wrap(planned(9), ordered=False)), workers, pools)
        assert_same_set(list(flow.iterate(seed=SEED)), whole, str(flow))


def assert_same_set(found: list[Any], expected: list[Any], where: str) -> None:
    assert len(found) == len(expected), where
    left = list(expected)
    for one in found:
        at = next((i for i, other in enumerate(left) if same_datapoints(one, other)), None)
        assert at is not None, f"{where}: {one!r} is too much"
        del left[at]


# Compositions, with parallel stages anywhere in them: of stages that give what they were given.

LAYERS = """MapData, MapData rng, MapData rows, MapData skip, MapData of_skipping, FilterData,
FilterData rng, MapDataComponent, ShuffleData, LocallyShuffleData, LocallyShuffleData reusing,
BatchData, BatchData remainder, ShardRows, RepeatedData, RepeatedDataPoint, FixedSizeData,
FixedSizeData afresh, ShardData, ShardData uneven, ShardData padded, CacheData, CacheData shuffled,
PrintData, TestDataSpeed, ProxyDataFlow, ProxyDataFlow twice, JoinData itself, ConcatData itself,
MixData, RandomChooseData"""


def drawn_layers(rng: random.Random) -> list[str]:
    """Two to five layers that go together."""
    layers = rng.choices(LAYERS.replace("\n", " ").split(", "), k=rng.randint(2, 5))
    for index, layer in enumerate(layers):
        batching = ("BatchData", "ShardRows")
        batched = any(one.startswith(batching) for one in layers[:index])
        if batched and (layer.startswith(batching) or layer == "MapData rows"):
            layers[index] = "RepeatedData"
        # Of two flows of a user's own, one on the other, the upper one runs the code of the lower
        # one. With a stage between them the lower one is a flow by itself, and draws by itself.
        if layer == "ProxyDataFlow twice" and layer in layers[:index]:
            layers[index] = "RepeatedDataPoint"
    return layers


def composed(
    source: Source, layers: list[str], between: list[Workers], pools: Pools
) -> DataFlow | None:
    """A pipeline; `None` if there is no such."""
    flow = between[0].wrap(source(9))
    for layer, workers in zip(layers, between[1:], strict=True):
        try:
            flow = workers.wrap(STAGES[layer].make(lambda _, flow=flow: flow))
        except ConfigError:
            return None
    for stage in parallel_stages(flow):
        share_pools(stage, pools)
    return flow


@pytest.mark.slow
@pytest.mark.parametrize("number", sample(range(400)))
def test_compositions(number: int, pools: Pools) -> None:
    rng = random.Random(number)
    source, layers = rng.choice((planned, in_order)), drawn_layers(rng)
    nowhere = [Workers(None)] * (len(layers) + 1)
    plain = composed(source, layers, nowhere, pools)
    if plain is None:
        return
    try:
        expected = passes(plain)
    except DataFlowError as error:
        assert "no datapoints" in error.what
        return
    check_flow(lambda: composed(source, layers, nowhere, pools) or plain, seed=SEED, limit=LIMIT)
    for epoch, whole in enumerate(expected):
        first, then = (
            composed(source, layers, rng.choices(ALL_WORKERS, k=len(layers) + 1), pools)
            for _ in range(2)
        )
        assert first is not None and then is not None
        states = states_of(first, epoch, whole, str(first))
        stop = rng.randrange(len(states))
        rest = list(islice(then.iterate(state=states[stop]), len(whole) - stop))
        assert_same(rest, whole[stop:], f"{first}, from {stop} on {then}")


def test_a_cache_on_disk_is_good_for_any_workers(tmp_path: Path, pools: Pools) -> None:
    expected = list(planned(11).iterate(seed=5, epoch=0))
    for workers in ALL_WORKERS:
        cache = DiskCacheData(workers.wrap(planned(11)), tmp_path / "cache", seed=5)
        flow = settled(workers.wrap(cache), workers, pools)
        assert_same(list(flow.iterate(seed=SEED)), expected, str(workers))


def test_passes_within_passes_all_differ() -> None:
    """Also where a flow that reads twice reads another one that does."""
    flow = Twice(PrintData(Twice(PrintData(Twice(planned(3)), 0)), 0))
    found = [float(noise) for _, noise in flow.iterate(seed=SEED)]
    assert len(found) == len(set(found)) == 24
