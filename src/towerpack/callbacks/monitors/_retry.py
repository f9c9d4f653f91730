"""Calls of a monitor that has failed for now, kept and made again later."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Final

import numpy as np

from towerpack._core.errors import CallbackError
from towerpack._core.logs import get_logger
from towerpack.callbacks.monitors._base import Monitor

_MOST_CALLS: Final = 20_000
_MOST_BYTES: Final = 1 << 26
_LONGEST_WAIT_S: Final = 300.0
_logger = get_logger(__name__)


class RetryingMonitor:
    """A monitor whose calls are kept and made again after an `OSError` (no connection, full disk).

    One warning is logged. Calls are kept, 20,000 or 64 MiB of pictures at most, the newest; they
    are tried again, in order, when the monitor is flushed, after 1, 2, 4, … 300 seconds.

    Args:
        monitor: An error of an `essential` one, and any that is no `OSError`, goes up.
        clock: Seconds that go forward.
    """

    def __init__(self, monitor: Monitor, clock: Callable[[], float]) -> None:
        self.monitor = monitor
        self._clock = clock
        self._kept: deque[tuple[str, tuple[Any, ...]]] = deque()
        self._nbytes = self._lost = 0
        self._down = False
        self._wait_s = self._due = 0.0

    def call(self, method: str, *args: Any, name: str | None = None) -> Any:
        """Call a method, or keep the call. Raise `CallbackError` for errors but `OSError`."""
        if self._kept:
            return self._keep(method, args)
        try:
            return self._do(method, args, name)
        except OSError as error:
            self._failed(error)
            return self._keep(method, args)

    def flush(self, *, at_last: bool = False) -> None:
        """Hand over what was kept, if it is time, and flush."""
        if self._down and not at_last and self._clock() < self._due:
            return
        count = len(self._kept)
        try:
            while self._kept:
                self._do(*self._kept[0])
                self._nbytes -= _nbytes(self._kept.popleft()[1])
            self._do("flush")
        except OSError as error:
            self._failed(error)
            return
        if self._down:
            text = "%r works again: it has got %d calls that were kept; %d were lost."
            _logger.warning(text, self.monitor, count, self._lost)
        self._down, self._wait_s, self._lost = False, 0.0, 0

    def close(self) -> None:
        """Hand over what was kept, at last, and close."""
        try:
            if self._down:
                self.flush(at_last=True)
        finally:
            try:
                self._do("close")
            except OSError as error:
                self._failed(error)
        if self._kept:
            text = "%r never got %d calls that were kept for it."
            _logger.warning(text, self.monitor, len(self._kept) + self._lost)

    def _do(self, method: str, args: tuple[Any, ...] = (), name: str | None = None) -> Any:
        with _blame(self.monitor, name):
            return getattr(self.monitor, method)(*args)

    def _keep(self, method: str, args: tuple[Any, ...]) -> None:
        self._kept.append((method, args))
        self._nbytes += _nbytes(args)
        while len(self._kept) > _MOST_CALLS or self._nbytes > _MOST_BYTES:
            self._nbytes -= _nbytes(self._kept.popleft()[1])
            self._lost += 1

    def _failed(self, error: OSError) -> None:
        if not self._down:
            text = "%r failed (%s: %s). Training goes on; what it should get is kept for it."
            _logger.warning(text, self.monitor, type(error).__name__, error)
        self._down = True
        self._wait_s = min(max(1.0, 2 * self._wait_s), _LONGEST_WAIT_S)
        self._due = self._clock() + self._wait_s


def _nbytes(args: tuple[Any, ...]) -> int:
    return sum(arg.nbytes for arg in args if isinstance(arg, np.ndarray))


@contextlib.contextmanager
def _blame(monitor: Monitor, name: str | None) -> Generator[None]:
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and not monitor.essential:
            raise
        at = "" if name is None else f" at {name!r}"
        raise CallbackError(
            f"The monitor {monitor!r} failed{at}: {type(error).__name__}: {error}",
            fix="mend it, or take it out of TrainConfig(monitors=...)",
        ) from error
