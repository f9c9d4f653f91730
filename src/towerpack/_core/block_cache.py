"""Bounded cache of byte blocks in a folder, which processes share."""

from __future__ import annotations

import os
import sys
import threading
import time
import zlib
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from towerpack._core.logs import get_logger
from towerpack._core.open_files import OpenFile

if sys.platform != "win32":
    import fcntl

_log = get_logger(__name__)
_CRC_BYTES: Final = 4
_COUNTER_BYTES: Final = 8
_KEPT: Final = 0.9  # fraction of the limit that remains after the oldest blocks were removed
_POLL_S: Final = 0.005
_LOCK: Final = "lock"
_TEMPORARY: Final = "incomplete"


class BlockCache:
    """Cache of blocks by their keys: hexadecimal texts of at least 16 characters.

    Each block is a file with a checksum, which is checked at its first use in each process. The
    least recently used blocks are removed before the folder exceeds `limit` bytes. Thread-safe.
    Processes may share the folder, and may be killed at any time.

    If the folder cannot be written, for example because the disk is full, nothing more is stored
    and a warning is logged.

    Args:
        folder: Folder used only for this cache. It is created if necessary.
        limit: Limit of the sizes of all files in the folder, in bytes.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = folder
        self._limit = limit - _COUNTER_BYTES
        self._mutex = threading.Lock()
        self._checked: set[str] = set()
        self._fd = -1  # never closed: closing it would release the locks of the process
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            self._disable(error)

    def __contains__(self, key: str) -> bool:
        """Return whether there is a block, without checking its content."""
        return (self._folder / key).exists()

    def open(self, key: str) -> OpenFile | None:
        """Open the file of a block, whose content a checksum follows. Return None as `read`."""
        if key not in self._checked and self._content(key) is None:
            return None
        try:
            file = OpenFile(self._folder / key)
            os.utime(self._folder / key)
        except OSError:  # another process has removed the block
            return None
        return file

    def read(self, key: str) -> bytes | None:
        """Return the content of a block. Return None if it is missing or damaged."""
        content = self._content(key)
        return None if content is None else bytes(content)

    def _content(self, key: str) -> memoryview | None:
        path = self._folder / key
        try:
            block = memoryview(path.read_bytes())
            content = block[:-_CRC_BYTES]
            if bytes(block[-_CRC_BYTES:]) != _crc(content, key):
                path.unlink()
                return None
            os.utime(path)
        except OSError:
            return None
        self._checked.add(key)
        return content

    def put(self, key: str, data: bytes) -> None:
        """Store a block, if the cache can be written and the block is not larger than the limit."""
        size = len(data) + _CRC_BYTES
        if size > self._limit:
            return
        checksum = _crc(data, key)
        try:
            with self._mutex, _region(self._fd, 0):
                self._reserve(size)
                temporary = self._folder / _TEMPORARY
                with temporary.open("wb") as file:
                    file.write(data)
                    file.write(checksum)
                temporary.replace(self._folder / key)
        except OSError as error:
            with suppress(OSError):
                (self._folder / _TEMPORARY).unlink()
            self._disable(error)
        else:
            self._checked.add(key)

    @contextmanager
    def claim(self, key: str, *, wait: bool) -> Generator[bool]:
        """Claim a block, so that other processes do not fetch it. Yield whether it is claimed.

        Args:
            key: Key of the block.
            wait: Whether to wait while another process holds the claim.
        """
        place = 1 + int(key[:15], 16)
        while not (claimed := self._limit <= 0 or _try_lock(self._fd, place)) and wait:
            time.sleep(_POLL_S)
        try:
            yield claimed
        finally:
            if claimed and self._fd >= 0:
                _unlock(self._fd, place)

    def _reserve(self, size: int) -> None:
        """Count `size` more bytes, and remove old blocks if the sum would exceed the limit."""
        counter = os.pread(self._fd, _COUNTER_BYTES, 0)
        used = int.from_bytes(counter, "little") + size
        if len(counter) < _COUNTER_BYTES or used > self._limit:
            used = size + self._shrink(min(self._limit - size, int(_KEPT * self._limit)))
        os.pwrite(self._fd, used.to_bytes(_COUNTER_BYTES, "little"), 0)

    def _shrink(self, most: int) -> int:
        """Remove the least recently used blocks until the others have `most` bytes together."""
        (self._folder / _TEMPORARY).unlink(missing_ok=True)  # of a process that was killed
        blocks: list[tuple[int, int, str]] = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    status = entry.stat()
                    blocks.append((status.st_mtime_ns, status.st_size, entry.name))
        blocks = sorted(block for block in blocks if block[2] != _LOCK)
        used = sum(size for _, size, _ in blocks)
        for _, size, name in blocks:
            if used <= most:
                break
            (self._folder / name).unlink(missing_ok=True)
            used -= size
        return used

    def _disable(self, error: OSError) -> None:
        if self._limit > 0:
            _log.warning("The cache %s cannot be written, and is not used: %s", self._folder, error)
        self._limit = 0


_caches: dict[tuple[int, str], BlockCache] = {}


def block_cache(folder: str, limit: int) -> BlockCache:
    """Return the process's only object for a cache folder, because locks belong to processes."""
    key = os.getpid(), folder
    return _caches.get(key) or _caches.setdefault(key, BlockCache(Path(folder), limit))


def _crc(data: bytes | memoryview, key: str) -> bytes:
    return zlib.crc32(data, int(key[:8], 16)).to_bytes(_CRC_BYTES, "little")


# Locks of POSIX are not inherited by a fork, and end with the process.
@contextmanager
def _region(fd: int, place: int) -> Generator[None]:
    if sys.platform != "win32":
        fcntl.lockf(fd, fcntl.LOCK_EX, 1, place)
    try:
        yield
    finally:
        _unlock(fd, place)


def _try_lock(fd: int, place: int) -> bool:
    if sys.platform != "win32":
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except (BlockingIOError, PermissionError):
            return False
        except OSError:  # the file system has no locks: fetch the block
            return True
    return True


def _unlock(fd: int, place: int) -> None:
    if sys.platform != "win32":
        with suppress(OSError):
            fcntl.lockf(fd, fcntl.LOCK_UN, 1, place)
