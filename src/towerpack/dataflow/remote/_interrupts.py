"""Exceptions of signal handlers that pyzmq loses, such as Ctrl-C's `KeyboardInterrupt`.

When pyzmq frees a message, it looks whether a signal has come and lets its handler run; what that
raises can then go nowhere. It is printed, by `sys.excepthook`, and handed to `sys.unraisablehook`,
which is where it is found here. (`SystemExit` is no such case: the printing ends the process.)
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

_PYZMQ = "zmq.backend.cython._zmq"

_lost: list[BaseException] = []
_otherwise: Callable[[Any], Any] | None = None
_printed: Callable[..., Any] = sys.excepthook


def keep_lost_interrupts() -> None:
    """From now on keep what handlers raise in vain, for `raise_lost_interrupt`."""
    global _otherwise, _printed
    if _otherwise is None:  # once: other hooks may have been put in front of ours since
        _otherwise, sys.unraisablehook = sys.unraisablehook, _keep
        _printed, sys.excepthook = sys.excepthook, _print


def raise_lost_interrupt() -> None:
    """Raise what was lost before; handlers run in the main thread, and so does this."""
    if _lost and threading.current_thread() is threading.main_thread():
        raise _lost.pop(0)


def _keep(unraisable: Any) -> None:
    error, place = unraisable.exc_value, unraisable.object
    if error is None or place != f"{_PYZMQ}.Frame.__dealloc__" or _is_zmqs(error):
        if _otherwise is not None:
            _otherwise(unraisable)
    else:
        _lost.append(error)


def _print(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    # What ends a program came through code of the program's first, and not from pyzmq alone.
    lost = trace is not None and trace.tb_frame.f_globals.get("__name__") == _PYZMQ
    if not lost or _is_zmqs(error):
        _printed(kind, error, trace)


def _is_zmqs(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] == "zmq"
