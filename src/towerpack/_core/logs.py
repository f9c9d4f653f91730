"""Logging of the library. It prints nothing until an application calls `console()`.

Modules of the library call `get_logger(__name__)`.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

from towerpack._core.files import open_plain
from towerpack._core.native_log import DEBUG, take_startup_lines

ROOT = "towerpack"
ONLY_FILE = {"towerpack_only": "file"}
"""`extra=` for messages that only the run's log file shows."""
ONLY_CONSOLE = {"towerpack_only": "console"}
"""`extra=` for messages that only the console shows."""


def get_logger(name: str) -> logging.Logger:
    return logging.getLogger(name if name.startswith(ROOT) else f"{ROOT}.{name}")


def console(level: int = logging.INFO) -> None:
    """Print the library's log to stderr, unless the program has configured logging itself."""
    logger = logging.getLogger(ROOT)
    if logger.level == logging.NOTSET:
        logger.setLevel(level)
    if logger.handlers or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines(datefmt="%H:%M:%S"))
    handler.addFilter(lambda record: _goes_to(record, "console"))
    logger.addHandler(handler)


class _Lines(logging.Formatter):
    """Formatter of log lines: time, level of warnings and errors, and with `--debug` the module."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        module = f"{record.name}: " if os.environ.get(DEBUG) else ""
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        return f"{record.asctime} {module}{level}{record.message}"

    def usesTime(self) -> bool:  # noqa: N802
        return True


class _PlainFile(logging.FileHandler):
    def _open(self) -> Any:
        return open(self.baseFilename, self.mode, encoding=self.encoding, opener=open_plain)


class LogFile:
    """Context manager that writes the library's log and TensorFlow's startup lines to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handler: logging.FileHandler | None = None

    def __enter__(self) -> LogFile:
        logger = logging.getLogger(ROOT)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
        self._handler = _PlainFile(self._path, encoding="utf-8")
        self._handler.setFormatter(_Lines())
        self._handler.addFilter(lambda record: _goes_to(record, "file"))
        logger.addHandler(self._handler)
        for line in take_startup_lines():
            self._handler.handle(
                logging.LogRecord("tensorflow", logging.INFO, "", 0, line, None, None)
            )
        return self

    def __exit__(self, *exc: object) -> None:
        if self._handler is not None:
            logging.getLogger(ROOT).removeHandler(self._handler)
            self._handler.close()
            self._handler = None


def _goes_to(record: logging.LogRecord, target: str) -> bool:
    return getattr(record, "towerpack_only", target) == target
