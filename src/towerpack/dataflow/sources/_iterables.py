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
from towerpack.dataflow.arguments import repr_of
from towerpack.dataflow.content import content_of_values
from towerpack.dataflow.datapoints import Datapoint
from towerpack.dataflow.pipeline_names import Length
from towerpack.dataflow.stage_context import StageContext

_NO_LIMIT = (1 << 63) - 1
# `queue.ShutDown` is new in Python 3.13.
_CLOSED: tuple[type[Exception], ...] = (EOFError, getattr(queue, "ShutDown", EOFError))


class DataFromIterable(Stage):
    """Yield the datapoints of an iterable, which is iterated once for each pass.

    Args:
        iterable: Any iterable, which is not copied. Iterators and generators allow a single pass.

    Raises:
        ConfigError: `iterable` cannot be iterated.
        DataFlowError: An iterator is iterated a second time; raised while iterating.
    """

    runs_code = True

    def __init__(self, iterable: Iterable[Any]) -> None:
        if not _iterable(iterable):
            raise ConfigError(f"DataFromIterable needs an iterable, got {repr_of(iterable)}.")
        self._source: Any = iterable
        self._used = False

    def length(self) -> Length:
        return len(self._source) if isinstance(self._source, Sized) else None

    def content(self) -> str:
        return f"{super().content()}, {content_of_values(self._source, self.random)}"

    def open(self, context: StageContext, epoch: int, state: State) -> Stream:
        key = context.key(self)
        begin = partial(self._start, key, epoch)
        copy = context.retained and not isinstance(self._source, (list, tuple))
        return ReplayStream(begin, partial(Ambient, key, epoch), type(self).__name__, state, copy)

    def _start(self, key: int, epoch: int) -> Iterator[Datapoint]:
        if self._used:
            raise DataFlowError(
                f"A {type(self._source).__name__} can be iterated only once.",
                fix="pass the generator function instead of its result",
            )
        self._used = isinstance(self._source, Iterator)
        return iter(self._source)


class DataFromGenerator(DataFromIterable):
    """Yield the datapoints of a generator function. The length is unknown.

    Args:
        gen: Function without arguments that returns an iterator and is called for each pass. An
            iterator is accepted too, for a single pass.
        rng: Whether to call `gen(rng)` with a NumPy generator that is a function of (seed, epoch).

    Raises:
        ConfigError: `gen` is not a function or an iterable.
    """

    def __init__(
        self, gen: Callable[..., Iterable[Any]] | Iterable[Any], *, rng: bool = False
    ) -> None:
        self._called = callable(gen) and not isinstance(gen, Iterator)
        if not self._called and (rng or not _iterable(cast("object", gen))):
            raise ConfigError(f"DataFromGenerator needs a generator function, got {repr_of(gen)}.")
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
    # `iter()` may open files. Python can iterate over classes with `__getitem__` only, too.
    return hasattr(type(source), "__iter__") or hasattr(type(source), "__getitem__")


class DataFromQueue(Stage):
    """Yield datapoints from a queue until a sentinel arrives or the queue is closed.

    A pass ends at a sentinel, and the next pass continues after it. The length is unknown.
    Iterators share the queue, so each datapoint goes to one of them. The flow cannot be resumed: a
    resumed pass continues with the current content of the queue.

    Args:
        queue: `queue.Queue`, `multiprocessing.Queue`, or another object with `get()`.
        sentinel: Object that ends a pass. Strings, bytes and numbers are compared by value.

    Raises:
        ConfigError: `queue` has no `get()`.
    """

    def __init__(self, queue: Any, *, sentinel: object = None) -> None:
        if not callable(getattr(queue, "get", None)):
            raise ConfigError(f"queue must have a method get(), got a {type(queue).__name__}.")
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
            # multiprocessing raises ValueError or OSError if this process has closed the queue.
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
