"""Tracebacks of errors in the user's code, without the frames of Towerpack."""

from __future__ import annotations

import os
import sysconfig
import traceback
from itertools import dropwhile
from pathlib import Path

from towerpack._core.errors import DataFlowError, MapError, TowerpackError

_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_STANDARD = sysconfig.get_path("stdlib") + os.sep
_INSTALLED = {"site-packages", "dist-packages"}  # may be in the standard library's folder


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an error and its causes, starting in the user's code.

    Without a frame of the user's code, return only the error's message.
    """
    trimmed = traceback.TracebackException.from_exception(error)
    _trim(trimmed, error)
    lines = trimmed.format() if trimmed.stack else trimmed.format_exception_only()
    return "".join(lines).rstrip()


def cause_of(error: TowerpackError) -> str | None:
    """Return the traceback of an error in the user's code that caused `error`, or None.

    Errors of workers contain the traceback already, so the result is None.
    """
    if "Traceback" in (error.details or ""):
        return None
    cause = error.__cause__
    if isinstance(cause, MapError) and not _enters_user_code(cause):
        return cause_of(cause)  # the last error, if too many datapoints were skipped
    if cause is None or cause.__traceback__ is None or type(error) not in (DataFlowError, MapError):
        return None
    # A function such as `int` has no frame, but its error is one of the user's code, too.
    is_built_in = isinstance(error, MapError) and not isinstance(cause, TowerpackError)
    return traceback_of(cause) if is_built_in or _enters_user_code(cause) else None


def _trim(trimmed: traceback.TracebackException, error: BaseException) -> None:
    """Remove the frames of Towerpack, and causes that have no others."""
    trimmed.stack = traceback.StackSummary.from_list(_user_frames(list(trimmed.stack), error))
    for name in ("__cause__", "__context__"):
        link: traceback.TracebackException | None = getattr(trimmed, name)
        reason: BaseException | None = getattr(error, name)
        if link is None or reason is None:
            continue
        _trim(link, reason)
        if not link.stack:
            setattr(trimmed, name, None)


def _user_frames(
    frames: list[traceback.FrameSummary], error: BaseException
) -> list[traceback.FrameSummary]:
    left = list(dropwhile(_is_internal, frames))
    if isinstance(error, TowerpackError):  # remove the frames that raise it, too
        left = list(dropwhile(_is_internal, reversed(left)))[::-1]
    return left


def _enters_user_code(error: BaseException) -> bool:
    return bool(_user_frames(list(traceback.extract_tb(error.__traceback__)), error))


def _is_internal(frame: traceback.FrameSummary) -> bool:
    file = frame.filename
    if file.startswith((_PACKAGE, "<frozen importlib")):
        return True
    return file.startswith(_STANDARD) and _INSTALLED.isdisjoint(Path(file).parts)
