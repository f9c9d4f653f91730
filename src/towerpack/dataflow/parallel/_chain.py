"""What of a pipeline over a source that can only be read in order workers can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

from towerpack._core.errors import StateError
from towerpack.dataflow._flow import DataFlow, ParallelStage, is_exact
from towerpack.dataflow._stream import State
from towerpack.dataflow.stages._batch import BatchData
from towerpack.dataflow.stages._map import MapData


@dataclass(frozen=True)
class Chain:
    """Maps directly above each other, of which only the top one may skip; or batches of some.

    Attributes:
        maps: From the lowest to the top.
        source: What they map.
        batch: What stacks their results, where none skips.
        above: Maps of its batches, from the lowest to the top, of which none skips.
    """

    maps: tuple[MapData, ...]
    source: DataFlow
    batch: BatchData | None = None
    above: tuple[MapData, ...] = ()

    @property
    def top(self) -> MapData:
        """The last of `maps`."""
        return self.maps[-1]

    @property
    def skips(self) -> bool:
        """Whether bad datapoints are left out."""
        return self.top.on_error == "skip"


def find_chain(flow: DataFlow) -> Chain | None:
    """What workers can do at the top of a flow, if anything."""
    maps, below = _maps_at_the_top(flow)
    batches = _batches_of_maps(below)
    if batches is not None and not any(map(_skips, maps)):
        return replace(batches, above=maps)
    # How many datapoints come out of a map that skips is not known, and so neither are the
    # positions from which maps above it draw.
    if not maps or any(map(_skips, maps[:-1])):
        return None
    return Chain(maps, below)


def _batches_of_maps(flow: DataFlow) -> Chain | None:
    if not _is_plain_batch(flow):
        return None
    maps, below = _maps_at_the_top(flow.ds)
    # Which datapoints a batch holds is known beforehand only if none is left out.
    return None if not maps or any(map(_skips, maps)) else Chain(maps, below, flow)


def _maps_at_the_top(flow: DataFlow) -> tuple[tuple[MapData, ...], DataFlow]:
    """Maps directly above each other, from the lowest to the top, and what they map."""
    maps: list[MapData] = []
    flow = _below_parallel(flow)
    while _is_plain_map(flow):
        maps.append(flow)
        flow = _below_parallel(flow.ds)
    return tuple(reversed(maps)), flow


def _skips(one: MapData) -> bool:
    return one.on_error == "skip"


def _below_parallel(flow: DataFlow) -> DataFlow:
    while isinstance(flow, ParallelStage) and is_exact(flow):
        flow = flow.ds
    return flow


def _is_plain_map(flow: DataFlow) -> TypeGuard[MapData]:
    return (
        isinstance(flow, MapData)
        and is_exact(flow)
        and type(flow).open is MapData.open
        and not flow.batched
    )


def _is_plain_batch(flow: DataFlow) -> TypeGuard[BatchData]:
    return isinstance(flow, BatchData) and is_exact(flow) and type(flow).open is BatchData.open


def state_of_maps(maps: Sequence[MapData], count: int, source: State) -> State:
    """What streams of maps say that have mapped `count` datapoints and skipped none."""
    for _ in maps:
        source = {"count": count, "bad": 0, "inner": source}
    return source


def state_below_maps(maps: Sequence[MapData], count: int, state: State) -> State:
    """The source's part of what `state_of_maps` gave.

    Raises:
        StateError: It is of another number of datapoints.
    """
    for one in reversed(maps):
        if state is not None:
            if state["count"] != count or state["bad"]:
                raise StateError(f"A state of {one} does not fit that of the stage above it.")
            state = state["inner"]
    return state
