"""What workers do with datapoints of a source that can only be read in order."""

from __future__ import annotations

import os
from collections.abc import Sequence

from towerpack._core.errors import MapError
from towerpack.dataflow._blocks import to_rows
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._plan import Node
from towerpack.dataflow.parallel._failure import Failure, describe_failure, restore_failure
from towerpack.dataflow.parallel._globals import drawn_since, seed_globals
from towerpack.dataflow.parallel._job import Job, Result, Work
from towerpack.dataflow.stages._batch import Collate
from towerpack.dataflow.stages._mapping import Mapper


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


class BatchJob(Job):
    """Applies maps to the datapoints of batches, stacks what they give, and maps the batches.

    Args:
        maps: Maps datapoints that are sent. A unit of them begins with a batch.
        batch_size: Datapoints in a batch. The last one of a unit may have fewer.
        collate: Stacks them.
        above: Maps of batches, from the lowest to the top.
    """

    def __init__(
        self, maps: ChainJob, batch_size: int, collate: Collate, above: Sequence[Mapper] = ()
    ) -> None:
        self._maps = maps
        self._batch_size = batch_size
        self._collate = collate
        self._above = above
        self._home = os.getpid()
        self._draws = False
        """Whether the maps were seen to draw from a global generator."""

    def run(self, work: Work) -> Result:
        mapped = self._mapped(work)
        rows = to_rows(mapped.block)
        batches: list[Datapoint] = []
        for first in range(0, len(rows), self._batch_size):
            batch = rows[first : first + self._batch_size]
            if mapped.error is not None and len(batch) < self._batch_size:
                break  # the one with the datapoint that failed
            try:
                batches.append(self._batch(batch, work[0], (work[1] + first) // self._batch_size))
            except BaseException as error:  # noqa: BLE001  it is raised in the consumer
                return Result(batches, len(batches), error)
        return Result(batches, len(batches), mapped.error)

    def split(self, work: Work) -> list[Work]:
        return [work]  # a batch cannot be; what draws is seeded for each datapoint here

    def seed_of(self, work: Work) -> int:
        return self._maps.seed_of(work)

    def place_of(self, work: Work) -> str:
        return self._maps.place_of(work)

    def _batch(self, rows: list[Datapoint], epoch: int, position: int) -> Datapoint:
        batch = self._collate(rows)
        if self._above and not self._is_thread():
            # Not as for the datapoint at that position, whose numbers may be in the batch.
            seed_globals(hash((self._maps.seed_of((epoch, position)), 1)))
        for mapper in self._above:
            batch = mapper(batch, epoch, position)
        return batch

    def _is_thread(self) -> bool:
        """Whether this is the program itself, and its global generators are its own."""
        return os.getpid() == self._home

    def _mapped(self, work: Work) -> Result:
        if self._is_thread():
            return self._maps.run(work)
        if not self._draws:
            result = self._maps.run(work)
            if not drawn_since(self.seed_of(work)):  # with which the worker seeded them
                return result
            self._draws = True
        return self._map_seeded(work)

    def _map_seeded(self, work: Work) -> Result:
        """With the numbers that each datapoint would get if it were mapped alone."""
        rows: list[Datapoint] = []
        for part in self._maps.split(work):
            seed_globals(self._maps.seed_of(part))
            result = self._maps.run(part)
            rows += to_rows(result.block)
            if result.error is not None:
                return Result(rows, len(rows), result.error)
        return Result(rows, len(rows))
