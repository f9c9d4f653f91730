"""Datapoints that come one after another: from generators, other iterables, and queues."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Iterator, Sized
from functools import partial
from typing import Any, cast

from towerpack._core.errors import ConfigError, DataFlowError
from towerpack.dataflow._compile import Stage
from towerpack.dataflow._item_rng import position_rng
from towerpack.dataflow._iteration_state import State, Stream, check_count
from towerpack.dataflow._user_code import Ambient, ReplayStream
from towerpack.dataflow.arguments import given
from towerpack.dataflow.content import content_of_values
from towerpack.dataflow.datapoints import Datapoint
from towerpack.dataflow.pipeline_names import Length
from towerpack.dataflow.stage_context import StageContext

_NO_LIMIT = (1 << 63) - 1
# Python 3.13 has the second.
_CLOSED: tuple[type[Exception], ...] = (EOFError, getattr(queue, "ShutDown", EOFError))


class DataFromIterable(Stage):
    """Datapoints of any iterable, which is iterated once for each pass.

    Contract: in the iterable's order; its length if it has one; not random; thread- and fork-safe
    as far as the iterable is; resumable by iterating again and skipping.

    Args:
        iterable: Not copied. An iterator or generator object is good for a single pass.
    """

    runs_code = True

    def __init__(self, iterable: Iterable[Any]) -> None:
        if not _iterable(iterable):
            raise ConfigError("DataFromIterable takes what can be iterated.", got=given(iterable))
        self._source: Any = iterable
        self._used = False

    def length(self) -> Length:
        return len(self._source) if isinstance(self._source, Sized) else None

    def identity(self) -> str:
        length = self.length()
        return "" if length is None else str(length)

    def content(self) -> str:
        return f"{super().content()}, {content_of_values(self._source, self.random)}"

    def open(self, context: StageContext, epoch: int, state: State) -> Stream:
        key = context.key(self)
        begin = partial(self._start, key, epoch)
        kept = context.kept and not isinstance(self._source, (list, tuple))
        return ReplayStream(begin, partial(Ambient, key, epoch), type(self).__name__, state, kept)

    def _start(self, key: int, epoch: int) -> Iterator[Datapoint]:
        if self._used:
            raise DataFlowError(
                f"A {type(self._source).__name__} can be iterated once, and that was done.",
                fix="pass the generator function instead, not what it returned",
            )
        self._used = isinstance(self._source, Iterator)
        return iter(self._source)


class DataFromGenerator(DataFromIterable):
    """Datapoints that a generator function yields.

    Contract: in the generator's order; length unknown; random only through `rng`; thread- and
    fork-safe as far as the function is; resumable by running it again and skipping.

    Args:
        gen: A function without arguments that returns an iterator, called once for each pass. An
            iterator or generator object is accepted too, for a single pass.
        rng: Call `gen(rng)` with a NumPy generator that is a function of (seed, epoch).
    """

    def __init__(
        self, gen: Callable[..., Iterable[Any]] | Iterable[Any], *, rng: bool = False
    ) -> None:
        self._called = callable(gen) and not isinstance(gen, Iterator)
        if not self._called and (rng or not _iterable(cast("object", gen))):
            raise ConfigError("DataFromGenerator takes a generator function.", got=given(gen))
        self._source = gen
        self._used = False
        self._rng = self.random = rng

    def length(self) -> Length:
        return None

    def arguments(self) -> str:
        return getattr(self._source, "__name__", "")

    def _start(self, key: int, epoch: int) -> Iterator[Datapoint]:
        if not self._called:
            return super()._start(key, epoch)
        arguments = (position_rng(key, epoch, 0),) if self._rng else ()
        return iter(self._source(*arguments))


def _iterable(source: object) -> bool:
    # Not by `iter()`, which may open files. `__getitem__` alone is enough for Python, too.
    return hasattr(type(source), "__iter__") or hasattr(type(source), "__getitem__")


class DataFromQueue(Stage):
    """What `queue.get()` gives, until a sentinel comes or the queue is closed.

    A pass ends at a sentinel, and the next one goes on behind it. Ctrl-C interrupts waiting.

    Contract: in order of the queue; length unknown; not random; each datapoint goes to one of the
    iterators, which share the queue; fork-safe if the queue is; not resumable: a state counts what
    was taken, and a resumed pass goes on with what the queue holds then.

    Args:
        queue: `queue.Queue`, `multiprocessing.Queue`, or anything with `get()`.
        sentinel: Ends a pass: this object, or one equal to it if it is a string, bytes or a number.
    """

    def __init__(self, queue: Any, *, sentinel: object = None) -> None:
        if not callable(getattr(queue, "get", None)):
            raise ConfigError(f"A {type(queue).__name__} is no queue: it has no get().")
        self.queue = queue
        self.sentinel = sentinel

    def open(self, context: StageContext, epoch: int, state: State) -> Stream:
        return QueueStream(self.queue, self.sentinel, state)


class QueueStream(Stream):
    def __init__(self, queue: Any, sentinel: object, state: State) -> None:
        self._get = queue.get
        self._sentinel = sentinel
        self._plain = isinstance(sentinel, (str, bytes, int, float))
        self._taken = check_count(state, _NO_LIMIT)
        self._ended = False

    def __next__(self) -> Datapoint:
        if self._ended:
            raise StopIteration
        try:
            datapoint = self._get()
        except (*_CLOSED, ValueError, OSError) as error:
            # multiprocessing raises the latter on a queue that this process has closed.
            if not isinstance(error, _CLOSED) and not str(error).endswith("is closed"):
                raise
            datapoint = self._sentinel
        sentinel = self._sentinel
        equal = self._plain and type(datapoint) is type(sentinel) and datapoint == sentinel
        if datapoint is sentinel or equal:
            self._ended = True
            raise StopIteration
        self._taken += 1
        return datapoint

    def state(self) -> State:
        return self._taken
