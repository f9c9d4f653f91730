"""Pipelines that can only be read in order: one thread reads, and workers run stages above."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeGuard

from towerpack._core.errors import MapError, StateError
from towerpack.dataflow._compile import ParallelStage, prepared
from towerpack.dataflow._flow import DataFlow, is_exact
from towerpack.dataflow._iteration_state import InnerStream, State, Stream, check_count
from towerpack.dataflow._plan import Node
from towerpack.dataflow.datapoints import Datapoint
from towerpack.dataflow.parallel._pickles_and_errors import (
    Failure,
    describe_failure,
    restore_failure,
)
from towerpack.dataflow.stage_context import StageContext
from towerpack.dataflow.stages._base import WindowStream
from towerpack.dataflow.stages._batch import BatchData
from towerpack.dataflow.stages._map import MapData, MapNode
from towerpack.dataflow.stages._on_error import Mapper, MapStream

_MOST = 1 << 62

Level = MapData | BatchData


class Levels:
    """Stages at the top of a flow that workers can run: maps, and one batch of mapped datapoints.

    Only the topmost stage may skip datapoints. `stages` begins with the lowest stage. Workers turn
    `group` datapoints of `source` into one, or fewer at the end if `remainder`.
    """

    def __init__(self, flow: DataFlow) -> None:
        stages, flow = _maps_above(flow, may_skip=True)
        self.group, self.remainder = 1, True
        if is_exact(flow) and isinstance(flow, BatchData) and type(flow).open is BatchData.open:
            below, source = _maps_above(flow.ds, may_skip=False)
            if below:
                self.group, self.remainder = flow.batch_size, flow.remainder
                stages, flow = [*stages, flow, *below], source
        self.stages = stages[::-1]
        self.source = flow

    def plan_below(self, context: StageContext) -> Node | None:
        """Return the plan of the flow that the last stage reads; None if there is no plan."""
        top = self.stages[-1]
        node = top.ds.compile_in(context) if _skips(top) else None
        if node is not None:
            self.stages = [top]
        return node

    def node(self, context: StageContext, inner: Node) -> Node:
        for stage in self.stages:
            if isinstance(stage, BatchData):
                inner = prepared(stage, stage.node(inner, context))
            else:
                mapper = stage.mapper(context)
                node = MapNode(inner, Skipping(mapper) if _skips(stage) else mapper)
                inner = prepared(stage, node)
        return inner

    def begin(self, state: State) -> tuple[int, State]:
        """Return the number of results that were yielded before, and the state of the source."""
        if state is None:
            return 0, None
        expected: int | None = None
        for stage in reversed(self.stages):
            if isinstance(stage, BatchData):
                window = check_count(state["window"], _MOST)
                count, below = window + check_count(state["used"], 1), window * self.group
            else:
                count = below = check_count(state["count"], _MOST)
            if expected not in (None, count) or (state.get("bad") and not _skips(stage)):
                raise StateError(
                    f"The saved state of {stage} contradicts the saved state of the stage "
                    "that reads from it.",
                    fix="pass a state exactly as it was saved, or start a new pass",
                )
            expected, state = below, state["inner"]
        return (expected or 0) // self.group, state

    def streams(self, inner: Stream, context: StageContext, epoch: int, state: State) -> Stream:
        """Return the streams of these stages over the results of the workers."""
        states = [state]
        for _ in self.stages:
            states.append(None if states[-1] is None else states[-1]["inner"])
        for stage, saved in zip(self.stages, states[-2::-1], strict=True):
            if isinstance(stage, BatchData):
                inner = WindowStream(inner, self.group, _first_of(stage), saved, context.tally)
            elif _skips(stage):
                mapper = Mapped(stage.f, stage.mapper(context).name, None)
                inner = MapStream(inner, mapper, epoch, saved, stage.policy, context.tally)
            else:
                inner = MappedStream(inner, saved)
        return inner


def _maps_above(flow: DataFlow, *, may_skip: bool) -> tuple[list[Level], DataFlow]:
    """Return the maps at the top of a flow, from top to bottom, and the flow below the maps."""
    maps: list[Level] = []
    while is_exact(flow):
        if isinstance(flow, ParallelStage):
            flow = flow.ds
        elif _is_plain_map(flow) and not (_skips(flow) and (maps or not may_skip)):
            maps.append(flow)
            flow = flow.ds
        else:
            break
    return maps, flow


def _is_plain_map(flow: DataFlow) -> TypeGuard[MapData]:
    return isinstance(flow, MapData) and type(flow).open is MapData.open and not flow.batched


def _skips(stage: DataFlow) -> bool:
    return isinstance(stage, MapData) and stage.on_error == "skip"


def _first_of(stage: BatchData) -> Callable[[int, list[Datapoint]], list[Datapoint]]:
    def first(window: int, items: list[Datapoint]) -> list[Datapoint]:
        if window == 0:
            stage.warn_if_short(len(items))
        return items[:1] if stage.remainder or len(items) == stage.batch_size else []

    return first


class Skipping(Mapper):
    """Map function in a worker that returns a `Failure` instead of raising `MapError`."""

    def __init__(self, mapper: Mapper) -> None:
        self._mapper = mapper

    def __call__(self, datapoint: Datapoint, epoch: int, position: int) -> Datapoint:
        try:
            return self._mapper(datapoint, epoch, position)
        except MapError as error:
            return describe_failure(error)


class Mapped(Mapper):
    """Placeholder in the consumer for a map function that workers have already applied."""

    def __call__(self, datapoint: Datapoint, epoch: int, position: int) -> Datapoint:
        if isinstance(datapoint, Failure):
            raise restore_failure(datapoint)
        return datapoint


class MappedStream(InnerStream):
    """Stream in the consumer in place of a `MapStream` that skips no datapoints."""

    def __init__(self, inner: Stream, state: State) -> None:
        self._inner = inner
        self._advance = inner.__next__
        self._count = 0 if state is None else state["count"]

    def __next__(self) -> Datapoint:
        datapoint = self._advance()
        self._count += 1
        return datapoint

    def state(self) -> State:
        return {"count": self._count, "bad": 0, "inner": self._inner.state()}
