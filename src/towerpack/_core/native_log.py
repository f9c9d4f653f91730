"""Lines of TensorFlow's native code on stderr while it starts, kept for the run's log.

It writes to file descriptor 2, past `sys.stderr` and `logging`, so that is what has to be turned
aside, for the few seconds of its import and of its first look for devices.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

# Information; what follows it on a line of its own; and errors that tell nothing: there is no
# driver (303), and libraries that TensorFlow loads twice.
_USUAL = re.compile(
    r"I\d{4} |\d{4}-\d\d-\d\d \d\d:\d\d:[\d.]+: I |To enable the following instructions: "
    r"|WARNING: All log messages before absl::InitializeLog\(\)"
    r"|.* failed call to cuInit: .*\(303\)$"
    r"|W\d{4} .* Ignored (output_format|drop_control_dependency)\.$|fully_quantize: "
    r"|W\d{4} .* Skipping runtime version metadata|INFO: Created TensorFlow Lite XNNPACK delegate"
    r"|.* Unable to register cu\w+ factory|.* computation placer already registered"
)
# Prints the file if whoever holds the other end of the pipe dies before it says that it lives.
_SURVIVOR = 'read _ || { cat "$0" >&2; rm -r "${0%/*}"; }'

DEBUG = "TOWERPACK_DEBUG"
"""Environment variable: if it is set, nothing is turned aside."""

_kept: list[str] = []


def take_kept() -> list[str]:
    """The lines kept so far, which are then forgotten here."""
    lines = list(_kept)
    _kept.clear()
    return lines


@contextmanager
def quiet_start() -> Generator[None]:
    """Keep the usual lines of a starting TensorFlow; show all others when the block ends.

    If the block raises, or the process dies in it, all of them are shown. Where other threads run,
    which might write or start processes meanwhile, nothing is turned aside; nor on Windows.
    """
    with ExitStack() as stack:
        file = _stderr_redirected(stack)
        yield
        if file is not None:
            lines = file.read_text(errors="replace").splitlines(keepends=True)
            _kept.extend(line.rstrip() for line in lines if _USUAL.match(line))
            file.write_text("".join(line for line in lines if not _USUAL.match(line)))


def _stderr_redirected(stack: ExitStack) -> Path | None:
    """Redirect descriptor 2 to a file until the stack unwinds, which prints what the file holds.

    None where that cannot be done.
    """
    if os.name != "posix" or threading.active_count() > 1 or os.environ.get(DEBUG):
        return None
    try:
        stderr = os.dup(2)
        stack.callback(os.close, stderr)
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="towerpack-"))
        file = Path(directory) / "stderr"
        file.touch()
        survivor = subprocess.Popen(
            ["/bin/sh", "-c", _SURVIVOR, str(file)], stdin=subprocess.PIPE, stderr=stderr
        )
    except OSError:  # no stderr, no place for files or no shell
        return None
    stack.callback(survivor.communicate, b"\n")
    _flush()
    with file.open("ab") as opened:
        os.dup2(opened.fileno(), 2)

    def restore() -> None:
        _flush()
        os.dup2(stderr, 2)
        if text := file.read_bytes():
            with open(2, "wb", closefd=False) as out:
                out.write(text)

    stack.callback(restore)
    return file


def _flush() -> None:
    if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stderr.flush()
