from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, TowerpackError
from towerpack.dataflow._arena import Allocate
from towerpack.dataflow.datapoints import (
    Block,
    Columns,
    Datapoint,
    Positions,
    as_array,
    as_ints,
    to_rows,
    values_of,
)

N = TypeVar("N", bound="Node")
Members = Callable[[int, int], Positions]  # of an epoch and a position
_PIECE = 1 << 16  # positions that are searched at a time


@dataclass(frozen=True)
class Origin:
    """Row of a source from which a row of a datapoint was made.

    Attributes:
        source: Name of the source.
        index: Index of the row in the source.
        name: Name of the row in the source: a file, a key or a line. `None` if rows have no names.
        epoch: Number of the pass over the source.
        position: Position at which a batch read the row in this pass, after shuffling.
        draws: Key, epoch and position of the random numbers of each random stage, by its name.
    """

    source: str
    index: int
    name: str | None = None
    epoch: int = 0
    position: int = 0
    draws: Mapping[str, tuple[int, int, int]] = field(default_factory=dict[Any, Any])


STATE_VERSION = 1


def state_of(
    signature: str, seed: int, epoch: int, position: Any, skipped: int = 0
) -> dict[str, Any]:
    return {
        "version": STATE_VERSION,
        "flow": signature,
        "seed": seed,
        "epoch": epoch,
        "at": position,
        "skipped": skipped,
    }


class Node:
    """Compiled stage that reads datapoints by position, thread-safe.

    A subclass defines `get`, `read` or both.
    """

    size: int | None  # number of datapoints in a pass; None if infinite
    # Number of datapoints to read at a time. 1 if that is slow or runs user code for each of them.
    chunk: int = 1
    forwarded: Sequence[Node] = ()  # plans whose datapoints are passed on and not retained
    source: str = ""  # name of the source whose rows this plan reads
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

    def name_of(self, index: int) -> str | None:
        """Return the name of a row of a source, if it has one."""
        return None

    def traced(self, tracer: Tracer) -> Node:
        """Return a plan of the origins of each datapoint.

        A plan that reads other plans has them in the attribute `inner` or `inputs`. A `mapper` may
        draw random numbers, and `members` returns the positions that a datapoint is made from.
        """
        fields = vars(self)
        if "inputs" in fields:
            return reading(self, inputs=[node.traced(tracer) for node in fields["inputs"]])
        if "inner" not in fields:
            return tracer.source(self)
        inner = fields["inner"].traced(tracer)
        if "mapper" in fields:
            return tracer.mapped(inner, fields["mapper"].name, fields["mapper"].key)
        members = getattr(self, "members", None)
        return tracer.gathered(inner, self.size, members) if members else reading(self, inner=inner)

    def positions_of(self, epoch: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions of a pass whose row numbers contain one of `rows`, in order.

        Call this method of a plan that a `RowCounter` has traced.
        """
        size, parts = self.size or 0, [np.zeros(0, np.int64)]
        for start in range(0, size, _PIECE):
            block = self.read(epoch, range(start, min(start + _PIECE, size)))
            if isinstance(block, Columns):
                hits = np.any([np.isin(column, rows) for column in values_of(block.data)], axis=0)
            else:
                hits = np.array([np.isin(flat([datapoint]), rows).any() for datapoint in block])
            parts.append(start + np.flatnonzero(hits))
        return np.concatenate(parts)

    def lay_into(self, allocate: Allocate) -> None:
        """Allocate result arrays with `allocate`, except arrays that user code may retain."""
        for inner in self.forwarded:
            inner.lay_into(allocate)


class InnerNode(Node):
    def __init__(self, inner: Node) -> None:
        self.inner = inner
        self.size = inner.size
        self.chunk = inner.chunk


class FirstPassNode(InnerNode):
    """Read the first pass of another plan in each pass."""

    def read(self, epoch: int, positions: Positions) -> Block:
        return self.inner.read(0, positions)


def reading(node: N, **inputs: Any) -> N:
    """Return a copy of a plan that reads other plans."""
    node = copy.copy(node)  # without the cached result
    vars(node).update(inputs, forwarded=())
    return node


class Tracer:
    """Builder of plans whose datapoints are lists of origins.

    Attributes:
        sources: Name and number of rows of each source. Sources of the same name get numbers.
    """

    def __init__(self) -> None:
        self.sources: list[tuple[str, int]] = []
        self._alike = Counter[str]()

    def source(self, node: Node) -> Node:
        return _SourceRows(node, self.name(node))

    def name(self, node: Node) -> str:
        name = node.source or type(node).__name__
        self._alike[name] += 1
        name = f"{name} #{self._alike[name]}" if self._alike[name] > 1 else name
        self.sources.append((name, node.size or 0))
        return name

    def mapped(self, inner: Node, name: str, key: int | None) -> Node:
        """Return the plan of a map, whose random key is `key`."""
        return inner if key is None else _DrawnRows(inner, name, key)

    def gathered(self, inner: Node, size: int | None, members: Members) -> Node:
        """Return the plan of batches. `members` returns the positions of a batch's rows."""
        return _GatheredRows(inner, size, members)


class _SourceRows(InnerNode):
    def __init__(self, inner: Node, name: str) -> None:
        super().__init__(inner)
        self._name = name

    def get(self, epoch: int, position: int) -> Datapoint:
        return [Origin(self._name, position, self.inner.name_of(position), epoch, position)]


class _DrawnRows(InnerNode):
    def __init__(self, inner: Node, name: str, key: int) -> None:
        super().__init__(inner)
        self._draw = name, key

    def read(self, epoch: int, positions: Positions) -> Block:
        rows = zip(to_rows(self.inner.read(epoch, positions)), as_ints(positions), strict=True)
        return [drawn(row, *self._draw, epoch, position) for row, position in rows]


class _GatheredRows(InnerNode):
    def __init__(self, inner: Node, size: int | None, members: Members) -> None:
        super().__init__(inner)
        self.size, self._members = size, members

    def get(self, epoch: int, position: int) -> Datapoint:
        members = self._members(epoch, position)
        return placed(to_rows(self.inner.read(epoch, members)), as_ints(members))


def drawn(
    rows: list[Origin], name: str, key: int | None, epoch: int, position: int
) -> list[Origin]:
    """Add the random numbers of a stage to the origins of a datapoint."""
    if key is None:
        return rows
    return [replace(row, draws={**row.draws, name: (key, epoch, position)}) for row in rows]


def placed(rows: Sequence[list[Origin]], positions: Sequence[int]) -> list[Origin]:
    """Return the origins of a batch whose rows were read at `positions`."""
    pairs = zip(rows, positions, strict=True)
    return [replace(origin, position=position) for row, position in pairs for origin in row]


class RowCounter(Tracer):
    """Builder of plans whose datapoints are row numbers, counted over all sources."""

    def source(self, node: Node) -> Node:
        first = sum(size for _, size in self.sources)
        self.name(node)
        return _RowNumbers(node, first)

    def mapped(self, inner: Node, name: str, key: int | None) -> Node:
        return inner

    def gathered(self, inner: Node, size: int | None, members: Members) -> Node:
        return _GatheredNumbers(inner, size, members)


class _RowNumbers(InnerNode):
    def __init__(self, inner: Node, first: int) -> None:
        super().__init__(inner)
        self._first = first

    def read(self, epoch: int, positions: Positions) -> Block:
        return Columns([as_array(positions) + self._first], len(positions))

    def positions_of(self, epoch: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        indices = np.sort(rows - self._first)
        return indices[(indices >= 0) & (indices < (self.size or 0))]


class _GatheredNumbers(_GatheredRows):
    get = Node.get

    def read(self, epoch: int, positions: Positions) -> Block:
        members = [as_array(self._members(epoch, p)) for p in as_ints(positions)]
        block = self.inner.read(epoch, np.concatenate(members))
        ends = np.cumsum([len(each) for each in members])[:-1]
        columns = values_of(block.data) if isinstance(block, Columns) else [flat(block)]
        return [list(parts) for parts in zip(*(np.split(c, ends) for c in columns), strict=True)]


def flat(block: Any) -> NDArray[np.int64]:
    """Return all row numbers in a block or in nested lists."""
    parts = values_of(block.data) if isinstance(block, Columns) else block
    arrays = [flat(p) if isinstance(p, list) else np.ravel(p) for p in parts]
    return np.concatenate(arrays) if arrays else np.zeros(0, np.int64)


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

    def state(self, position: int, *, epoch: int = 0) -> dict[str, Any]:
        """Return the state of an iterator before a position, for `flow.iterate(state=...)`.

        Args:
            position: Position in the pass, from 0.
            epoch: Number of the pass.
        """
        return state_of(self.signature, self.seed, epoch, position)

    def get(self, position: int, *, epoch: int = 0) -> Datapoint:
        """Return the datapoint at one position of a pass.

        Args:
            position: Position in the pass, from 0.
            epoch: Number of the pass.
        """
        return self.read(range(position, position + 1), epoch=epoch)[0]

    def origin(self, position: int, *, epoch: int = 0) -> list[Origin]:
        """Return the source rows from which a datapoint is made, without reading them.

        Args:
            position: Position in the pass, from 0.
            epoch: Number of the pass.

        Raises:
            ConfigError: The position is outside the pass.
        """
        traced = replace(self, root=self.root.traced(Tracer()))
        return traced.get(position, epoch=epoch)
