from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

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
    take,
    to_rows,
    values_of,
)

Members = Callable[[int, int], Positions]  # of an epoch and a position
_BITS = 48  # of the index in the number of a row; the bits above are the number of the source
_INDEX = (1 << _BITS) - 1


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


class Traced(NamedTuple):
    """Datapoint of a traced stream, with the source rows from which it was made."""

    datapoint: Datapoint
    origins: list[Origin]

    def mapped(self, result: Datapoint, mapper: Any, epoch: int, position: int) -> Traced:
        """Return the result of a map, with the random numbers that the map has drawn."""
        if mapper.key is None:
            return Traced(result, self.origins)
        draw = {mapper.name: (mapper.key, epoch, position)}
        return Traced(result, [replace(o, draws={**o.draws, **draw}) for o in self.origins])


def untraced(datapoint: Datapoint) -> Datapoint:
    return datapoint.datapoint if isinstance(datapoint, Traced) else datapoint


def gather(
    collate: Callable[[list[Datapoint]], Datapoint],
    rows: Sequence[Any],
    positions: Sequence[int] | None = None,
) -> Datapoint:
    """Collate datapoints, which a batch has read at `positions`, and their origins."""
    if not rows or not isinstance(rows[0], Traced):
        return collate([*rows])
    origins = [(origin, i) for i, row in enumerate(rows) for origin in row.origins]
    if positions is not None:
        origins = [(replace(origin, position=positions[i]), i) for origin, i in origins]
    return Traced(collate([row.datapoint for row in rows]), [origin for origin, _ in origins])


class Node:
    """Compiled stage that reads datapoints by position, thread-safe.

    A subclass defines `get`, `read` or both.
    """

    size: int | None  # number of datapoints in a pass; None if infinite
    # Number of datapoints to read at a time. 1 if that is slow or runs user code for each of them.
    chunk: int = 1
    forwarded: Sequence[Node] = ()  # plans whose datapoints are passed on and not retained
    source: str = ""  # name of the source whose rows this plan reads
    first_pass: bool = False  # each pass has the datapoints of the first pass over `inner`
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

    def lay_into(self, allocate: Allocate) -> None:
        """Allocate result arrays with `allocate`, except arrays that user code may retain."""
        for inner in self.forwarded:
            inner.lay_into(allocate)


class InnerNode(Node):
    def __init__(self, inner: Node) -> None:
        self.inner = inner
        self.size = inner.size
        self.chunk = inner.chunk


class Tracer:
    """Plan of the rows of sources that each datapoint of another plan is made from.

    A plan that reads other plans has them in the attribute `inner` or `inputs`. A `mapper` may draw
    random numbers, and `members` returns the positions that a datapoint is made from.

    Attributes:
        sources: Name and plan of each source. Sources of the same name get numbers.
        root: Plan of vectors of integers, one for each row: its number, epoch and position, then
            epoch and position of each of the `draws`.
        draws: Name and random key of each random stage.
    """

    def __init__(self, node: Node) -> None:
        self.sources: dict[str, Node] = {}
        self.draws: list[tuple[str, int]] = []
        self.root = self._traced(node)

    def origins(self, epoch: int, position: int) -> list[Origin]:
        """Return the origins of a datapoint."""
        rows = rows_in(self.root.read(epoch, range(position, position + 1)))
        return [self._origin(*row) for row in rows.tolist()]

    def numbers(self, epoch: int, positions: Positions) -> list[NDArray[np.int64]]:
        """Return the indices of all rows at `positions`, for each source."""
        number = rows_in(self.root.read(epoch, positions))[:, 0]
        return [number[number >> _BITS == i] & _INDEX for i in range(len(self.sources))]

    def number_of(self, name: str, index: int) -> int:
        """Return the number of a row of a source. The only source needs no name."""
        numbers = [i for i, source in enumerate(self.sources) if name in ("", source)]
        sizes = [node.size or 0 for node in self.sources.values()]
        if len(numbers) != 1 or index >= sizes[numbers[0]]:
            raise ConfigError(
                f"There must be exactly one row {index} of {name or 'the source'}.",
                expected=", ".join(
                    f"{size} rows of {source}"
                    for source, size in zip(self.sources, sizes, strict=True)
                ),
                fix="pass pairs (name of the source, index)",
            )
        return (numbers[0] << _BITS) + index

    def _origin(self, number: int, epoch: int, position: int, *drawn_at: int) -> Origin:
        name, node = list(self.sources.items())[number >> _BITS]
        index = number & _INDEX
        places = zip(self.draws, drawn_at[::2], drawn_at[1::2], strict=True)
        draws = {stage: (key, e, p) for (stage, key), e, p in places if e >= 0}
        return Origin(name, index, node.name_of(index), epoch, position, draws)

    def _traced(self, node: Node) -> Node:
        fields = vars(node)
        if "inputs" in fields:
            return _reading(node, inputs=[self._traced(inner) for inner in fields["inputs"]])
        if "inner" not in fields:
            name = node.source or type(node).__name__
            alike = sum(each.partition(" #")[0] == name for each in self.sources)
            self.sources[f"{name} #{alike + 1}" if alike else name] = node
            first = (len(self.sources) - 1) << _BITS
            return _Reader(node, partial(_source_rows, first, self.draws))
        inner = self._traced(fields["inner"])
        if "mapper" in fields:
            mapper = fields["mapper"]
            if mapper.key is None:
                return inner
            self.draws.append((mapper.name, mapper.key))
            return _Reader(node, partial(_drawn_rows, inner, 1 + 2 * len(self.draws)))
        if members := getattr(node, "members", None):
            return _Reader(node, partial(_gathered_rows, inner, members))
        if node.first_pass:
            return _Reader(node, partial(_first_pass, inner))
        return _reading(node, inner=inner)


def _reading(node: Node, **inputs: Any) -> Node:
    node = copy.copy(node)  # without the cached result
    vars(node).update(inputs, forwarded=(), _last=None)
    return node


class _Reader(InnerNode):
    """Node whose `read` is a function."""

    def __init__(self, inner: Node, read: Callable[[int, Positions], Block]) -> None:
        super().__init__(inner)
        self._read = read

    def read(self, epoch: int, positions: Positions) -> Block:
        return self._read(epoch, positions)


def _first_pass(inner: Node, epoch: int, positions: Positions) -> Block:
    return inner.read(0, positions)


def _source_rows(first: int, draws: Sequence[Any], epoch: int, positions: Positions) -> Block:
    rows = np.full([len(positions), 3 + 2 * len(draws)], -1, np.int64)
    rows[:, 1], rows[:, 2] = epoch, as_array(positions)
    rows[:, 0] = rows[:, 2] + first
    return Columns((rows,), len(positions))


def _drawn_rows(inner: Node, column: int, epoch: int, positions: Positions) -> Block:
    block = inner.read(epoch, positions)
    _write(block, column, np.full(len(positions), epoch))
    _write(block, column + 1, as_array(positions))
    return block


def _gathered_rows(inner: Node, members: Members, epoch: int, positions: Positions) -> Block:
    parts = [as_array(members(epoch, position)) for position in as_ints(positions)]
    numbers = np.concatenate(parts)
    block = inner.read(epoch, numbers)
    _write(block, 2, numbers)
    places = np.split(np.arange(len(numbers)), np.cumsum([*map(len, parts)])[:-1])
    return [(rows_in(take(block, place)),) for place in places]


def _write(block: Block, column: int, values: NDArray[np.int64]) -> None:
    if isinstance(block, Columns):
        for rows in values_of(block.data):
            rows[:, column] = values
    else:
        for datapoint, value in zip(block, values.tolist(), strict=True):
            for rows in values_of(datapoint):
                rows[..., column] = value


def rows_in(block: Block) -> NDArray[np.int64]:
    """Return the vectors [n, width] of all source rows in a block of `Tracer.root`, in order."""
    if isinstance(block, Columns):
        columns = values_of(block.data)
        return np.stack(columns, axis=1).reshape(-1, columns[0].shape[1])
    return np.concatenate([np.atleast_2d(rows) for dp in block for rows in values_of(dp)])


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
        self._check(*ends)
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

    def origin(self, position: int, *, epoch: int = 0) -> list[Origin]:
        """Return the source rows from which a datapoint is made, without reading them.

        Args:
            position: Position in the pass, from 0.
            epoch: Number of the pass.

        Raises:
            ConfigError: The position is outside the pass.
        """
        self._check(position)
        return Tracer(self.root).origins(epoch, position)

    def _check(self, *positions: int) -> None:
        for position in positions:
            if position < 0 or (self.size is not None and position >= self.size):
                limit = "at least 0" if self.size is None else f"in 0..{self.size - 1}"
                what = f"A position must be {limit}, got {position}."
                raise ConfigError(what, pipeline=self.pipeline)
