"""Datapoints that someone else puts into a queue."""

from __future__ import annotations

import inspect
import queue
from collections.abc import Callable
from typing import Any

from towerpack._core.errors import ConfigError
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._flow import Place, Stage
from towerpack.dataflow._stream import State, Stream, check_count

_POLL_S = 0.2
_NO_LIMIT = (1 << 63) - 1
_CLOSED = (EOFError, getattr(queue, "ShutDown", EOFError))  # Python 3.13 has the second


class DataFromQueue(Stage):
    """What `queue.get()` gives, until a sentinel comes or the queue is closed.

    A pass ends at a sentinel, and the next pass goes on behind it. Waiting can be interrupted by
    Ctrl-C.

    Contract: in order of the queue; length unknown; not random; iterators share the queue, so that
    each datapoint goes to one of them; crosses to other processes if the queue does. What was taken
    from a queue cannot be taken again, so nothing is exactly resumable: a state counts what was
    taken, and a resumed pass goes on with what the queue holds then.

    Args:
        queue: `queue.Queue`, `multiprocessing.Queue`, or anything with `get()`.
        sentinel: Ends a pass: this object, or one equal to it if it is a string, bytes or a number.
    """

    def __init__(self, queue: Any, *, sentinel: object = None) -> None:
        if not callable(getattr(queue, "get", None)):
            raise ConfigError(
                f"A {type(queue).__name__} is no queue.", expected="an object with get()"
            )
        self.queue = queue
        self.sentinel = sentinel

    def open(self, place: Place, epoch: int, state: State) -> Stream:
        return QueueStream(self.queue, self.sentinel, state)


class QueueStream(Stream):
    """Takes from a queue until a sentinel comes."""

    def __init__(self, queue: Any, sentinel: object, state: State) -> None:
        self._get = _getter(queue)
        self._sentinel = sentinel
        self._taken = check_count(state, _NO_LIMIT)
        self._ended = False

    def __next__(self) -> Datapoint:
        if self._ended:
            raise StopIteration
        try:
            datapoint = self._get()
        except Exception as error:
            if not _says_closed(error):
                raise
            self._ended = True
            raise StopIteration from error
        if _same(datapoint, self._sentinel):
            self._ended = True
            raise StopIteration
        self._taken += 1
        return datapoint

    def state(self) -> State:
        return self._taken


def _getter(source: Any) -> Callable[[], Any]:
    """A `get` that comes back to Python now and then, where the queue allows it."""
    get = source.get
    try:
        inspect.signature(get).bind(timeout=_POLL_S)
    except (TypeError, ValueError):
        return get

    def poll() -> Any:
        while True:
            try:
                return get(timeout=_POLL_S)
            except queue.Empty:
                continue

    return poll


def _says_closed(error: Exception) -> bool:
    # The last is what multiprocessing raises on a queue that this process has closed.
    return isinstance(error, _CLOSED) or (
        isinstance(error, (ValueError, OSError)) and str(error).endswith("is closed")
    )


def _same(value: object, sentinel: object) -> bool:
    plain = isinstance(sentinel, (str, bytes, int, float)) and type(value) is type(sentinel)
    return value is sentinel or (plain and value == sentinel)
