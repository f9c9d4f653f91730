"""Maps of what can only be read in order: the consumer reads, workers apply the maps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from towerpack._core.errors import MapError, StateError
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._flow import (
    DataFlow,
    ParallelStage,
    Place,
    compile_flow,
    is_exact,
    open_flow,
)
from towerpack.dataflow._plan import Node
from towerpack.dataflow._stream import State, Stream, Tally, check_count
from towerpack.dataflow.parallel._crew import Crew
from towerpack.dataflow.parallel._failure import Failure, describe_failure, restore_failure
from towerpack.dataflow.parallel._job import Job, Result, Work
from towerpack.dataflow.parallel._reader import Buffer, read_ahead
from towerpack.dataflow.parallel._run import Adaptive, Piece, PlanWork, WorkSource
from towerpack.dataflow.parallel._unit import Unit
from towerpack.dataflow.stages._map import MapData
from towerpack.dataflow.stages._mapping import Mapper, MapStream

_BUFFER = 256


@dataclass(frozen=True)
class Chain:
    """Maps directly above each other, of which only the top one may skip.

    Attributes:
        maps: From the lowest to the top.
        source: What they map.
    """

    maps: tuple[MapData, ...]
    source: DataFlow

    @property
    def top(self) -> MapData:
        """The last map."""
        return self.maps[-1]

    @property
    def skips(self) -> bool:
        """Whether bad datapoints are left out."""
        return self.top.on_error == "skip"


def find_chain(flow: DataFlow) -> Chain | None:
    """The maps at the top of a flow, if workers can apply them."""
    maps: list[MapData] = []
    while True:
        if isinstance(flow, ParallelStage) and is_exact(flow):
            flow = flow.ds
        elif _is_plain_map(flow) and isinstance(flow, MapData):
            # How many datapoints come out of a map that skips is not known, and so neither are
            # the positions from which maps above it draw.
            if maps and flow.on_error == "skip":
                return None
            maps.append(flow)
            flow = flow.ds
        else:
            return Chain(tuple(reversed(maps)), flow) if maps else None


def _is_plain_map(flow: DataFlow) -> bool:
    return (
        isinstance(flow, MapData)
        and is_exact(flow)
        and type(flow).open is MapData.open
        and not flow.batched
    )


class Skipped:
    """Stands for a datapoint that the top map is to leave out.

    Args:
        error: Why.
    """

    def __init__(self, error: BaseException) -> None:
        # The frames of a traceback would hold all that the worker is at.
        self.error: BaseException | None = error.with_traceback(None)
        self.failure: Failure | None = None

    def __getstate__(self) -> Failure:
        return (
            self.failure
            if self.error is None and self.failure
            else describe_failure(self.error or MapError("unknown"))
        )

    def __setstate__(self, failure: Failure) -> None:
        self.error, self.failure = None, failure

    def cause(self) -> BaseException:
        """The error."""
        if self.error is None and self.failure is not None:
            self.error = restore_failure(self.failure)
        return self.error or MapError("unknown")


class ChainJob(Job):
    """Applies maps to datapoints that are sent, or that workers read from a plan.

    Args:
        mappers: From the lowest to the top.
        skips: Whether the top one leaves out.
        node: The plan, if there is one.
        key: What the global generators are seeded from.
    """

    def __init__(self, mappers: list[Mapper], skips: bool, node: Node | None, key: int) -> None:
        self._mappers = mappers
        self._skips = skips
        self._node = node
        self._key = key

    def run(self, work: Work) -> Result:
        epoch, start, stop, *sent = work
        rows: list[Datapoint] = []
        for index, position in enumerate(range(start, stop)):
            try:
                datapoint = sent[0][index] if sent else self._read(epoch, position)
                rows.append(self._map(datapoint, epoch, position))
            except BaseException as error:  # noqa: BLE001  it is raised in the consumer
                return Result(rows, len(rows), error)
        return Result(rows, len(rows))

    def split(self, work: Work) -> list[Work]:
        epoch, start, stop, *sent = work
        return [
            (epoch, start + index, start + index + 1, *([one[index]] for one in sent))
            for index in range(stop - start)
        ]

    def seed_of(self, work: Work) -> int:
        return hash((self._key, *work[:2]))

    def place_of(self, work: Work) -> str:
        epoch, start, stop = work[:3]
        return f"datapoints {start}..{stop - 1} of epoch {epoch}"

    def _read(self, epoch: int, position: int) -> Datapoint:
        return None if self._node is None else self._node.get(epoch, position)

    def _map(self, datapoint: Datapoint, epoch: int, position: int) -> Datapoint:
        *lower, top = self._mappers
        for mapper in lower:
            datapoint = mapper(datapoint, epoch, position)
        try:
            return top(datapoint, epoch, position)
        except MapError as error:
            if not self._skips:
                raise
            return Skipped(error)


class ReadWork(Adaptive, WorkSource):
    """Datapoints that a thread of the consumer reads.

    Args:
        epoch: The pass.
        count: How many were read before.
        buffer: Where the thread puts them.
    """

    def __init__(self, epoch: int, count: int, buffer: Buffer) -> None:
        Adaptive.__init__(self, 1, _BUFFER // 2)
        self._epoch = epoch
        self._next = count
        self._buffer = buffer
        self.states: deque[tuple[State, int]] = deque()
        """For each datapoint that was issued and not handed on: the source's state after it, and
        how many bad ones were left out before it."""

    def next_piece(self) -> Piece | None:
        entries = self._buffer.take(self.size)
        if not entries:
            return None
        start = self._next
        self._next = stop = start + len(entries)
        self.states.extend((entry.state, entry.skipped) for entry in entries)
        inputs = [entry.datapoint for entry in entries]
        return Piece((self._epoch, start, stop), len(entries), inputs)

    def ended(self) -> bool:
        return self._buffer.ended

    def raise_error(self) -> None:
        self._buffer.raise_error()

    @property
    def skipped_last(self) -> int:
        """How many bad datapoints the source left out after the last good one."""
        return self._buffer.skipped_last

    def rest(self, unit: Unit) -> Piece:
        epoch, start, stop = unit.work
        inputs = unit.inputs[unit.finished :]
        return Piece((epoch, start + unit.finished, stop), len(inputs), inputs)

    def close(self) -> None:
        self._buffer.close()


class ChainStream(Stream):
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
        inner = replace(place, workers=None, tally=Tally())
        node = compile_flow(chain.source, inner)
        # Over a plan, the maps below the top one are part of it, and their state is a position.
        self._depth = len(chain.maps) - 1 if node is None else 0
        self._tally = place.tally
        self._count = count
        self._state = state
        for one in chain.maps[: self._depth]:
            if self._state is not None:
                if self._state["count"] != count or self._state["bad"]:
                    raise StateError(f"A state of {one} does not fit that of the map above it.")
                self._state = self._state["inner"]
        mappers = [one.mapper(place) for one in chain.maps]
        job = ChainJob(mappers, chain.skips, node, place.seed)
        self._work: ReadWork | None = None
        self._rows: list[Datapoint] = []
        self._ended = False
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
            buffer = Buffer(_BUFFER, crew.wake)
            self._work = ReadWork(epoch, count, buffer)
            read_ahead(source, inner.tally or Tally(), buffer)
            return self._work

        self._pass = begin(job, reading)

    def __next__(self) -> Datapoint:
        if not self._rows:
            rows = None if self._ended else self._pass.take()
            if rows is None:
                self._end()
                raise StopIteration
            rows.reverse()
            self._rows = rows
        self._count += 1
        if self._work is None:
            self._state += 1
        else:
            self._state, skipped = self._work.states.popleft()
            self._add_skipped(skipped)
        return self._rows.pop()

    def state(self) -> State:
        state = self._state
        for _ in range(self._depth):
            state = {"count": self._count, "bad": 0, "inner": state}
        return state

    def close(self) -> None:
        self._pass.close()

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        if self._work is not None:
            self._add_skipped(self._work.skipped_last)
        self._pass.close()  # so that the next pass, begun while this one is kept, has the workers

    def _add_skipped(self, count: int) -> None:
        if self._tally is not None:
            self._tally.skipped += count


class TokenMapper(Mapper):
    """Stands in for the top map, whose work workers have done."""

    def __call__(self, datapoint: Datapoint, epoch: int, position: int) -> Datapoint:
        if isinstance(datapoint, Skipped):
            raise datapoint.cause()
        return datapoint


def open_chain(
    chain: Chain, place: Place, epoch: int, state: State, begin: Callable[..., Any]
) -> Stream:
    """A pass over a chain, with workers.

    Its states are those of the serial stages.
    """
    count = 0 if state is None else check_count(state["count"], 1 << 62)
    inner = None if state is None else state["inner"]
    tokens = ChainStream(chain, place, epoch, inner, count, begin)
    top = chain.top
    skipped = (place.tally or Tally()) if chain.skips else None
    mapper = TokenMapper(top.f, top.mapper(place).name, None)
    return MapStream(tokens, mapper, epoch, state, skipped, top.policy)
