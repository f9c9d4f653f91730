"""Every public flow gives the same with any workers, and goes on with any others."""

from __future__ import annotations

import gc
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgpack
import pytest

from every_flow import (
    NO_CASE,
    SOURCES,
    STAGES,
    Case,
    Source,
    in_order,
    planned,
    public_flows,
    write_files,
)
from scaling import sample
from towerpack.dataflow import (
    DataFlow,
    PrefetchData,
    ProxyDataFlow,
    RNGDataFlow,
)
from towerpack.dataflow._flow import inputs_of
from towerpack.dataflow.parallel._crew import Crew
from towerpack.dataflow.parallel._options import Backend, Options
from towerpack.dataflow.parallel._parking import Parking
from towerpack.dataflow.testing import same_datapoints

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

    def __str__(self) -> str:
        return "none" if self.count is None else f"{self.count} {self.backend}"

    def wrap(self, ds: DataFlow, **options: Any) -> DataFlow:
        """The flow, with a parallel stage."""
        if self.count is None:
            return ds
        return PrefetchData(ds, num_proc=self.count, backend=self.backend, **options)


ALL_WORKERS = [
    Workers(2),
    Workers(3, "thread"),
    Workers(None),
    Workers(3),
    Workers(1),
    Workers(0),
    Workers(2, "thread"),
    Workers(1, "thread"),
]
Placed = Literal["above", "below", "both"]
KINDS: list[tuple[Source, Placed]] = [
    (source, placed) for placed in ("above", "below", "both") for source in (planned, in_order)
]


class Crews:
    """Crews that wait for whichever flow is next: they take longer to start than all it does."""

    def __init__(self) -> None:
        self._waiting: list[Crew] = []

    def take(self, options: Options) -> Crew:
        for crew in self._waiting:
            if crew.usable and _alike(crew.options, options):
                self._waiting.remove(crew)
                crew.options = options
                return crew
        return Parking().take(options)

    def park(self, crew: Crew) -> None:
        self._waiting.append(crew)

    def close(self) -> None:
        for crew in self._waiting:
            crew.close()


def _alike(one: Options, other: Options) -> bool:
    return (one.workers, one.backend) == (other.workers, other.backend)


@pytest.fixture(scope="module")
def crews() -> Iterator[Crews]:
    crews = Crews()
    yield crews
    gc.collect()  # passes that were given up come back
    crews.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    write_files(folder)
    return folder


@pytest.fixture(autouse=True)
def _quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    logger = logging.getLogger("towerpack.dataflow")
    level = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(level)


def chosen(cases: Sequence[T], turn: int, *, at_least: int = 1) -> list[T]:
    """A sample, another one in each turn."""
    turn %= len(cases)
    return sample([*cases[turn:], *cases[:turn]], at_least=at_least)


def parallel_stages(flow: DataFlow) -> list[PrefetchData]:
    """Those in a pipeline."""
    own = [flow] if isinstance(flow, PrefetchData) else []
    return own + [stage for inner in inputs_of(flow) for stage in parallel_stages(inner)]


def flows_in(flow: DataFlow) -> list[DataFlow]:
    """A flow and all below it."""
    return [flow, *(one for inner in inputs_of(flow) for one in flows_in(inner))]


def make_with(
    case: Case, source: Source, placed: Placed, workers: Workers, crews: Crews
) -> DataFlow:
    """A case with workers above it, below it, or both."""

    def below(n: int) -> DataFlow:
        return source(n) if placed == "above" else workers.wrap(source(n))

    flow = case.make(below)
    return settled(flow if placed == "below" else workers.wrap(flow), workers, crews)


def settled(flow: DataFlow, workers: Workers, crews: Crews) -> DataFlow:
    """A flow whose parallel stages have so many workers, which they share with other flows."""
    for stage in parallel_stages(flow):
        stage.options = replace(stage.options, workers=workers.count or 0)
        stage._parking = crews  # type: ignore[assignment]
    return flow


def passes(flow: DataFlow) -> list[list[Any]]:
    """The beginnings of its first passes."""
    return [list(islice(flow.iterate(seed=SEED, epoch=epoch), LIMIT)) for epoch in EPOCHS]


def assert_same(found: list[Any], expected: list[Any], where: str) -> None:
    assert len(found) == len(expected), where
    for index, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert same_datapoints(one, other), f"{where}: {index} is {one!r}, expected {other!r}"


Stops = dict[int, Any]


def states_of(flow: DataFlow, epoch: int, expected: list[Any], where: str) -> Stops:
    """Read a pass, and take a state at each place."""
    states: Stops = {}
    with flow.iterate(seed=SEED, epoch=epoch) as iterator:
        for index, datapoint in enumerate(expected):
            states[index] = msgpack.unpackb(msgpack.packb(iterator.state()))
            assert same_datapoints(next(iterator), datapoint), f"{where}, epoch {epoch}, {index}"
        states[len(expected)] = msgpack.unpackb(msgpack.packb(iterator.state()))
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
def test_stages(name: str, crews: Crews) -> None:
    case, index = STAGES[name], list(STAGES).index(name)
    for turn, (source, placed) in enumerate(KINDS):
        if case.needs_plan and source is in_order:
            continue
        where = f"{name}, {source.__name__}, workers {placed}"
        check_workers(
            lambda workers: make_with(case, source, placed, workers, crews),  # noqa: B023
            passes(case.plain(source)),
            index + turn,
            where,
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCES)
def test_sources(name: str, folder: Path, crews: Crews) -> None:
    make, index = SOURCES[name][1], list(SOURCES).index(name)
    check_workers(
        lambda workers: settled(workers.wrap(make(folder)), workers, crews),
        passes(make(folder)),
        index,
        name,
    )
