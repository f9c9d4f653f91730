from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from towerpack._core.logs import get_logger

_log = get_logger(__name__)

T = TypeVar("T")

_POLL_S = 0.2
_JOIN_S = 2.0


class ReadAhead(Generic[T]):
    """Context manager that prefetches one item in a thread while the caller processes another.

    The thread is a daemon. It refers only to the iterator, and closes the iterator itself.

    Args:
        open_iterator: Function that returns the iterator; called in the thread.
        prepare: Function from a value and its position to an item.
    """

    def __init__(
        self, open_iterator: Callable[[], Iterator[Any]], prepare: Callable[[Any, int], T]
    ) -> None:
        self._open = open_iterator
        self._prepare = prepare
        self._changed = threading.Condition()
        self._slot: list[T] = []
        self._ended = False
        self._closed = False
        self._error: BaseException | None = None
        run = contextvars.copy_context().run
        self._thread = threading.Thread(
            target=run, args=(self._read,), name="ReadAhead", daemon=True
        )

    def items(self, poll: Callable[[], None]) -> Iterator[T]:
        """Iterate over the items in order. At the end, raise the error of the thread, if any.

        `poll` is called before each item and several times a second while waiting. It may raise.
        """
        while True:
            poll()
            with self._changed:
                while not (self._slot or self._ended):
                    if not self._changed.wait(_POLL_S):
                        poll()
                if not self._slot:
                    break
                item = self._slot.pop()
                self._changed.notify_all()
            yield item
        if self._error is not None:
            raise self._error

    def __enter__(self) -> ReadAhead[T]:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(_JOIN_S)
        if self._thread.is_alive():
            _log.warning("A dataflow did not stop within %g s. Its thread keeps running.", _JOIN_S)

    def _read(self) -> None:
        try:
            iterator = self._open()
            try:
                for position, raw in enumerate(iterator):
                    if not self._put(self._prepare(raw, position)):
                        break
            finally:
                close = getattr(iterator, "close", None)
                if close is not None:
                    close()
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _put(self, item: T) -> bool:
        with self._changed:
            while self._slot and not self._closed:
                self._changed.wait()
            if self._closed:
                return False
            self._slot.append(item)
            self._changed.notify_all()
            return True
