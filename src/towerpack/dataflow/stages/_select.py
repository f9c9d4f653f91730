"""Some components of every datapoint."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, cast

from towerpack._core.errors import ConfigError
from towerpack.dataflow._blocks import Block, Columns, Positions
from towerpack.dataflow._datapoints import Datapoint, rebuild
from towerpack.dataflow._flow import DataFlow, Place, Wrapper, compile_flow, open_flow
from towerpack.dataflow._plan import Node
from towerpack.dataflow._stream import State, Stream, inner_state
from towerpack.dataflow.stages._mapping import Mapper, MapStream


class SelectComponent(Wrapper):
    """Keeps some components, in the order asked for. Tuples stay tuples, dicts stay dicts.

    Contract: in order; length of `ds`; not random; thread- and fork-safe as `ds` is; resumable as
    `ds` is.

    Args:
        ds: What to select from.
        idxs: Indices, or keys of dicts; one, or several of them. An index may occur twice.
    """

    def __init__(self, ds: DataFlow, idxs: Hashable | Sequence[Hashable]) -> None:
        super().__init__(ds)
        self.idxs: list[Any] = (
            list(cast("Sequence[Hashable]", idxs)) if isinstance(idxs, (list, tuple)) else [idxs]
        )
        if not self.idxs:
            raise ConfigError("SelectComponent was given nothing to select.")

    def identity(self) -> str:
        return ", ".join(map(repr, self.idxs))

    def compile(self, place: Place) -> Node | None:
        inner = compile_flow(self.ds, place)
        return None if inner is None else SelectNode(inner, self._mapper())

    def open(self, place: Place, epoch: int, state: State) -> Stream:
        inner = open_flow(self.ds, place, epoch, inner_state(state))
        return MapStream(inner, self._mapper(), epoch, state, None)

    def _mapper(self) -> Mapper:
        return Mapper(Selection(self.idxs), f"SelectComponent({self.identity()})", None)


class Selection:
    """From a datapoint, or columns of many, to some of its components."""

    def __init__(self, idxs: list[Any]) -> None:
        self._idxs = idxs

    def __call__(self, datapoint: Datapoint) -> Datapoint:
        if isinstance(datapoint, dict):
            components = cast("dict[Any, Any]", datapoint)
            return {index: components[index] for index in self._idxs}
        values = [datapoint[index] for index in self._idxs]
        # A named tuple loses its names with its components.
        return tuple(values) if isinstance(datapoint, tuple) else rebuild(datapoint, values)


class SelectNode(Node):
    """Selects from another plan."""

    def __init__(self, inner: Node, mapper: Mapper) -> None:
        self.inner = inner
        self.size = inner.size
        self.chunk = inner.chunk
        self._mapper = mapper

    def read(self, epoch: int, positions: Positions) -> Block:
        block = self.inner.read(epoch, positions)
        if isinstance(block, Columns):
            return Columns(self._mapper(block.data, epoch, positions[0]), block.size)
        return [self._mapper(row, epoch, positions[i]) for i, row in enumerate(block)]

    def get(self, epoch: int, position: int) -> Datapoint:
        return self._mapper(self.inner.get(epoch, position), epoch, position)
