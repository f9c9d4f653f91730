"""Plans: what a pipeline over an indexable source compiles to.

A plan reads any datapoint of any pass in any order, as a pure function of (seed, epoch, position).
Resuming, sharding over hosts and any number of workers follow from that by arithmetic.
"""

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
    """One compiled stage: defines `get`, `read` or both, each of which is made of the other.

    Safe to read from several threads; pickles (by cloudpickle).

    Attributes:
        size: Datapoints in a pass; `None` is infinite.
        chunk: How many datapoints a consumer of single ones should read at a time; above 1 only
            where reading ahead is cheap and runs no code of the user's on single datapoints.
        forwarded: Plans whose datapoints it hands on as they are, without keeping any.
    """

    size: int | None
    chunk: int = 1
    forwarded: Sequence[Node] = ()
    _last: Any = None  # what was made last, kept by one assignment; does not travel

    @property
    def releases_gil(self) -> bool:
        """Whether it does nothing but move rows of arrays, for which NumPy lets go of the GIL."""
        return bool(self.forwarded) and all(inner.releases_gil for inner in self.forwarded)

    def read(self, epoch: int, positions: Positions) -> Block:
        """Return the datapoints at `positions` of a pass; the caller may change their memory."""
        return [self.get(epoch, position) for position in as_ints(positions)]

    def get(self, epoch: int, position: int) -> Datapoint:
        """One datapoint."""
        return to_rows(self.read(epoch, range(position, position + 1)))[0]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_last"}

    def lay_into(self, allocate: Allocate) -> None:
        """Let `allocate` make its arrays, but those that code of the user's may keep."""
        for inner in self.forwarded:
            inner.lay_into(allocate)


class InnerNode(Node):
    """Base of plans that read one other; as long as that, and read in chunks as that."""

    def __init__(self, inner: Node) -> None:
        self.inner = inner
        self.size = inner.size
        self.chunk = inner.chunk


def makers_of(node: Node) -> Iterator[Node]:
    """The plans that make what a plan gives: itself, or those that it forwards."""
    if not node.forwarded:
        yield node
    for inner in node.forwarded:
        yield from makers_of(inner)


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """Random access to every pass of a pipeline: made by `flow.plan(seed=...)`.

    Attributes:
        root: The compiled pipeline, for engines that split it.
        seed: What its randomness is a function of.
        signature: What states of it carry.
        pipeline: How messages name it.
    """

    root: Node
    seed: int
    signature: str
    pipeline: str

    @property
    def size(self) -> int | None:
        """Datapoints in a pass; `None` is infinite."""
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
        """The datapoints at `positions` of pass `epoch`, in that order.

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
                raise ConfigError(
                    f"There is no position {position} in a pass.",
                    expected="0 or more" if self.size is None else f"0..{self.size - 1}",
                    pipeline=self.pipeline,
                )
        try:
            return to_rows(self.root.read(epoch, positions))
        except TowerpackError as error:
            error.pipeline = error.pipeline or self.pipeline
            raise

    def get(self, position: int, *, epoch: int = 0) -> Datapoint:
        """The datapoint at one position of pass `epoch`."""
        return self.read(range(position, position + 1), epoch=epoch)[0]
