"""Atomic and durable writing of files, and text of CSV files."""

import csv
import errno
import io
import json
import logging
import os
import secrets
import stat
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from towerpack._core.errors import ConfigError

T = TypeVar("T")
_DAMAGE = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError)
_log = logging.getLogger(__name__)  # `logs.py` imports this module.
_NO_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


def open_regular(path: str | os.PathLike[str], flags: int, mode: int = 0o644) -> int:
    """Open a regular file. Reject pipes and devices, which could block forever."""
    fd = os.open(path, flags | _NO_WAIT, mode)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise ConfigError(
        f"{path} must be a file, not a pipe, device or folder.",
        fix="name a regular file, or remove the pipe, device or folder of this name",
    )


def open_plain(path: Path | str, flags: int, mode: int = 0o644) -> int:
    """Open a regular file. Reject links, through which a write would change another file."""
    try:
        fd = open_regular(path, flags | getattr(os, "O_NOFOLLOW", 0), mode)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise ConfigError(
            f"{path} must not be a symbolic link: writing would change {os.path.realpath(path)}.",
            fix="remove the link",
        ) from error
    if os.fstat(fd).st_nlink < 2:
        return fd
    os.close(fd)
    raise ConfigError(
        f"{path} must not have hard links: writing would change a file in another folder too.",
        fix="copy the folder of the file with `cp -r`, and use the copy",
    )


def refuse_link(path: Path) -> Path:
    """Raise ConfigError if a path is a link, which may lead to files of the user elsewhere."""
    if path.is_symlink():
        raise ConfigError(
            f"{path} must not be a link, because it may lead outside of its folder.",
            got=f"a link to {os.readlink(path)}",
            fix="replace the link with a copy, or put the whole folder elsewhere",
        )
    return path


def read_regular(path: str | os.PathLike[str]) -> bytes:
    with open(path, "rb", opener=open_regular) as file:
        return file.read()


def json_lines(data: bytes, path: object, parse: Callable[[Any], T]) -> list[T]:
    """Parse the JSON value of each complete line of a file. Skip damaged lines with a warning."""
    parsed: list[T] = []
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), 1):
        try:
            parsed.append(parse(json.loads(line)))
        except _DAMAGE as error:
            _log.warning("Skipped line %d of %s, which is damaged: %r.", number, path, error)
    return parsed


def user_cache() -> Path:
    """Return the directory for cached files of this user: `~/.cache/towerpack`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "towerpack"


def fsync_dir(path: Path) -> None:
    """Sync a directory to the disk, so that new and renamed files survive a power failure."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_bytes_synced(path: Path, data: bytes | bytearray | memoryview) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with open(open_plain(path, flags, 0o666), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def replacing(path: Path) -> Generator[Path]:
    """Yield a file name that replaces `path` at the end of the block, unless an error is raised.

    The block must sync the file. The name is random, so that no link can wait there.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    fsync_dir(path.parent)


def replace_file(path: Path, data: bytes) -> None:
    """Replace the content of `path` atomically."""
    with replacing(path) as temporary:
        write_bytes_synced(temporary, data)


def csv_of(rows: Iterable[Iterable[Any]]) -> bytes:
    """Return table rows as a CSV file in UTF-8. Escape bytes of file names that are not UTF-8."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode("utf-8", "backslashreplace")


def append_whole(fd: int, data: bytes) -> None:
    """Append all data to a file opened with `O_APPEND`, or no data if an OSError is raised."""
    end = os.fstat(fd).st_size
    try:
        written = os.write(fd, data)
        while written < len(data):
            written += os.write(fd, data[written:])
    except OSError:
        os.ftruncate(fd, end)  # Part of a line would damage the next line.
        raise


def open_lines(path: Path) -> int:
    """Open or create a text file for `append_whole`. Remove an incomplete last line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = open_plain(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    try:
        size = os.fstat(fd).st_size
        end = _end_of_last_line(fd, size)
        if end < size:
            _log.warning("%s: removed an incomplete last line (%d bytes).", path, size - end)
            os.ftruncate(fd, end)
    except BaseException:
        os.close(fd)
        raise
    return fd


def count_of(value: Any, most: int = 1 << 53) -> int:
    """Return a number from a log, such as a step. Raise ValueError unless it is in 0..`most`."""
    count = int(value)
    if not 0 <= count <= most:
        raise ValueError(f"{value!r:.40} is not a number from 0 to {most:,}")
    return count


def _end_of_last_line(fd: int, size: int) -> int:
    end = size
    while end > 0:
        start = max(0, end - 65536)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
