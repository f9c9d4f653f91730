"""What workers do: a function of a piece of work, made once for a pass and sent to each worker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from towerpack.dataflow._arena import lend, lent_empty
from towerpack.dataflow._blocks import Block
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._plan import Node
from towerpack.dataflow.parallel._layout import RowsArena
from towerpack.dataflow.stages._batch import BatchNode

Work = Any
"""One piece of work, such as (epoch, first position, position after the last)."""


@dataclass
class Result:
    """What became of a piece of work.

    Attributes:
        block: The datapoints up to the first that failed.
        count: How many.
        error: Of the one that failed.
    """

    block: Block
    count: int
    error: BaseException | None = None


class Job(ABC):
    """What workers do with pieces of work. Pickles by cloudpickle."""

    @abstractmethod
    def run(self, work: Work) -> Result:
        """Do one piece of work; exceptions become part of the result."""

    @abstractmethod
    def split(self, work: Work) -> list[Work]:
        """The same work, datapoint by datapoint."""

    def rows_of(self, work: Work) -> int:
        """Rows of the batch that a piece of work is; 0 if it cannot be made in parts."""
        return 0

    def lay(self, work: Work, rows: tuple[int, int], arena: RowsArena) -> bool:
        """Make some rows of the batch that a piece of work is, in the memory of an arena.

        Args:
            work: The batch.
            rows: The first, and the one after the last.
            arena: Where they go.

        Returns:
            Whether they are of the kind that the arena is for. If not, and if anything is raised,
            the batch has to be made by `run`.
        """
        return False

    @abstractmethod
    def seed_of(self, work: Work) -> int:
        """For code that draws from the global generators of `random` and NumPy."""

    @abstractmethod
    def place_of(self, work: Work) -> str:
        """How messages call a piece of work."""


class PlanJob(Job):
    """Reads consecutive positions of a plan.

    Args:
        node: The plan.
        key: What the global generators are seeded from.
    """

    def __init__(self, node: Node, key: int) -> None:
        self._node = node
        self._key = key
        self._ready = False

    def run(self, work: Work) -> Result:
        self._prepare()
        epoch, start, stop = work
        if stop - start == 1:
            return self._one_by_one(epoch, start, stop)
        try:
            return Result(self._node.read(epoch, range(start, stop)), stop - start)
        except BaseException:  # noqa: BLE001
            # Which datapoint it was, and what those before it are, shows when they are read alone.
            return self._one_by_one(epoch, start, stop)

    def split(self, work: Work) -> list[Work]:
        epoch, start, stop = work
        return [(epoch, position, position + 1) for position in range(start, stop)]

    def seed_of(self, work: Work) -> int:
        epoch, start, _ = work
        return hash((self._key, epoch, start))

    def place_of(self, work: Work) -> str:
        epoch, start, stop = work
        return f"position{_span(start, stop)} of epoch {epoch}"

    def rows_of(self, work: Work) -> int:
        _, start, stop = work
        if stop - start != 1 or not isinstance(self._node, BatchNode):
            return 0
        return len(self._node.members(start))

    def lay(self, work: Work, rows: tuple[int, int], arena: RowsArena) -> bool:
        self._prepare()
        epoch, start, _ = work
        if not isinstance(self._node, BatchNode):
            return False
        with lend(arena):
            part = self._node.part(epoch, start, *rows)
        return arena.take(part)

    def _prepare(self) -> None:
        if not self._ready:
            self._node.lay_into(lent_empty)
            self._ready = True

    def _one_by_one(self, epoch: int, start: int, stop: int) -> Result:
        rows: list[Datapoint] = []
        for position in range(start, stop):
            try:
                rows.append(self._node.get(epoch, position))
            except BaseException as error:  # noqa: BLE001  it is raised in the consumer
                return Result(rows, len(rows), error)
        return Result(rows, len(rows))


def _span(start: int, stop: int) -> str:
    return f" {start}" if stop - start == 1 else f"s {start}..{stop - 1}"
