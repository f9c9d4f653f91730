"""What workers do: a function of a piece of work, made once for a pass and sent to each worker."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from towerpack.dataflow._datapoints import Block, Datapoint, Positions
from towerpack.dataflow._memory import lent_empty
from towerpack.dataflow._plan import Node

Work = tuple[int, int, int]
"""One piece of work: epoch, first position, position after the last."""

Inputs = tuple[int, Sequence[Datapoint]]
"""Datapoints that are sent with work, and the position of the first in what they are from."""


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


class Sent(threading.local):
    """What came with the work that a thread is at."""

    first = 0
    datapoints: Sequence[Datapoint] = ()


_SENT = Sent()


class SentNode(Node):
    """The datapoints that come with a piece of work: a source that workers cannot read."""

    size = None

    def read(self, epoch: int, positions: Positions) -> Block:
        # Of the last group that is to become one, there may be fewer.
        first = int(positions[0]) - _SENT.first
        return list(_SENT.datapoints[first : first + len(positions)])

    def get(self, epoch: int, position: int) -> Datapoint:
        return _SENT.datapoints[position - _SENT.first]


class Job:
    """What workers do with pieces of work: they read positions of a plan. Pickles by cloudpickle.

    Args:
        node: The plan.
        key: What the global generators are seeded from.
    """

    def __init__(self, node: Node, key: int) -> None:
        self._node = node
        self._key = key
        self._ready = False

    def run(self, work: Work, inputs: Inputs | None = None) -> Result:
        """Do one piece of work; exceptions become part of the result.

        Args:
            work: An epoch, the first position, and the one after the last.
            inputs: For what cannot be read here: the position of the first datapoint, and them.
        """
        self._prepare()
        epoch, start, stop = work
        if inputs is not None:
            _SENT.first, _SENT.datapoints = inputs
            result = self._one_by_one(epoch, start, stop)
            _SENT.datapoints = ()
            return result
        if stop - start == 1:
            return self._one_by_one(epoch, start, stop)
        try:
            return Result(self._node.read(epoch, range(start, stop)), stop - start)
        except BaseException:  # noqa: BLE001
            # Which datapoint it was, and what those before it are, shows when they are read alone.
            return self._one_by_one(epoch, start, stop)

    def seed_of(self, work: Work) -> int:
        """For code that draws from the global generators of `random` and NumPy."""
        epoch, start, _ = work
        return hash((self._key, epoch, start))

    def place_of(self, work: Work) -> str:
        """How messages call a piece of work."""
        epoch, start, stop = work
        return f"position{_span(start, stop)} of epoch {epoch}"

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
