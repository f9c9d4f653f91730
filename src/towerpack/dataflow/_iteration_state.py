"""Streams: what one iteration over a flow is made of; and the iterator that users hold.

A stream's state is made of integers, strings, lists and dicts. It describes the position *before*
the datapoint that `next` would give, also after `next` raised: a failed datapoint is tried again.
"""

from __future__ import annotations

import bisect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from towerpack._core.errors import DataFlowError, StateError, TowerpackError
from towerpack.dataflow._plan import Node
from towerpack.dataflow.datapoints import Datapoint, to_rows

_VERSION = 1  # of states
State = Any


class Tally:
    """Counts of one iteration: skipped datapoints, stages that have warned, and what to close."""

    def __init__(self, skipped: int = 0) -> None:
        self.skipped = skipped
        self.told: set[int] = set()
        self.closing: list[Callable[[], None]] = []

    def uncount(self, state: dict[str, Any]) -> None:
        """Subtract what a resume will read, leave out and count again."""
        self.skipped -= check_count(state.get("again"), sys.maxsize)

    def part(self) -> Tally:
        """One that counts by itself, for what may outlive this one; the rest is shared."""
        tally = Tally()
        tally.told, tally.closing = self.told, self.closing
        return tally


class Stream(ABC):
    """One running iteration of one stage."""

    @abstractmethod
    def __next__(self) -> Datapoint: ...

    def __iter__(self) -> Iterator[Datapoint]:
        return self

    @abstractmethod
    def state(self) -> State:
        """Where the stream is; `open` of an equal stage continues from it."""

    def close(self) -> None:
        """Give up what the stream holds. Wrapping streams pass it on."""
        return


class InnerStream(Stream):
    _inner: Stream

    def close(self) -> None:
        self._inner.close()


class PlanStream(Stream):
    """Read a plan from one position on, passing over what `ordered=False` has handed on before."""

    def __init__(self, node: Node, epoch: int, state: State) -> None:
        self._node = node
        self._get = node.get
        self._epoch = epoch
        self._chunk = node.chunk
        self._size = sys.maxsize if node.size is None else node.size
        (_, self._position), *self._ahead = ranges_done(state, self._size)
        self._stop = self._ahead[0][0] if self._ahead else self._size
        self._rows: list[Datapoint] = []
        self._first = self._position

    def __next__(self) -> Datapoint:
        position = self._position
        if position >= self._stop:
            position = self._pass_over()
        try:
            if self._chunk == 1:
                datapoint = self._get(self._epoch, position)
            else:
                datapoint = self._read_ahead(position)
        except StopIteration as error:  # it would seem to be the end
            raise DataFlowError(
                f"StopIteration was raised where datapoint {position} was to be read.",
                fix="next(iterator, default) does not raise it; see the cause above",
            ) from error
        self._position = position + 1
        return datapoint

    def state(self) -> State:
        ahead = [*self._ahead]
        return {"from": self._position, "ahead": ahead} if ahead else self._position

    def _pass_over(self) -> int:
        while self._position >= self._stop:
            if not self._ahead:
                raise StopIteration
            self._position = self._ahead.pop(0)[1]
            self._stop = self._ahead[0][0] if self._ahead else self._size
        return self._position

    def _read_ahead(self, position: int) -> Datapoint:
        index = position - self._first
        if index >= len(self._rows):
            stop = min(position + self._chunk, self._stop)
            self._rows = to_rows(self._node.read(self._epoch, range(position, stop)))
            self._first, index = position, 0
        return self._rows[index]


def with_skipped(state: dict[str, Any], again: int) -> dict[str, Any]:
    """A state, with how many bad datapoints a resume leaves out again. See `Tally.uncount`."""
    return {**state, "again": again} if again else state


def ended_early(
    name: object, found: int, wanted: int, origin: str = "the state was taken from"
) -> StateError:
    return StateError(
        f"{name} ended before the place where it is to continue.",
        got=f"{found} datapoints",
        expected=f"at least {wanted}",
        fix=f"the data differ from those that {origin}",
    )


def inner_state(state: State) -> State:
    return None if state is None else state["inner"]


def check_count(state: State, limit: int) -> int:
    if state is None:
        return 0
    if isinstance(state, bool) or not isinstance(state, int) or not 0 <= state <= limit:
        raise StateError(
            f"A position of {state!r:.200} is not within a pass.",
            expected=f"an integer in 0..{limit}",
            fix="the state is damaged, was taken from other data, or was taken with ordered=False, "
            "which it then needs again",
        )
    return state


def ranges_done(state: State, size: int) -> list[list[int]]:
    """Which positions a state says were handed on: all before one, and some ranges after it."""
    if not isinstance(state, dict):
        return [[0, check_count(state, size)]]
    fields = cast("dict[str, Any]", state)
    ranges = [[0, fields["from"]], *map(list, fields["ahead"])]
    edges = [edge for one in ranges for edge in one]
    if {*map(len, ranges)} != {2} or edges != sorted(edges) or edges[-1] > size:
        raise StateError(
            f"The ranges of a state are not within a pass of {size}: {ranges!r:.200}.",
            fix="the state is damaged, or was taken from other data",
        )
    return ranges


class Done:
    """Which positions of a pass were handed on, as `ranges_done` tells them of a state."""

    def __init__(self, state: State, size: int) -> None:
        self._ranges = ranges_done(state, size)

    def add(self, position: int) -> None:
        ranges = self._ranges
        index = bisect.bisect_right(ranges, [position, sys.maxsize])
        ranges.insert(index, [position, position + 1])
        for at in (index, index - 1):  # join it with its neighbours
            if at + 1 < len(ranges) and ranges[at][1] == ranges[at + 1][0]:
                ranges[at][1] = ranges.pop(at + 1)[1]

    def gaps(self, size: int) -> list[tuple[int, int]]:
        starts = [end for _, end in self._ranges]
        ends = [start for start, _ in self._ranges[1:]]
        return [gap for gap in zip(starts, [*ends, size], strict=True) if gap[0] < gap[1]]

    def state(self) -> State:
        """A position, if nothing after it is done."""
        first = self._ranges[0][1]
        if len(self._ranges) == 1:
            return first
        return {"from": first, "ahead": [list(one) for one in self._ranges[1:]]}


class DataIterator:
    """One pass over a flow. Not safe to share between threads without a lock.

    Holds everything about the pass; the flow knows nothing of it. Works as a context manager,
    which closes it.

    Attributes:
        seed: What this pass's randomness is a function of, with the epoch.
        epoch: Which pass this is.
    """

    def __init__(
        self, stream: Stream, tally: Tally, signature: str, pipeline: str, seed: int, epoch: int
    ) -> None:
        self._stream = stream
        self._advance = stream.__next__
        self._tally = tally
        self._signature = signature
        self._pipeline = pipeline
        self.seed = seed
        self.epoch = epoch

    def __iter__(self) -> DataIterator:
        return self

    def __next__(self) -> Datapoint:
        try:
            return self._advance()
        except TowerpackError as error:
            error.pipeline = error.pipeline or self._pipeline
            raise

    def state(self) -> dict[str, Any]:
        """Where this pass is, for `flow.iterate(state=...)`: small, and msgpack can carry it.

        Describes the position before the datapoint that `next` would give. If `next` raised, that
        is the datapoint that failed.
        """
        return {
            "version": _VERSION,
            "flow": self._signature,
            "seed": self.seed,
            "epoch": self.epoch,
            "at": self._stream.state(),
            "skipped": self._tally.skipped,
        }

    @property
    def skipped(self) -> int:
        """How many bad datapoints `on_error="skip"` has left out of this pass so far."""
        return max(0, self._tally.skipped)

    def close(self) -> None:
        """Give up generators, files and workers that the pass holds."""
        self._stream.close()
        for close in self._tally.closing:
            close()

    def __enter__(self) -> DataIterator:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def read_state(
    state: object, signature: str, *, seed: int | None, epoch: int | None
) -> tuple[int, int, State, int]:
    """Seed, epoch, position and skipped datapoints of a state; a `StateError` if it is no fit."""
    fields = cast("dict[str, Any]", state)
    needed = {"version", "flow", "seed", "epoch", "at"}
    if not isinstance(state, Mapping) or not needed <= fields.keys():
        raise StateError(
            f"This is no state of an iterator: {state!r:.80}",
            expected="what `iterator.state()` returned",
        )
    if fields["version"] != _VERSION:
        raise StateError(
            f"This state has version {fields['version']!r}.",
            expected=f"version {_VERSION}",
            fix="continue with the version of Towerpack that wrote it",
        )
    if fields["flow"] != signature:
        raise StateError(
            "This state belongs to another pipeline.",
            got=str(fields["flow"]),
            expected=signature,
            fix="build the pipeline as it was when the state was taken, or start afresh",
        )
    for name, wanted in (("seed", seed), ("epoch", epoch)):
        if wanted not in (None, fields[name]):
            raise StateError(
                f"The {name} given and the state's {name} differ.",
                got=f"{name}={wanted}",
                expected=f"{name}={fields[name]}, from the state",
                fix=f"leave out {name}=: the state carries it",
            )
    return fields["seed"], fields["epoch"], fields["at"], fields.get("skipped", 0)
