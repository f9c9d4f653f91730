"""The console of all commands: any terminal, any pipe."""

from __future__ import annotations

import codecs
import io
import sys

from rich.console import Console

_WIDTH_OF_PIPES = 160
# One for one, so that columns stay aligned.
_PLAIN = str.maketrans("✓✗·→×…µ─│├└", "+x->x~u-|++")


def console() -> Console:
    """For tables on standard output."""
    found = Console(highlight=False)
    # Rich cuts tables to 80 columns where there is no terminal; files and pipes have no edge.
    return found if found.is_terminal else Console(highlight=False, width=_WIDTH_OF_PIPES)


def write_plainly() -> None:
    """Have characters that the terminal's encoding lacks written as others, here and in `print`."""
    codecs.register_error("towerpack", _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors != "surrogateescape":
            stream.reconfigure(errors="towerpack")


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_PLAIN)
    return "".join(c if c.isascii() else "?" for c in text), error.end
