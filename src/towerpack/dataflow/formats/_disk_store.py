"""Datapoints on disk by their positions: what several processes have computed so far.

A directory with a file that says what it belongs to, and parts. Each process that computes
something locks a part and appends to it, so no two ever write to one file at a time, and a process
that is killed leaves at most one record that is not whole.

    position (uint64) | length (uint64) | CRC of these (uint32) | CRC of the data (uint32) | data
"""

from __future__ import annotations

import importlib
import os
import secrets
import struct
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from towerpack._core.errors import ConfigError, FormatError, InternalError
from towerpack._core.logs import get_logger
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._opening import OpenFile
from towerpack.dataflow.formats._whole_file import whole_file
from towerpack.dataflow.formats._wire import pack, unpack

log = get_logger(__name__)

MISSING: Final = object()
"""What is read where nothing is."""

_ABOUT: Final = "about"
_HEADER: Final = struct.Struct("<QQII")
_PLACE: Final = struct.Struct("<QQ")
_END: Final = (1 << 64) - 1  # the length of a record that says: the pass ends here
_LOOK_EVERY_S: Final = 1.0


class DiskStore:
    """Datapoints by position. Safe to use from several threads; each process opens its own.

    Args:
        path: The directory; made if it is not there.
        identity: What the datapoints are a function of; must be that of all who use the directory.

    Raises:
        ConfigError: The directory belongs to something else.
    """

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self.path = path
        self.end: int | None = None
        self._lock = threading.Lock()
        self._parts: list[_Part] = []
        self._names: set[str] = set()
        self._own: int | None = None
        self._part_of = np.full(1024, -1, np.int32)
        self._offset_of = np.zeros(1024, np.int64)
        self._looked = 0.0
        _claim(path, identity)
        self.look()

    def holds(self, position: int) -> bool:
        """Whether a datapoint is known to be there."""
        return position < len(self._part_of) and bool(self._part_of[position] >= 0)

    def read(self, position: int) -> Datapoint:
        """A datapoint, or `MISSING`."""
        if not self.holds(position) and time.monotonic() - self._looked > _LOOK_EVERY_S:
            self.look()
        if not self.holds(position):
            return MISSING
        part = self._parts[int(self._part_of[position])]
        try:
            return part.read(position, int(self._offset_of[position]))
        except FormatError as error:
            log.warning("%s; datapoint %d is computed again", error.what, position)
            self._part_of[position] = -1
            return MISSING

    def append(self, position: int, datapoint: Datapoint) -> None:
        """Keep a datapoint."""
        data = pack(datapoint)
        self._write(position, len(data), data)

    def append_end(self, length: int) -> None:
        """Keep the length of a pass."""
        self._write(length, _END, b"")
        self.end = length

    def look(self) -> None:
        """See what other processes have added."""
        with self._lock:
            self._looked = time.monotonic()
            for name in sorted(os.listdir(self.path)):
                if name.endswith(".part") and name not in self._names:
                    self._open_part(name)
            for index, part in enumerate(self._parts):
                if index != self._own:
                    for position, length, offset in part.new_records():
                        self._note(index, position, length, offset)

    def _note(self, part: int, position: int, length: int, offset: int) -> None:
        if length == _END:
            self.end = position
            return
        while position >= len(self._part_of):
            more = len(self._part_of)
            self._offset_of = np.concatenate((self._offset_of, np.zeros(more, np.int64)))
            self._part_of = np.concatenate((self._part_of, np.full(more, -1, np.int32)))
        self._offset_of[position] = offset
        self._part_of[position] = part  # the last: other threads read when this is set

    def _write(self, position: int, length: int, data: bytes) -> None:
        place = _PLACE.pack(position, length)
        header = place + struct.pack("<II", zlib.crc32(place), zlib.crc32(data))
        with self._lock:
            if self._own is None:
                self._own = self._take_part()
            offset = self._parts[self._own].append(header + data)
            self._note(self._own, position, length, offset)

    def _open_part(self, name: str, *, new: bool = False) -> None:
        path = self.path / name
        if new:
            path.touch(exist_ok=False)
        self._names.add(name)
        self._parts.append(_Part(path))

    def _take_part(self) -> int:
        """A part to append to: one that nobody writes to any more, or a new one."""
        index = 0
        while True:
            if index == len(self._parts):
                # Somebody else may take it before this one does; then there is another round.
                self._open_part(f"{os.getpid()}-{secrets.token_hex(4)}.part", new=True)
            part = self._parts[index]
            if part.take():
                break
            index += 1
        for record in part.new_records():
            self._note(index, *record)
        part.cut()
        return index


class _Part:
    """One file of records."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: _Lock | None = None
        self._file = OpenFile(path)
        self._seen = 0

    def take(self) -> bool:
        """Become the one who writes to it, until this process ends; False if there is one."""
        lock = _Lock(self.path)
        self._lock = lock if lock.held else None
        return lock.held

    def cut(self) -> None:
        """Remove what a writer left that is not whole."""
        os.truncate(self.path, self._seen)

    def append(self, record: bytes) -> int:
        """Write a record at the end; where it begins."""
        if self._lock is None:
            raise InternalError(f"{self.path} is another's to write to.")
        offset = self._seen
        rest = memoryview(record)
        while len(rest):
            rest = rest[os.pwrite(self._lock.fd, rest, offset + len(record) - len(rest)) :]
        self._seen += len(record)
        return offset

    def new_records(self) -> list[tuple[int, int, int]]:
        """Position, length and offset of what was added since the last call.

        Stops at a record that is not whole: it is being written, or its writer was killed.
        """
        found: list[tuple[int, int, int]] = []
        size = self.path.stat().st_size
        while self._seen + _HEADER.size <= size:
            header = self._file.read_at(self._seen, _HEADER.size)
            position, length, crc, _ = _HEADER.unpack(header)
            nbytes = 0 if length == _END else length
            whole = self._seen + _HEADER.size + nbytes <= size
            if not whole or crc != zlib.crc32(header[: _PLACE.size]) or position >= 1 << 40:
                break
            found.append((position, length, self._seen))
            self._seen += _HEADER.size + nbytes
        return found

    def read(self, position: int, offset: int) -> Datapoint:
        """The datapoint of a record.

        Raises:
            FormatError: It is damaged.
        """
        found, length, crc, data_crc = _HEADER.unpack(self._file.read_at(offset, _HEADER.size))
        place = zlib.crc32(_PLACE.pack(found, length))
        data = self._file.read_at(offset + _HEADER.size, length) if place == crc else b""
        if found != position or len(data) != length or zlib.crc32(data) != data_crc:
            raise FormatError(f"{self.path} has a damaged record at byte {offset:,}")
        return unpack(data, copy=True)


class _Lock:
    """A file descriptor for writing that only one process has; closed with the last reference.

    The system gives the lock back when the process ends, however it ends.
    """

    def __init__(self, path: Path) -> None:
        fcntl: Any = importlib.import_module("fcntl")  # Windows lacks it; there only this fails
        self.fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.held = False
        else:
            self.held = True

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if hasattr(self, "fd"):
            close(self.fd)


def _claim(path: Path, identity: dict[str, Any]) -> None:
    """Say what a new directory belongs to, or check it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"The directory {path} cannot be made: {error.strerror}.", fix="give another one"
        ) from error
    about = path / _ABOUT
    if not about.exists():
        # Others may be making it at this moment.
        foreign = [name for name in os.listdir(path) if not name.startswith(f".{_ABOUT}")]
        if foreign and not about.exists():
            raise ConfigError(
                f"{path} holds something else than a cache.", fix="give a new directory"
            )
        with whole_file(about) as temporary:
            temporary.write_bytes(pack(identity))
    try:
        found = unpack(about.read_bytes())
    except FormatError as error:
        raise ConfigError(f"{about} is damaged.", fix=f"delete {path}") from error
    if found != identity:
        raise ConfigError(
            f"{path} is the cache of another pipeline.",
            got=_listed(found),
            expected=_listed(identity),
            fix="delete the directory, or give another one",
        )


def _listed(identity: Any) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in dict(identity).items())
