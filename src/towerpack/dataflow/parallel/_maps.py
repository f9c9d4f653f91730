"""Maps of what can only be read in order: the consumer reads, workers apply the maps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._flow import Place, compile_flow, open_flow
from towerpack.dataflow._stream import State, Stream, Tally, check_count
from towerpack.dataflow.parallel._chain import Chain, state_below_maps, state_of_maps
from towerpack.dataflow.parallel._chain_job import ChainJob, Skipped
from towerpack.dataflow.parallel._crew import Crew
from towerpack.dataflow.parallel._job import Job
from towerpack.dataflow.parallel._map_batches import open_batches
from towerpack.dataflow.parallel._read_work import ReadWork, start_reading
from towerpack.dataflow.parallel._run import PlanWork, WorkSource
from towerpack.dataflow.parallel._work_stream import WorkStream
from towerpack.dataflow.stages._mapping import Mapper, MapStream


class ChainStream(WorkStream):
    """What workers make of a chain's source: tokens for the top map's stream.

    Args:
        chain: The maps.
        place: Where the top one stands.
        epoch: The pass.
        state: What the top map's stream says of the one below it.
        count: How many datapoints were mapped before.
        begin: Starts a pass of a job over work.
    """

    def __init__(
        self,
        chain: Chain,
        place: Place,
        epoch: int,
        state: State,
        count: int,
        begin: Callable[[Job, Callable[[Crew], WorkSource]], Any],
    ) -> None:
        super().__init__(place.tally)
        inner = replace(place, workers=None, tally=Tally())
        node = compile_flow(chain.source, inner)
        # Over a plan, the maps below the top one are part of it, and their state is a position.
        self._lower = chain.maps[:-1] if node is None else ()
        self._count = count
        self._state = state_below_maps(self._lower, count, state)
        mappers = [one.mapper(place) for one in chain.maps]
        job = ChainJob(mappers, chain.skips, node, place.seed)
        self._work: ReadWork | None = None
        if node is not None:
            self._state = check_count(self._state, node.size or 1 << 62)
            first = self._state

            def positions(crew: Crew) -> WorkSource:
                return PlanWork(epoch, first, node.size, 1, crew.options.workers)

            self._pass = begin(job, positions)
            return
        source = open_flow(chain.source, inner, epoch, self._state)
        self._state = source.state()

        def reading(crew: Crew) -> WorkSource:
            tally = inner.tally or Tally()
            self._work = start_reading(chain.source, source, tally, crew, epoch=epoch, count=count)
            return self._work

        self._pass = begin(job, reading)

    def state(self) -> State:
        return state_of_maps(self._lower, self._count, self._state)

    def _forward(self) -> None:
        self._count += 1
        if self._work is None:
            self._state += 1
        else:
            self._state, skipped, _ = self._work.reads.popleft()
            self._add_skipped(skipped)

    def _skipped_last(self) -> int:
        return 0 if self._work is None else self._work.skipped_last

    def _end(self) -> None:
        if self._work is not None and not self._ended:
            self._state = self._work.state_last
        super()._end()


class TokenMapper(Mapper):
    """Stands in for the top map, whose work workers have done."""

    def __call__(self, datapoint: Datapoint, epoch: int, position: int) -> Datapoint:
        if isinstance(datapoint, Skipped):
            raise datapoint.cause()
        return datapoint


def open_chain(
    chain: Chain, place: Place, epoch: int, state: State, begin: Callable[..., Any]
) -> Stream | None:
    """A pass over a chain, with workers; `None` if they can do less of it, further down.

    Its states are those of the serial stages.
    """
    if chain.batch is not None:
        return open_batches(chain, chain.batch, place, epoch, state, begin)
    count = 0 if state is None else check_count(state["count"], 1 << 62)
    inner = None if state is None else state["inner"]
    tokens = ChainStream(chain, place, epoch, inner, count, begin)
    top = chain.top
    skipped = (place.tally or Tally()) if chain.skips else None
    mapper = TokenMapper(top.f, top.mapper(place).name, None)
    return MapStream(tokens, mapper, epoch, state, skipped, top.policy)
