from __future__ import annotations

import sys
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from towerpack.dataflow._flow import DataFlow
from towerpack.dataflow._iteration_state import InnerStream, State, Stream
from towerpack.dataflow._plan import InnerNode, Node, untraced
from towerpack.dataflow.arguments import integer_of
from towerpack.dataflow.datapoints import (
    Block,
    Datapoint,
    Positions,
    as_ints,
    describe,
    is_datapoint,
    keys_of,
    to_rows,
    values_of,
)
from towerpack.dataflow.pipeline_names import pipeline_of
from towerpack.dataflow.stage_context import StageContext
from towerpack.dataflow.stages._base import PlannedStage


class PrintData(PlannedStage):
    """Print the structure of the first datapoints to standard output, once for each iterator.

    Args:
        ds: Flow whose datapoints are passed on.
        num: Number of datapoints to print. A resumed iterator prints none.
        name: Title of the output; by default there is none.
        max_depth: Depth to which nested lists and dicts are printed.
        max_list: Number of elements to print of each list.
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

    def node(self, inner: Node, context: StageContext) -> Node:
        return PrintNode(inner, self)

    def open(self, context: StageContext, epoch: int, state: State) -> Stream:
        inner = self.ds.open_in(context, epoch, state)
        printed = set[int]() if context.tally is None else context.tally.printed
        # The state is that of `ds` and has no position to print.
        if state is not None or id(self) in printed:
            return inner
        printed.add(id(self))
        return PrintStream(inner, self)

    def show(self, position: int, datapoint: Datapoint) -> None:
        title = f"{self.name}: " if self.name else ""
        lines = [f"{title}datapoint {position} of {pipeline_of(self.ds)}"]
        lines += describe_tree(datapoint, self.max_depth, self.max_list)
        sys.stdout.write("\n".join(lines) + "\n")


class PrintNode(InnerNode):
    def __init__(self, inner: Node, flow: PrintData) -> None:
        super().__init__(inner)
        self._flow = flow
        self._left = set(range(flow.num))

    def read(self, epoch: int, positions: Positions) -> Block:
        block = self.inner.read(epoch, positions)
        if self._left:
            for position, row in zip(as_ints(positions), to_rows(block), strict=True):
                if position in self._left:
                    self._left.discard(position)
                    self._flow.show(position, row)
        return block

    def get(self, epoch: int, position: int) -> Datapoint:
        return super().get(epoch, position) if self._left else self.inner.get(epoch, position)


class PrintStream(InnerStream):
    def __init__(self, inner: Stream, flow: PrintData) -> None:
        self._inner = inner
        self._flow = flow
        self._position = 0

    def __next__(self) -> Datapoint:
        datapoint = next(self._inner)
        if self._position < self._flow.num:
            self._flow.show(self._position, untraced(datapoint))
            self._position += 1
        return datapoint

    def state(self) -> State:
        return self._inner.state()


def describe_tree(value: Any, max_depth: int, max_list: int, indent: int = 1) -> list[str]:
    pad = "  " * indent
    if not is_datapoint(value):
        return [f"{pad}{_leaf(value)}"]
    items = list(zip(keys_of(value), values_of(value), strict=True))
    lines = [f"{pad}{type(value).__name__} of {len(items)}"]
    if indent > max_depth:
        return lines
    shown = len(items) if isinstance(value, dict) or indent == 1 else max_list
    for key, inner in items[:shown]:
        first, *rest = describe_tree(inner, max_depth, max_list, indent + 1)
        lines += [f"{pad}  {key}: {first.strip()}", *rest]
    if shown < len(items):
        lines.append(f"{pad}  ... and {len(items) - shown} more")
    return lines


def _leaf(value: Any) -> str:
    text = describe(value)
    if isinstance(value, np.ndarray):
        array = cast("NDArray[Any]", value)
        if array.size and array.dtype.kind in "biuf":
            text += f" in [{float(array.min()):.5g}, {float(array.max()):.5g}]"
        return f"array {text}"
    if isinstance(value, (str, bytes)):
        return f"{text}: {value[:40]!r}"
    number = isinstance(value, (bool, int, float, np.generic))
    return f"{type(cast('object', value)).__name__} {value}" if number else text
