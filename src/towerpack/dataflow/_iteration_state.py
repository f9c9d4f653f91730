"""Streams (running iterations of single stages) and the iterator that users get."""

from __future__ import annotations

import bisect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from towerpack._core.errors import DataFlowError, StateError, TowerpackError
from towerpack.dataflow._plan import Node, Origin, Traced, Tracer
from towerpack.dataflow.datapoints import Datapoint, to_rows

_VERSION = 1  # of states
State = Any


class Tally:
    """Counters and cleanup functions of one iteration, shared by its streams."""

    def __init__(self, skipped: int = 0) -> None:
        self.skipped = skipped
        self.printed: set[int] = set()  # ids of stages
        self.closing: list[Callable[[], None]] = []

    def uncount(self, state: dict[str, Any]) -> None:
        """Subtract skipped datapoints that a resumed pass reads, skips and counts again."""
        self.skipped -= check_count(state.get("again"), sys.maxsize)

    def part(self) -> Tally:
        """Return a tally that counts skipped datapoints separately and shares all other records."""
        tally = Tally()
        tally.printed, tally.closing = self.printed, self.closing
        return tally


class Stream(ABC):
    @abstractmethod
    def __next__(self) -> Datapoint: ...

    def __iter__(self) -> Iterator[Datapoint]:
        return self

    @abstractmethod
    def state(self) -> State:
        """Return the state from which `open` of an equal stage can continue."""

    def close(self) -> None:
        """Release resources. Wrapping streams close the wrapped stream."""
        return


class InnerStream(Stream):
    _inner: Stream

    def close(self) -> None:
        self._inner.close()


class PlanStream(Stream):
    """Stream of a plan in order, without ranges that `ordered=False` has already yielded."""

    def __init__(self, node: Node, epoch: int, state: State) -> None:
        self.node = node
        self._get = node.get
        self.epoch = epoch
        self._chunk = node.chunk
        self._size = sys.maxsize if node.size is None else node.size
        (_, self.position), *self._ahead = ranges_done(state, self._size)
        self._stop = self._ahead[0][0] if self._ahead else self._size
        self._rows: list[Datapoint] = []
        self._first = self.position

    def __next__(self) -> Datapoint:
        position = self.position
        if position >= self._stop:
            position = self._next_gap()
        try:
            if self._chunk == 1:
                datapoint = self._get(self.epoch, position)
            else:
                datapoint = self._read_ahead(position)
        except StopIteration as error:  # would look like the end of the pass
            raise DataFlowError(
                f"Reading datapoint {position} raised StopIteration.",
                fix="use next(iterator, default), which does not raise StopIteration",
            ) from error
        self.position = position + 1
        return datapoint

    def state(self) -> State:
        ahead = [*self._ahead]
        return {"from": self.position, "ahead": ahead} if ahead else self.position

    def _next_gap(self) -> int:
        while self.position >= self._stop:
            if not self._ahead:
                raise StopIteration
            self.position = self._ahead.pop(0)[1]
            self._stop = self._ahead[0][0] if self._ahead else self._size
        return self.position

    def _read_ahead(self, position: int) -> Datapoint:
        index = position - self._first
        if index >= len(self._rows):
            stop = min(position + self._chunk, self._stop)
            self._rows = to_rows(self.node.read(self.epoch, range(position, stop)))
            self._first, index = position, 0
        return self._rows[index]


class TracedStream(InnerStream):
    """Stream of traced datapoints, from a plan or from a source that is read in order.

    The origins of a source that does not count its datapoints are unknown: their index is -1.
    """

    def __init__(self, inner: Stream, name: str, epoch: int) -> None:
        self._inner, self.epoch = inner, epoch
        self.tracer = Tracer(inner.node) if isinstance(inner, PlanStream) else None
        self._name = name

    def __next__(self) -> Datapoint:
        datapoint, inner = next(self._inner), self._inner
        if self.tracer and isinstance(inner, PlanStream):
            return Traced(datapoint, self.tracer.origins(self.epoch, inner.position - 1))
        state = inner.state()
        position = state - 1 if isinstance(state, int) else -1
        return Traced(datapoint, [Origin(self._name, position, None, self.epoch, position)])

    def state(self) -> State:
        return self._inner.state()


def with_skipped(state: dict[str, Any], again: int) -> dict[str, Any]:
    """Record in a state how many bad datapoints a resumed pass skips again."""
    return {**state, "again": again} if again else state


def ended_early(
    name: object, length: int, position: int, origin: str = "from which the state was taken"
) -> StateError:
    return StateError(
        f"{name} ended after {length} datapoints, but the saved state is at position {position}.",
        fix=f"restore the data {origin}, because the data have changed since",
    )


def inner_state(state: State) -> State:
    return None if state is None else state["inner"]


def check_count(state: State, limit: int) -> int:
    if state is None:
        return 0
    if isinstance(state, bool) or not isinstance(state, int) or not 0 <= state <= limit:
        raise StateError(
            f"A position in a saved state must be an integer in 0..{limit}, got {state!r:.200}.",
            fix="pass the data and the ordered= of the saved pass, or start a new pass",
        )
    return state


def ranges_done(state: State, size: int) -> list[list[int]]:
    """Return the sorted ranges of positions that were yielded before a state was taken."""
    if not isinstance(state, dict):
        return [[0, check_count(state, size)]]
    fields = cast("dict[str, Any]", state)
    ranges = [[0, fields["from"]], *map(list, fields["ahead"])]
    edges = [edge for pair in ranges for edge in pair]
    if {*map(len, ranges)} != {2} or edges != sorted(edges) or edges[-1] > size:
        raise StateError(
            f"Ranges of positions in a saved state must be sorted and in 0..{size}, got "
            f"{ranges!r:.200}.",
            fix="pass the data of the saved pass, or start a new pass",
        )
    return ranges


class Done:
    """Sorted ranges of the positions that a pass has yielded."""

    def __init__(self, state: State, size: int) -> None:
        self._ranges = ranges_done(state, size)

    def add(self, position: int) -> None:
        ranges = self._ranges
        index = bisect.bisect_right(ranges, [position, sys.maxsize])
        ranges.insert(index, [position, position + 1])
        for i in (index, index - 1):  # join the range with its neighbors
            if i + 1 < len(ranges) and ranges[i][1] == ranges[i + 1][0]:
                ranges[i][1] = ranges.pop(i + 1)[1]

    def gaps(self, size: int) -> list[tuple[int, int]]:
        starts = [end for _, end in self._ranges]
        ends = [start for start, _ in self._ranges[1:]]
        return [gap for gap in zip(starts, [*ends, size], strict=True) if gap[0] < gap[1]]

    def state(self) -> State:
        first = self._ranges[0][1]
        if len(self._ranges) == 1:
            return first
        return {"from": first, "ahead": [list(pair) for pair in self._ranges[1:]]}


class DataIterator:
    """Iterator over one pass of a flow, returned by `flow.iterate()`.

    It is also a context manager that closes the iterator. Threads that share it need a lock.

    Args:
        stream: Running iteration of the last stage.
        tally: Counters of the pass.
        signature: Text that identifies the pipeline in saved states.
        pipeline: Name of the pipeline in error messages.
        seed: Seed of all random numbers in the pass.
        epoch: Number of the pass.
    """

    def __init__(
        self, stream: Stream, tally: Tally, signature: str, pipeline: str, seed: int, epoch: int
    ) -> None:
        self.stream = stream
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
        """Return the state of this pass, for `flow.iterate(state=...)`.

        The state is small and can be stored by msgpack or JSON. It describes the position before
        the next datapoint. If `next` raised, the next datapoint is the one that failed.
        """
        return {
            "version": _VERSION,
            "flow": self._signature,
            "seed": self.seed,
            "epoch": self.epoch,
            "at": self.stream.state(),
            "skipped": self._tally.skipped,
        }

    @property
    def skipped(self) -> int:
        """Number of bad datapoints that `on_error="skip"` has skipped in this pass so far."""
        return max(0, self._tally.skipped)

    def close(self) -> None:
        """Release the generators, files and workers of this pass."""
        self.stream.close()
        for close in self._tally.closing:
            close()

    def __enter__(self) -> DataIterator:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def read_state(
    state: object, signature: str, *, seed: int | None, epoch: int | None
) -> tuple[int, int, State, int]:
    """Check a state. Return its seed, epoch, position and number of skipped datapoints."""
    fields = cast("dict[str, Any]", state)
    needed = {"version", "flow", "seed", "epoch", "at"}
    if not isinstance(state, Mapping) or not needed <= fields.keys():
        raise StateError(f"state must be a result of `iterator.state()`, got {state!r:.80}.")
    if fields["version"] != _VERSION:
        raise StateError(
            f"The version of a saved state must be {_VERSION}, got {fields['version']!r}.",
            fix="continue with the version of Towerpack that wrote the state",
        )
    if fields["flow"] != signature:
        raise StateError(
            "The saved state belongs to another pipeline.",
            got=str(fields["flow"]),
            expected=signature,
            fix="build the same pipeline as when the state was saved, or start a new pass",
        )
    for name, argument in (("seed", seed), ("epoch", epoch)):
        if argument not in (None, fields[name]):
            raise StateError(
                f"{name} must be {fields[name]}, as in the saved state, got {argument}.",
                fix=f"leave out {name}=, because the state contains it",
            )
    numbers = fields["seed"], fields["epoch"], fields.get("skipped", 0)
    if not all(type(number) is int and 0 <= number < 1 << 64 for number in numbers):
        raise StateError(f"A saved state must have numbers as seed and epoch, got {numbers!r:.80}.")
    return numbers[0], numbers[1], fields["at"], numbers[2]
