"""Redirection of TensorFlow's startup messages from stderr to the run's log.

Native code writes to file descriptor 2, not to `sys.stderr` or `logging`. The descriptor is
redirected while TensorFlow is imported and searches for devices.
"""

import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

# Startup messages that are only logged: information, lines that follow it, a missing driver (303),
# and libraries that TensorFlow loads twice.
_USUAL = re.compile(
    r"I\d{4} |\d{4}-\d\d-\d\d \d\d:\d\d:[\d.]+: I |To enable the following instructions: "
    r"|WARNING: All log messages before absl::InitializeLog\(\)"
    r"|.* failed call to cuInit: .*\(303\)$"
    r"|W\d{4} .* Ignored (output_format|drop_control_dependency)\.$|fully_quantize: "
    r"|W\d{4} .* Skipping runtime version metadata|INFO: Created TensorFlow Lite XNNPACK delegate"
    r"|.* Unable to register cu\w+ factory|.* computation placer already registered"
)
# Prints the file if the process that holds the other end of the pipe dies.
_SURVIVOR = 'read _ || { cat "$0" >&2; rm -r "${0%/*}"; }'

DEBUG = "TOWERPACK_DEBUG"
"""Environment variable that disables the redirection if it is set."""

_startup_lines: list[str] = []


def take_startup_lines() -> list[str]:
    lines = list(_startup_lines)
    _startup_lines.clear()
    return lines


@contextmanager
def quiet_start() -> Generator[None]:
    """Redirect stderr while TensorFlow starts. Store its usual messages, print others at the end.

    If the block raises or the process dies, all messages are printed. Nothing is redirected on
    Windows or while other threads run, because they may write messages or start processes.
    """
    with ExitStack() as stack:
        file = _stderr_redirected(stack)
        yield
        if file is not None:
            lines = file.read_text(errors="replace").splitlines(keepends=True)
            _startup_lines.extend(line.rstrip() for line in lines if _USUAL.match(line))
            file.write_text("".join(line for line in lines if not _USUAL.match(line)))


def _stderr_redirected(stack: ExitStack) -> Path | None:
    """Redirect descriptor 2 to a file until the stack is closed, then print the file's content.

    Return None if redirection is not possible.
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
    except OSError:  # There is no stderr, no temporary directory or no shell.
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
