"""Repetition of monitor calls that failed temporarily."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
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
    """Wrapper of a monitor that stores calls after an `OSError` and repeats them later.

    A warning is logged. At most the newest 20,000 calls or 64 MiB of images are stored. The calls
    are repeated in order when the monitor is flushed, after 1, 2, 4, … 300 seconds. Other errors,
    and errors of an `essential` monitor, are raised.
    """

    def __init__(self, monitor: Monitor, clock: Callable[[], float]) -> None:
        self.monitor = monitor
        self._clock = clock
        self._pending: deque[tuple[str, tuple[Any, ...]]] = deque()
        self._nbytes = self._lost = 0
        self._down = False
        self._wait_s = self._due = 0.0

    def call(self, method: str, *args: Any, name: str | None = None) -> Any:
        """Call a method of the monitor. After an `OSError`, keep the call in order to repeat it.

        Other errors become a `CallbackError`.
        """
        if self._pending:
            return self._store(method, args)
        try:
            return self._call(method, args, name)
        except OSError as error:
            self._failed(error)
            return self._store(method, args)

    def flush(self, *, closing: bool = False) -> None:
        if self._down and not closing and self._clock() < self._due:
            return
        count = len(self._pending)
        try:
            while self._pending:
                self._call(*self._pending[0])
                self._nbytes -= _nbytes(self._pending.popleft()[1])
            self._call("flush")
        except OSError as error:
            self._failed(error)
            return
        if self._down:
            text = "%r works again: repeated %d calls; %d were lost."
            _logger.warning(text, self.monitor, count, self._lost)
        self._down, self._wait_s, self._lost = False, 0.0, 0

    def close(self) -> None:
        try:
            if self._down:
                self.flush(closing=True)
        finally:
            try:
                self._call("close")
            except OSError as error:
                self._failed(error)
        if self._pending:
            text = "%r still failed when the run ended: %d calls were lost."
            _logger.warning(text, self.monitor, len(self._pending) + self._lost)

    def _call(self, method: str, args: tuple[Any, ...] = (), name: str | None = None) -> Any:
        try:
            return getattr(self.monitor, method)(*args)
        except Exception as error:
            if isinstance(error, OSError) and not self.monitor.essential:
                raise
            value = "" if name is None else f" at {name!r}"
            raise CallbackError(
                f"The monitor {self.monitor!r} failed{value}: {type(error).__name__}: {error}",
                fix="correct the monitor, or remove it from TrainConfig(monitors=...)",
            ) from error

    def _store(self, method: str, args: tuple[Any, ...]) -> None:
        self._pending.append((method, args))
        self._nbytes += _nbytes(args)
        while len(self._pending) > _MOST_CALLS or self._nbytes > _MOST_BYTES:
            self._nbytes -= _nbytes(self._pending.popleft()[1])
            self._lost += 1

    def _failed(self, error: OSError) -> None:
        if not self._down:
            text = "%r failed (%s: %s). Training goes on; values are stored and sent later."
            _logger.warning(text, self.monitor, type(error).__name__, error)
        self._down = True
        self._wait_s = min(max(1.0, 2 * self._wait_s), _LONGEST_WAIT_S)
        self._due = self._clock() + self._wait_s


def _nbytes(args: tuple[Any, ...]) -> int:
    return sum(arg.nbytes for arg in args if isinstance(arg, np.ndarray))
