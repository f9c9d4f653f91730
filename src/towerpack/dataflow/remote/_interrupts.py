"""Exceptions of signal handlers that pyzmq loses, such as Ctrl-C's `KeyboardInterrupt`.

When pyzmq frees a message, it looks whether a signal has come and lets its handler run; what that
raises can then go nowhere. It is printed, by `sys.excepthook`, and handed to `sys.unraisablehook`,
which is where it is found here. (`SystemExit` is no such case: the printing ends the process.)
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any

_PYZMQ = "zmq.backend.cython._zmq"
_FILE = f"{_PYZMQ.replace('.', '/')}.py"

_lost: list[BaseException] = []


def keep_lost_interrupts() -> None:
    """From now on keep what handlers raise in vain, for `raise_lost_interrupt`.

    To be asked for by whoever opens a socket: hooks that others put in place since ours (Typer's
    replaces all before it) would hide it.
    """
    if not _is_made_of(sys.unraisablehook, _keep):
        sys.unraisablehook = partial(_keep, sys.unraisablehook)
    if not _is_made_of(sys.excepthook, _print):
        sys.excepthook = partial(_print, sys.excepthook)


def raise_lost_interrupt() -> None:
    """Raise what was lost before; handlers run in the main thread, and so does this."""
    if _lost and threading.current_thread() is threading.main_thread():
        raise _lost.pop(0)


def _is_made_of(hook: object, function: Callable[..., None]) -> bool:
    return isinstance(hook, partial) and hook.func is function


def _keep(otherwise: Callable[[Any], Any], unraisable: Any) -> None:
    error, place = unraisable.exc_value, unraisable.object
    if error is None or place != f"{_PYZMQ}.Frame.__dealloc__" or _is_zmqs(error):
        otherwise(unraisable)
    else:
        _lost.append(error)


def _print(
    otherwise: Callable[..., Any],
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    # What ends a program came through code of the program's first, and not from pyzmq alone.
    # (By the file: since Python 3.13, frames of compiled code have no globals.)
    lost = trace is not None and trace.tb_frame.f_code.co_filename.endswith(_FILE)
    if not lost or _is_zmqs(error):
        otherwise(kind, error, trace)


def _is_zmqs(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] == "zmq"
