"""A look at what flows by."""

from __future__ import annotations

import sys
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from towerpack.dataflow._arguments import integer_of
from towerpack.dataflow._blocks import Block, Positions, as_ints, to_rows
from towerpack.dataflow._datapoints import Datapoint, keys_of, values_of
from towerpack.dataflow._flow import DataFlow, Place, Wrapper, compile_flow, open_flow, pipeline_of
from towerpack.dataflow._plan import Node
from towerpack.dataflow._stream import State, Stream

_TEXT = 40


class PrintData(Wrapper):
    """Writes the structure of the first datapoints to standard output, and passes everything on.

    An iterator writes about the datapoints at positions 0 to num - 1 of the first pass that it
    reads; a resumed one does not write about them again.

    Contract: order, length, randomness, safety and resuming of `ds`.

    Args:
        ds: What to look at.
        num: How many datapoints to write about.
        name: Stands in the heading.
        max_depth: How deep to go into nested lists and dicts.
        max_list: How many elements of a list to show.
    """

    transparent = True

    def __init__(
        self,
        ds: DataFlow,
        num: int = 1,
        name: str | None = None,
        max_depth: int = 3,
        max_list: int = 3,
    ) -> None:
        super().__init__(ds)
        self.num = integer_of(num, "num")
        self.name = name
        self.max_depth = integer_of(max_depth, "max_depth")
        self.max_list = integer_of(max_list, "max_list")

    def compile(self, place: Place) -> Node | None:
        inner = compile_flow(self.ds, place)
        return None if inner is None else PrintNode(inner, self)

    def open(self, place: Place, epoch: int, state: State) -> Stream:
        inner = open_flow(self.ds, place, epoch, state)
        told = set[int]() if place.tally is None else place.tally.told
        # The state is that of `ds`, so it does not tell the position: a resumed pass is past it.
        silent = state is not None or id(self) in told
        told.add(id(self))
        return PrintStream(inner, self, self.num if silent else 0)

    def show(self, position: int, datapoint: Datapoint) -> None:
        """Write about one datapoint."""
        title = f"{self.name}: " if self.name else ""
        lines = [f"{title}datapoint {position} of {pipeline_of(self.ds)}"]
        lines += describe_tree(datapoint, max_depth=self.max_depth, max_list=self.max_list)
        sys.stdout.write("\n".join(lines) + "\n")


class PrintNode(Node):
    """Writes about datapoints that are read from another plan."""

    def __init__(self, inner: Node, flow: PrintData) -> None:
        self.inner = inner
        self.size = inner.size
        self.chunk = inner.chunk
        self._flow = flow
        self._epoch: int | None = None
        self._shown: set[int] = set()

    def read(self, epoch: int, positions: Positions) -> Block:
        block = self.inner.read(epoch, positions)
        if len(self._shown) < self._flow.num:
            self._show(epoch, positions, block)
        return block

    def get(self, epoch: int, position: int) -> Datapoint:
        datapoint = self.inner.get(epoch, position)
        if len(self._shown) < self._flow.num:
            self._show(epoch, range(position, position + 1), [datapoint])
        return datapoint

    def _show(self, epoch: int, positions: Positions, block: Block) -> None:
        if self._epoch is None:
            self._epoch = epoch
        if epoch != self._epoch:
            return
        new = [(i, p) for i, p in enumerate(as_ints(positions)) if p < self._flow.num]
        if not new:
            return
        rows = to_rows(block)
        for index, position in new:
            if position not in self._shown:
                self._shown.add(position)
                self._flow.show(position, rows[index])


class PrintStream(Stream):
    """Writes about datapoints that another stream gives."""

    def __init__(self, inner: Stream, flow: PrintData, position: int) -> None:
        self._inner = inner
        self._flow = flow
        self._position = position

    def __next__(self) -> Datapoint:
        datapoint = next(self._inner)
        if self._position < self._flow.num:
            self._flow.show(self._position, datapoint)
            self._position += 1
        return datapoint

    def state(self) -> State:
        return self._inner.state()

    def close(self) -> None:
        self._inner.close()


def describe_tree(value: Any, *, max_depth: int, max_list: int, indent: int = 1) -> list[str]:
    """Lines about a datapoint: types, shapes, dtypes, ranges."""
    pad = "  " * indent
    if not isinstance(value, (tuple, list, dict)):
        return [f"{pad}{_leaf(value)}"]
    keys, values = keys_of(value), values_of(value)
    lines = [f"{pad}{type(cast('object', value)).__name__} of {len(keys)}"]
    if indent > max_depth:
        return lines
    shown = len(keys) if isinstance(value, dict) else max_list if indent > 1 else len(keys)
    for key, inner in list(zip(keys, values, strict=True))[:shown]:
        first, *rest = describe_tree(
            inner, max_depth=max_depth, max_list=max_list, indent=indent + 1
        )
        lines += [f"{pad}  {key}: {first.strip()}", *rest]
    if shown < len(keys):
        lines.append(f"{pad}  ... and {len(keys) - shown} more")
    return lines


def _leaf(value: object) -> str:
    if isinstance(value, np.ndarray):
        array = cast("NDArray[Any]", value)
        text = f"array {array.dtype} {list(array.shape)}"
        if array.size and array.dtype.kind in "biuf":
            text += f" in [{float(array.min()):.5g}, {float(array.max()):.5g}]"
        return text
    if isinstance(value, np.generic):
        number = cast("NDArray[Any]", value)
        return f"{number.dtype} {number}"
    if isinstance(value, (str, bytes)):
        short = value if len(value) <= _TEXT else value[:_TEXT]
        return f"{type(value).__name__} of length {len(value)}: {short!r}"
    if isinstance(value, (bool, int, float)):
        return f"{type(value).__name__} {value}"
    return type(value).__name__
