from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from towerpack._core.errors import ConfigError, DataFlowError
from towerpack.dataflow._compile import Wrapper
from towerpack.dataflow._flow import DataFlow
from towerpack.dataflow._iteration_state import (
    InnerStream,
    State,
    Stream,
    Tally,
    ended_early,
    with_skipped,
)
from towerpack.dataflow._plan import Traced, Tracer, gather, untraced
from towerpack.dataflow._stacking import stack_rows
from towerpack.dataflow.arguments import integer_of
from towerpack.dataflow.datapoints import Datapoint, describe_datapoint, to_rows
from towerpack.dataflow.pipeline_names import Length
from towerpack.dataflow.stage_context import StageContext


@dataclass(frozen=True)
class Grouping:
    name: str
    property_of: Callable[[Datapoint], Any]  # a length or a shape
    group_of: Callable[[Any], Hashable]  # maps the property to a group
    full_size: Callable[[Any], int]  # batch size of a group
    collate: Callable[[Any, list[Datapoint]], Datapoint]  # stacks the datapoints of a group
    remainder: bool  # yield incomplete groups at the end, the oldest first
    max_waiting: int | None = None  # yield the oldest group if more datapoints wait

    def property(self, datapoint: Datapoint, number: int) -> Any:
        try:
            return self.property_of(datapoint)
        except Exception as error:
            raise DataFlowError(
                f"{self.name} failed to group datapoint {number}: {type(error).__name__}: {error}",
                got=describe_datapoint(datapoint),
            ) from error


class Waiting(NamedTuple):
    number: int
    before: State
    skipped: int
    datapoint: Datapoint


class GroupStream(InnerStream):
    """Stream of batches of similar datapoints. Its state has the positions of waiting ones."""

    def __init__(
        self, ds: DataFlow, context: StageContext, epoch: int, state: State, grouping: Grouping
    ) -> None:
        self._grouping = grouping
        self._groups: dict[Hashable, list[Waiting]] = {}  # in the order of their first members
        self._waiting = 0
        self._due: list[Hashable] = []
        self._pending: list[Waiting] = []  # read but not sorted in yet; retained for a retry
        self._read = 0
        self._tally = context.tally or Tally()
        self._skipped = 0
        if state is not None:
            self._tally.uncount(state)
        context = context.retained_in_order()
        node = ds.compile_in(replace(context, serial=True))
        if state is None:
            self._inner = ds.open_in(context, epoch, None)
        elif node is not None:
            self._inner = ds.open_in(context, epoch, state["read"])
            self._read = state["read"]
            if numbers := state["waiting"]:
                rows = to_rows(node.read(epoch, np.array(numbers, np.int64)))
                if context.traced:
                    tracer = Tracer(node)
                    rows = [
                        Traced(r, tracer.origins(epoch, n))
                        for r, n in zip(rows, numbers, strict=True)
                    ]
                for number, row in zip(numbers, rows, strict=True):
                    self._sort_in(Waiting(number, number, 0, row))
        else:
            self._inner = ds.open_in(context, epoch, state["inner"])
            self._read_again(state["read"], state["waiting"])

    def __next__(self) -> Datapoint:
        while not self._due:
            try:
                self._pending = self._pending or [self._next(self._read)]
            except StopIteration:
                if not self._groups or not self._grouping.remainder:
                    raise
                self._due = [next(iter(self._groups))]
            else:
                self._sort_in(self._pending[0])
                self._pending = []
                self._read += 1
        group = self._due[0]
        members = self._groups[group]
        collate = partial(self._grouping.collate, group)
        batch = gather(collate, [m.datapoint for m in members], [m.number for m in members])
        self._due = []
        del self._groups[group]
        self._waiting -= len(members)
        return batch

    def state(self) -> State:
        members = (member for group in self._groups.values() for member in group)
        waiting = sorted(members, key=lambda member: member.number)
        state: dict[str, Any] = {"read": self._read, "waiting": [w.number for w in waiting]}
        again = [*waiting, *self._pending]
        if not again:
            return {**state, "inner": self._inner.state()}
        state["inner"] = again[0].before
        return with_skipped(state, self._skipped - again[0].skipped)

    def _next(self, number: int) -> Waiting:
        state, before, skipped = self._inner.state(), self._tally.skipped, self._skipped
        try:
            return Waiting(number, state, skipped, next(self._inner))
        finally:
            self._skipped += self._tally.skipped - before

    def _sort_in(self, member: Waiting) -> None:
        grouping = self._grouping
        group = grouping.group_of(grouping.property(untraced(member.datapoint), member.number))
        members = self._groups.setdefault(group, [])
        members.append(member)
        self._waiting += 1
        if len(members) >= grouping.full_size(group):
            self._due = [group]
        elif grouping.max_waiting is not None and self._waiting > grouping.max_waiting:
            self._due = [next(iter(self._groups))]

    def _read_again(self, read: int, numbers: list[int]) -> None:
        waiting = set(numbers)
        for number in range(numbers[0] if numbers else read, read):
            try:
                member = self._next(number)
            except StopIteration:
                raise ended_early(self._grouping.name, number, read) from None
            if number in waiting:
                self._sort_in(member)
        self._read = read


class BatchDataByShape(Wrapper):
    """Group datapoints into batches in which one component has the same shape.

    A batch is yielded when `batch_size` datapoints of its shape have been read. Incomplete batches
    follow at the end of a pass. The length is unknown. A resume reads waiting datapoints again, or
    without an indexable source all datapoints since the oldest waiting one.

    Args:
        ds: Flow of tuples, lists or dicts.
        batch_size: Number of datapoints in a batch.
        idx: Component whose shape is compared: an index, or the key of a dict.
        remainder: Whether to yield incomplete batches at the end.
        max_waiting: Limit of waiting datapoints. Above it, the shape that has waited longest is
            yielded as a smaller batch. Limits memory, and the work of a resume.

    Raises:
        ConfigError: An argument is invalid, or `max_waiting` is combined with `remainder=False`.
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
        self.batch_size = integer_of(batch_size, "batch_size", 1)
        self.idx = idx
        self.remainder = remainder
        limit = max_waiting
        self.max_waiting = None if limit is None else integer_of(limit, "max_waiting", 0)
        if limit is not None and not remainder:
            raise ConfigError(
                "max_waiting= requires remainder=True, because it yields smaller batches."
            )

    def length(self) -> Length:
        return None

    def arguments(self) -> str:
        return f"{self.batch_size}, {self.idx!r}"

    def identity(self) -> str:
        limit = "" if self.max_waiting is None else f", {self.max_waiting}"
        return self.arguments() + limit + ("" if self.remainder else ", whole")

    def open(self, context: StageContext, epoch: int, state: State) -> Stream:
        idx: Any = self.idx
        grouping = Grouping(
            f"BatchDataByShape({self.arguments()})",
            property_of=lambda datapoint: np.shape(datapoint[idx]),
            group_of=lambda shape: shape,
            full_size=lambda shape: self.batch_size,
            collate=lambda shape, datapoints: stack_rows(datapoints),
            remainder=self.remainder,
            max_waiting=self.max_waiting,
        )
        return GroupStream(self.ds, context, epoch, state, grouping)
