"""Tracebacks of the user's code, without the frames that lead to it through ours."""

from __future__ import annotations

import os
import sysconfig
import traceback
from itertools import dropwhile
from pathlib import Path

from towerpack._core.errors import MapError, TowerpackError

_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_STANDARD = sysconfig.get_path("stdlib") + os.sep
_INSTALLED = {"site-packages", "dist-packages"}  # may lie in the standard library's folder
_REFERS = "see the cause above"


def traceback_of(error: BaseException) -> str:
    """The traceback of an error and its causes, from where it enters the user's code.

    Without such code, it is what the exception says.
    """
    told = traceback.TracebackException.from_exception(error)
    _trim(told, error)
    lines = told.format() if told.stack else told.format_exception_only()
    return "".join(lines).rstrip()


def cause_of(error: TowerpackError) -> str | None:
    """The traceback of what the user's code raised, if that is why the error was raised.

    `None` if the error tells it itself, as those from workers do.
    """
    if "Traceback" in (error.details or ""):
        return None
    cause = error.__cause__
    if isinstance(cause, MapError) and not _enters_their_code(cause):
        return cause_of(cause)  # of the last one, where too many were left out
    if cause is None or cause.__traceback__ is None:
        return None
    theirs = isinstance(error, MapError) and _enters_their_code(cause)
    return traceback_of(cause) if theirs or _REFERS in (error.fix or "") else None


def _trim(told: traceback.TracebackException, error: BaseException) -> None:
    """Leave out frames of ours, and causes that have no others."""
    told.stack = traceback.StackSummary.from_list(_theirs(list(told.stack), error))
    for name in ("__cause__", "__context__"):
        link: traceback.TracebackException | None = getattr(told, name)
        reason: BaseException | None = getattr(error, name)
        if link is None or reason is None:
            continue
        _trim(link, reason)
        if not link.stack:
            setattr(told, name, None)


def _theirs(
    frames: list[traceback.FrameSummary], error: BaseException
) -> list[traceback.FrameSummary]:
    left = list(dropwhile(_is_ours, frames))
    if isinstance(error, TowerpackError):  # raised on purpose: where in our code does not matter
        left = list(dropwhile(_is_ours, reversed(left)))[::-1]
    return left


def _enters_their_code(error: BaseException) -> bool:
    return bool(_theirs(list(traceback.extract_tb(error.__traceback__)), error))


def _is_ours(frame: traceback.FrameSummary) -> bool:
    file = frame.filename
    if file.startswith((_PACKAGE, "<frozen importlib")):
        return True
    return file.startswith(_STANDARD) and _INSTALLED.isdisjoint(Path(file).parts)
