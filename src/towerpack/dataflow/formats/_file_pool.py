"""Many files, of which a few are open."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from towerpack._core.errors import FormatError
from towerpack.dataflow._opening import OpenFile

_MOST_OPEN: Final = 64

Version = tuple[int, int]


def version_of(path: Path) -> Version:
    """What changes when a file does: its size, and when it was written."""
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns


class FilePool:
    """Opens files when they are read, and closes those that were opened longest ago.

    Safe to use from several threads; each process needs its own.

    Args:
        paths: The files.
        versions: What they were when they were looked at first; they must not have changed.
    """

    def __init__(self, paths: Sequence[Path], versions: Sequence[Version]) -> None:
        self._paths = paths
        self._versions = versions
        self._open: dict[int, OpenFile] = {}
        self._lock = threading.Lock()

    def get(self, index: int) -> OpenFile:
        """One of the files.

        Raises:
            FormatError: It was changed.
        """
        file = self._open.get(index)
        if file is not None:
            return file
        path = self._paths[index]
        if version_of(path) != self._versions[index]:
            raise FormatError(
                f"{path} was changed while it was read.",
                fix="write to another file, and build the flow anew when it is whole",
            )
        with self._lock:
            while len(self._open) >= _MOST_OPEN:
                del self._open[next(iter(self._open))]
            # A thread that still reads what was dropped keeps it open.
            return self._open.setdefault(index, OpenFile(path))
