"""A lock between processes that the kernel releases when its holder dies."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Final

from towerpack._core.files import open_plain, open_regular
from towerpack._core.logs import get_logger

if sys.platform != "win32":
    import fcntl

_logger = get_logger(__name__)
_UNSUPPORTED: Final = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


class LockHeldError(Exception):
    """Another holder has the lock. Internal: owners turn it into their own error.

    Attributes:
        holder: What the holder wrote about itself, for example `pid 4711`, or "unknown".
    """

    def __init__(self, holder: str) -> None:
        self.holder = holder
        super().__init__(holder)


class FileLock:
    """An exclusive `flock` on a file, which stays behind when unlocked (removing it would race).

    The lock belongs to this object, not to the process: a second `FileLock` on the same file is
    refused in the same process too. A child made by `fork` without `exec` shares it.
    Where the file system has no locks (and on Windows) it warns and protects nothing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def acquire(self) -> bool:
        """Take the lock without waiting; False if this place cannot lock at all.

        Raises:
            LockHeldError: Somebody else holds it.
            ConfigError: The lock file is a link.
            OSError: It cannot be made.
        """
        if self._fd is not None:
            return True
        fd = open_plain(self.path, os.O_RDWR | os.O_CREAT)
        try:
            if not _flock(fd, self.path):
                os.close(fd)
                return False
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"pid {os.getpid()}\n".encode(), 0)
        except BlockingIOError:
            holder = os.pread(fd, 100, 0).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise LockHeldError(holder) from None
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        return True

    def release(self) -> None:
        """Give the lock back; harmless when it is not held."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            self.release()


@contextlib.contextmanager
def locked(
    path: Path, *, look_again_s: float, waiting: Callable[[str, float], None] | None = None
) -> Generator[None]:
    """Hold the lock on a file; look for it every `look_again_s` seconds until it is free.

    `waiting` is called after each attempt in vain, with the holder and the seconds waited so far.
    """
    lock = FileLock(path)
    waited = 0.0
    while True:
        try:
            lock.acquire()
            break
        except LockHeldError as error:
            if waiting is not None:
                waiting(error.holder, waited)
            time.sleep(look_again_s)
            waited += look_again_s
    try:
        yield
    finally:
        lock.release()


def is_held(path: Path) -> bool:
    """True if somebody holds the lock on a file, which stays as it is; False without a file."""
    try:
        fd = open_regular(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        if sys.platform != "win32":
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    finally:
        os.close(fd)
    return False


def _flock(fd: int, path: Path) -> bool:
    if sys.platform == "win32":
        _logger.warning("No lock on %s: not supported on Windows.", path)
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        _logger.warning("No lock on %s: the file system has none (%s).", path, error.strerror)
        return False
    return True
