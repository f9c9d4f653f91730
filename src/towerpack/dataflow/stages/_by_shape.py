"""Batches of datapoints of one shape."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack.dataflow._arguments import integer_of
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._flow import DataFlow, Length, Place, Wrapper
from towerpack.dataflow._stacking import stack_rows
from towerpack.dataflow._stream import State, Stream
from towerpack.dataflow.stages._grouping import Grouping, GroupStream


class BatchDataByShape(Wrapper):
    """Stacks datapoints into batches in which one component has the same shape throughout.

    A batch is handed on as soon as `batch_size` datapoints of its shape have come by. Those that
    still wait at the end of a pass follow in smaller batches: left out, as `BatchData` does with
    its one remainder, rare shapes would never be seen. Nothing is kept for the next pass.

    Contract: batches in the order in which they fill up, within each the order of `ds`; length
    unknown; not random; thread- and fork-safe as `ds` is; resumable as `ds` is, reading again
    what waits (over an indexable source) or all since the oldest datapoint that waits.

    Args:
        ds: Its datapoints are tuples, lists or dicts.
        batch_size: Datapoints in a batch.
        idx: The component whose shape decides: an index, or the key of a dict.
        remainder: Yield smaller batches at the end.
        max_waiting: Yield a smaller batch of the shape that has waited longest whenever more
            datapoints wait: a limit for memory, and for what a resume reads again.

    Raises:
        BatchError: Datapoints do not stack; raised while iterating.
    """

    makes_batches = True

    def __init__(
        self,
        ds: DataFlow,
        batch_size: int,
        idx: Hashable,
        *,
        remainder: bool = True,
        max_waiting: int | None = None,
    ) -> None:
        super().__init__(ds)
        batch_size = integer_of(batch_size, "batch_size")
        max_waiting = None if max_waiting is None else integer_of(max_waiting, "max_waiting")
        if batch_size < 1:
            raise ConfigError(f"A batch of {batch_size} holds nothing.", expected="1 or more")
        if max_waiting is not None and (max_waiting < 0 or not remainder):
            raise ConfigError(
                f"max_waiting={max_waiting} makes smaller batches when more datapoints wait.",
                expected="0 or more, and remainder=True",
            )
        self.batch_size = batch_size
        self.idx = idx
        self.remainder = remainder
        self.max_waiting = max_waiting

    def length(self) -> Length:
        return None

    def arguments(self) -> str:
        return f"{self.batch_size}, {self.idx!r}"

    def identity(self) -> str:
        limit = "" if self.max_waiting is None else f", {self.max_waiting}"
        return self.arguments() + limit + ("" if self.remainder else ", whole")

    def open(self, place: Place, epoch: int, state: State) -> Stream:
        return GroupStream(self.ds, place, epoch, state, ByShape(self))


class ByShape(Grouping):
    """Groups by the shape of a component."""

    def __init__(self, flow: BatchDataByShape) -> None:
        name = f"BatchDataByShape({flow.arguments()})"
        super().__init__(name, remainder=flow.remainder, max_waiting=flow.max_waiting)
        self._idx: Any = flow.idx
        self._batch_size = flow.batch_size

    def group_of(self, datapoint: Datapoint) -> Hashable:
        return np.shape(datapoint[self._idx])

    def full_size(self, group: Hashable) -> int:
        return self._batch_size

    def collate(self, group: Hashable, datapoints: list[Datapoint]) -> Datapoint:
        return stack_rows(datapoints)
