from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, TowerpackError
from towerpack.dataflow._arena import Allocate
from towerpack.dataflow.datapoints import Block, Datapoint, Positions, as_ints, to_rows


class Node:
    """Compiled stage that reads datapoints by position, thread-safe.

    A subclass defines `get`, `read` or both.
    """

    size: int | None  # number of datapoints in a pass; None if infinite
    # Number of datapoints to read at a time. 1 if that is slow or runs user code for each of them.
    chunk: int = 1
    forwarded: Sequence[Node] = ()  # plans whose datapoints are passed on and not retained
    _last: Any = None  # cache of the last result: set by one assignment, and not pickled

    @property
    def releases_gil(self) -> bool:
        """Whether reading only copies rows of arrays, for which NumPy releases the GIL."""
        return bool(self.forwarded) and all(inner.releases_gil for inner in self.forwarded)

    def read(self, epoch: int, positions: Positions) -> Block:
        """Return the datapoints at `positions` of an epoch. The caller may modify the arrays."""
        return [self.get(epoch, position) for position in as_ints(positions)]

    def get(self, epoch: int, position: int) -> Datapoint:
        return to_rows(self.read(epoch, range(position, position + 1)))[0]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_last"}

    def lay_into(self, allocate: Allocate) -> None:
        """Allocate result arrays with `allocate`, except arrays that user code may retain."""
        for inner in self.forwarded:
            inner.lay_into(allocate)


class InnerNode(Node):
    def __init__(self, inner: Node) -> None:
        self.inner = inner
        self.size = inner.size
        self.chunk = inner.chunk


def makers_of(node: Node) -> Iterator[Node]:
    """Iterate over the nodes that create datapoints: `node`, or the nodes that it forwards."""
    if not node.forwarded:
        yield node
    for inner in node.forwarded:
        yield from makers_of(inner)


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """Random access to the datapoints of every pass of a pipeline; see `DataFlow.plan`.

    A datapoint is a function of (seed, epoch, position), and can be read in any order.

    Attributes:
        root: Compiled pipeline.
        seed: Seed of all random numbers.
        signature: Text that identifies the pipeline in saved states.
        pipeline: Name of the pipeline in error messages.
    """

    root: Node
    seed: int
    signature: str
    pipeline: str

    @property
    def size(self) -> int | None:
        """Number of datapoints in a pass; `None` if infinite."""
        return self.root.size

    def __len__(self) -> int:
        if self.root.size is None:
            raise TypeError(f"{self.pipeline} is infinite")
        return self.root.size

    def __repr__(self) -> str:
        return f"Plan({self.pipeline}, seed={self.seed})"

    def read(
        self, positions: Sequence[int] | range | NDArray[np.integer], *, epoch: int = 0
    ) -> list[Datapoint]:
        """Return the datapoints at several positions of a pass, in the order of the positions.

        Args:
            positions: Positions from 0; an array has shape [n].
            epoch: Number of the pass.

        Raises:
            ConfigError: A position is outside the pass.
        """
        if len(positions) == 0:
            return []
        if isinstance(positions, range) and positions.step == 1:
            ends = positions[0], positions[-1]
        else:
            positions = np.asarray(positions, np.int64)
            ends = int(positions.min()), int(positions.max())
        for position in ends:
            if position < 0 or (self.size is not None and position >= self.size):
                limit = "at least 0" if self.size is None else f"in 0..{self.size - 1}"
                what = f"A position must be {limit}, got {position}."
                raise ConfigError(what, pipeline=self.pipeline)
        try:
            return to_rows(self.root.read(epoch, positions))
        except TowerpackError as error:
            error.pipeline = error.pipeline or self.pipeline
            raise

    def get(self, position: int, *, epoch: int = 0) -> Datapoint:
        """Return the datapoint at one position of a pass.

        Args:
            position: Position in the pass, from 0.
            epoch: Number of the pass.
        """
        return self.read(range(position, position + 1), epoch=epoch)[0]
