from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, cast

from towerpack._core.errors import ConfigError, MapError
from towerpack.dataflow._batch_rows import RowMaker, without_rows
from towerpack.dataflow._flow import DataFlow
from towerpack.dataflow._item_rng import ItemRNGs
from towerpack.dataflow._iteration_state import State, Stream, inner_state
from towerpack.dataflow._plan import InnerNode, Node, untraced
from towerpack.dataflow._stacking import stack_rows
from towerpack.dataflow.datapoints import (
    Block,
    Columns,
    Datapoint,
    Positions,
    array_of,
    as_ints,
    copied,
    describe_datapoint,
    is_datapoint,
    rebuild,
    to_rows,
    values_of,
)
from towerpack.dataflow.stage_context import StageContext
from towerpack.dataflow.stages._base import WindowStream
from towerpack.dataflow.stages._batch import is_batched
from towerpack.dataflow.stages._on_error import FunctionStage, Limit, Mapper, MapStream, OnError

_STREAM_BLOCK = 32


class MapData(FunctionStage):
    """Apply a function to every datapoint.

    The length is unknown with `on_error="skip"`. Thread- and fork-safety depend on `f` too.

    Args:
        ds: Flow whose datapoints are mapped.
        f: Function that returns a new datapoint. It may change the list or dict that it receives,
            but not the components.
        rng: Whether to call `f(datapoint, rng)` with a `numpy.random.Generator` for each datapoint,
            or, with `batched`, an `ItemRNG`. The numbers are a function of (seed, position in the
            pipeline, epoch, position).
        batched: Whether `f` is *vectorized*: it receives and returns many datapoints as one, with
            components stacked along a first axis. Rows must be independent.
        on_error: What to do if `f` raises or returns `None`: "raise" a `MapError`, or "skip" the
            datapoint, log it and count it in `iterator.skipped`, up to 10,000 in a row.
        max_errors: Limit of skipped datapoints in a pass: a number, or a share such as 0.01, which
            is checked from the 1,000th datapoint on and at the end.

    Raises:
        ConfigError: An argument is invalid, or arguments contradict each other.
        MapError: `f` failed, or failed too often; raised while iterating.
    """

    def __init__(
        self,
        ds: DataFlow,
        f: Callable[..., Any],
        *,
        rng: bool = False,
        batched: bool = False,
        on_error: OnError = "raise",
        max_errors: Limit = None,
    ) -> None:
        super().__init__(ds, f, rng, on_error, max_errors)
        self.batched = batched
        if batched:
            self.skipping = None
        self._check()

    def identity(self) -> str:
        return "skip" if self.on_error == "skip" else ""

    def compile(self, context: StageContext) -> Node | None:
        inner = self.ds.compile_in(context) if self.on_error == "raise" else None
        return None if inner is None else self.node(inner, self.mapper(context))

    def node(self, inner: Node, mapper: Mapper) -> Node:
        return BatchedMapNode(inner, mapper) if self.batched else MapNode(inner, mapper)

    def open(self, context: StageContext, epoch: int, state: State) -> Stream:
        below = context.retained_in_order() if self.batched else context
        inner = self.ds.open_in(below, epoch, inner_state(state))
        mapper = self.mapper(context)
        if not self.batched:
            return MapStream(inner, mapper, epoch, state, self.policy, context.tally)
        map_block = BlockMapper(mapper)

        def mapped(window: int, datapoints: list[Datapoint]) -> list[Datapoint]:
            positions = range(window * _STREAM_BLOCK, window * _STREAM_BLOCK + len(datapoints))
            if not context.traced:
                return to_rows(map_block(datapoints, epoch, positions))
            rows = to_rows(map_block([*map(untraced, datapoints)], epoch, positions))
            triples = zip(datapoints, rows, positions, strict=True)
            return [dp.mapped(row, mapper, epoch, position) for dp, row, position in triples]

        return WindowStream(inner, _STREAM_BLOCK, mapped, state, context.tally)

    def _check(self) -> None:
        if self.batched and self.on_error == "skip":
            raise ConfigError(
                "on_error='skip' needs batched=False, because a batch does not show the bad row.",
                fix="leave out one of the two arguments",
            )
        if self.batched and is_batched(self.ds):
            raise ConfigError(
                "MapData over batches must not have batched=True: a batch is one datapoint.",
                fix="leave out batched=True",
            )


class MapDataComponent(MapData):
    """Apply a function to one component of every datapoint.

    Args:
        ds: Flow whose datapoints are mapped.
        f: Function that returns the new component. With `batched`, it maps a stack of components.
        index: Index or key of the component.
        rng, batched, on_error, max_errors: As for `MapData`.
    """

    def __init__(
        self,
        ds: DataFlow,
        f: Callable[..., Any],
        index: Hashable = 0,
        *,
        rng: bool = False,
        batched: bool = False,
        on_error: OnError = "raise",
        max_errors: Limit = None,
    ) -> None:
        super().__init__(ds, f, rng=rng, batched=batched, on_error=on_error, max_errors=max_errors)
        self.index = index

    def arguments(self) -> str:
        return f"{super().arguments()}, {self.index!r}"

    def function(self) -> Callable[..., Any]:
        return OnComponent(self.f, self.index)


class OnComponent:
    def __init__(self, f: Callable[..., Any], index: Any) -> None:
        self._f = getattr(f, "make_in_row", f)  # writes to a row of the batch, see `empty_row`
        self._index = index

    def __call__(self, datapoint: Datapoint, *rng: object) -> Datapoint | None:
        result = self._f(datapoint[self._index], *rng)
        if result is None:
            return None
        # `replaced` would take a third longer.
        if isinstance(datapoint, tuple):
            components = list(cast("tuple[Any, ...]", datapoint))
            components[self._index] = result
            return rebuild(cast("Datapoint", datapoint), components)
        datapoint[self._index] = result
        return datapoint


class SelectComponent(MapData):
    """Select components of every datapoint. Tuples stay tuples, and dicts stay dicts.

    Args:
        ds: Flow of tuples, lists or dicts.
        idxs: Index or key, or several of them in the new order. An index may occur twice.

    Raises:
        ConfigError: `idxs` is empty.
    """

    def __init__(self, ds: DataFlow, idxs: Hashable | Sequence[Hashable]) -> None:
        several = isinstance(idxs, (list, tuple))
        self.idxs: list[Any] = list(cast("Sequence[Hashable]", idxs)) if several else [idxs]
        if not self.idxs:
            raise ConfigError("idxs of SelectComponent must not be empty.")
        super().__init__(ds, partial(_selected, self.idxs))

    def arguments(self) -> str:
        return ", ".join(map(repr, self.idxs))

    def identity(self) -> str:
        return self.arguments()

    def node(self, inner: Node, mapper: Mapper) -> Node:
        return SelectNode(inner, mapper)


def _selected(idxs: list[Any], datapoint: Datapoint) -> Datapoint:
    if isinstance(datapoint, dict):
        return {index: cast("Any", datapoint)[index] for index in idxs}
    values = [datapoint[index] for index in idxs]
    # A named tuple becomes a tuple.
    return tuple(values) if isinstance(datapoint, tuple) else rebuild(datapoint, values)


class MapNode(RowMaker, InnerNode):
    def __init__(self, inner: Node, mapper: Mapper) -> None:
        super().__init__(inner)
        self.chunk = 1
        self.mapper = mapper

    def get(self, epoch: int, position: int) -> Datapoint:
        return without_rows(self.mapper, self.inner.get(epoch, position), epoch, position)

    def read(self, epoch: int, positions: Positions) -> Block:
        rows = to_rows(self.inner.read(epoch, positions))
        epochs = [epoch] * len(rows)
        # At the end of a flow that is read in order, there are fewer rows than positions.
        return self.make(self.mapper, zip(rows, epochs, as_ints(positions), strict=False))


class BatchedMapNode(InnerNode):
    def __init__(self, inner: Node, mapper: Mapper) -> None:
        super().__init__(inner)
        self.mapper = mapper
        self._map = BlockMapper(mapper, inner.size)

    def read(self, epoch: int, positions: Positions) -> Block:
        return self._map(self.inner.read(epoch, positions), epoch, positions)


class SelectNode(InnerNode):
    def __init__(self, inner: Node, mapper: Mapper) -> None:
        super().__init__(inner)
        self.mapper = mapper

    def read(self, epoch: int, positions: Positions) -> Block:
        block = self.inner.read(epoch, positions)
        if isinstance(block, Columns):
            return Columns(self.mapper(block.data, epoch, positions[0]), block.size)
        return [self.mapper(row, epoch, positions[i]) for i, row in enumerate(block)]

    def get(self, epoch: int, position: int) -> Datapoint:
        return self.mapper(self.inner.get(epoch, position), epoch, position)


class BlockMapper:
    """Applies a vectorized function to blocks. `size` is the length of a pass, if known."""

    def __init__(self, mapper: Mapper, size: int | None = None) -> None:
        self._mapper = mapper
        self._rngs = None if mapper.key is None else ItemRNGs(mapper.key, size)

    def __call__(self, block: Block, epoch: int, positions: Positions) -> Columns:
        data = block.data if isinstance(block, Columns) else stack_rows(block)
        arguments = () if self._rngs is None else (self._rngs(epoch, positions),)
        try:
            result = self._mapper.f(copied(data), *arguments)
        except Exception as error:
            raise self._mapper.failure(error, _where(epoch, positions), data) from error
        size = block.size if isinstance(block, Columns) else len(block)
        name = self._mapper.name
        if not is_datapoint(result):
            raise MapError(
                f"{name} returned a {type(result).__name__} for {_where(epoch, positions)}.",
                expected="a tuple, list or dict of stacked components",
            )
        columns = [array_of(column, f"A component from {name}") for column in values_of(result)]
        for column in columns:  # `any` takes twice as long
            if column.ndim == 0 or len(column) != size:
                raise MapError(
                    f"{name} changed the number of rows of {_where(epoch, positions)}.",
                    got=describe_datapoint(rebuild(result, columns)),
                    expected=f"components with {size} rows, one for each input row",
                )
        plain = type(result) is tuple  # the most frequent case, which `rebuild` checks last
        return Columns(tuple(columns) if plain else rebuild(result, columns), size)


def _where(epoch: int, positions: Positions) -> str:
    return f"datapoints {positions[0]}..{positions[-1]} of epoch {epoch}"
