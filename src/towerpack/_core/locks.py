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
    """Lock that another process or object holds. Internal: callers raise an error of their own.

    Attributes:
        holder: Description of the holder, such as `pid 4711`, or "unknown".
    """

    def __init__(self, holder: str) -> None:
        self.holder = holder
        super().__init__(holder)


class FileLock:
    """Exclusive `flock` on a file. The file remains after unlocking, to avoid races.

    The lock belongs to this object: a second `FileLock` in the same process cannot acquire it.
    A child process made by `fork` without `exec` shares the lock. On Windows and on file systems
    without locks, `acquire` only logs a warning.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def acquire(self) -> bool:
        """Acquire the lock without waiting. Return False if locks are not supported.

        Raises:
            LockHeldError: Another process or object holds the lock.
            ConfigError: The lock file is a link.
            OSError: The lock file cannot be created.
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
    """Hold the lock on a file during a `with` block. Retry every `look_again_s` seconds.

    After each failed attempt, call `waiting` with the lock's holder and the seconds waited so far.
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
    """Return whether some process holds the lock on a file. The file is not changed."""
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
        _logger.warning("Cannot lock %s: locks are not supported on Windows.", path)
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        _logger.warning("Cannot lock %s: the file system has no locks (%s).", path, error.strerror)
        return False
    return True
