"""Batches of mapped datapoints that can only be read in order: workers map, and stack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from towerpack.dataflow._arena import lent_empty
from towerpack.dataflow._flow import Place, compile_flow, open_flow
from towerpack.dataflow._stream import State, Stream, Tally, check_count, with_skipped
from towerpack.dataflow.parallel._chain import Chain, state_below_maps, state_of_maps
from towerpack.dataflow.parallel._chain_job import BatchJob, ChainJob
from towerpack.dataflow.parallel._crew import Crew
from towerpack.dataflow.parallel._job import Job
from towerpack.dataflow.parallel._read_work import ReadWork, start_reading
from towerpack.dataflow.parallel._run import WorkSource
from towerpack.dataflow.parallel._work_stream import WorkStream
from towerpack.dataflow.stages._batch import BatchData


class BatchStream(WorkStream):
    """What workers make of a chain. Its states are those of the serial stages.

    Args:
        chain: The maps.
        batch: What is made of their results.
        place: Where it stands.
        epoch: The pass.
        state: Where a batch begins.
        begin: Starts a pass of a job over work.
    """

    _work: ReadWork

    def __init__(
        self,
        chain: Chain,
        batch: BatchData,
        place: Place,
        epoch: int,
        state: State,
        begin: Callable[[Job, Callable[[Crew], WorkSource]], Any],
    ) -> None:
        super().__init__(place.tally)
        window, count, below = _unpack(chain, batch, state)
        inner = replace(place, workers=None, tally=Tally())
        source = open_flow(chain.source, inner, epoch, below)
        self._chain = chain
        self._batch = batch
        # The batch that comes next, where in the source it begins, and whether it was the last.
        self._window, self._count, self._source = window, count, source.state()
        self._used = 0
        # What was left out of the last batch, which a resume reads again; see `WindowStream`.
        self._resumed = None if state is None else _batch_state(chain, state)
        self._again = (
            0 if self._resumed is None else check_count(self._resumed.get("again"), 1 << 62)
        )

        def reading(crew: Crew) -> WorkSource:
            self._work = start_reading(
                chain.source, source, inner.tally or Tally(), crew,
                epoch=epoch, count=count, group=batch.batch_size, remainder=batch.remainder,
            )  # fmt: skip
            return self._work

        self._pass = begin(_job(chain, batch, place), reading)

    def state(self) -> State:
        maps = state_of_maps(self._chain.maps, self._count, self._source)
        batch = {"window": self._window, "used": self._used, "inner": maps}
        batch = with_skipped(batch, self._again)
        return state_of_maps(self._chain.above, self._window + self._used, batch)

    def _forward(self) -> None:
        self._uncount()
        read = self._work.reads.popleft()
        self._add_skipped(read.skipped)
        if read.size < self._batch.batch_size:  # that it is the last was seen by reading to the end
            self._used = 1
            self._again = read.skipped
            self._end()
            return
        self._window += 1
        self._count += read.size
        self._source = read.state

    def _uncount(self) -> None:
        if self._resumed is not None:
            (self._tally or Tally()).uncount(self._resumed)
            self._resumed, self._again = None, 0

    def _skipped_last(self) -> int:
        return self._work.skipped_last

    def _end(self) -> None:
        self._uncount()
        if not self._ended:
            self._again += self._work.skipped_last
            if not self._window and not self._used:
                self._batch.tell_if_too_few(self._work.left_out)
        super()._end()


def open_batches(
    chain: Chain,
    batch: BatchData,
    place: Place,
    epoch: int,
    state: State,
    begin: Callable[..., Any],
) -> Stream | None:
    """A pass over the batches of a chain, with workers; `None` where the consumer is to stack.

    It is where a state is within a batch, which only the last one's can be. And maps that keep out
    of the plan of what they map are a plan's: its positions are their states.
    """
    if state is not None and _batch_state(chain, state)["used"]:
        return None
    if compile_flow(chain.source, replace(place, workers=None, tally=Tally())) is not None:
        return None
    return BatchStream(chain, batch, place, epoch, state, begin)


def _job(chain: Chain, batch: BatchData, place: Place) -> BatchJob:
    maps = ChainJob([one.mapper(place) for one in chain.maps], False, None, place.seed)
    above = [one.mapper(place) for one in chain.above]
    # Memory that is used again is only for arrays that no code of the user's gets to see.
    stacker = batch.stacker(np.empty if above else lent_empty)
    return BatchJob(maps, batch.batch_size, stacker, above)


def _unpack(chain: Chain, batch: BatchData, state: State) -> tuple[int, int, State]:
    """The batch's number, how many datapoints were mapped before it, and the source's state."""
    if state is None:
        return 0, 0, None
    at = _batch_state(chain, state)
    window = check_count(at["window"], 1 << 62)
    state_below_maps(chain.above, window, state)
    count = window * batch.batch_size
    return window, count, state_below_maps(chain.maps, count, at["inner"])


def _batch_state(chain: Chain, state: State) -> State:
    for _ in chain.above:
        state = state["inner"]
    return state
