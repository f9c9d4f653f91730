"""Files of the user's: named, found, opened once in each process, and never believed."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar, cast, overload

import numpy as np

from towerpack._core.errors import ConfigError, FormatError, TowerpackError
from towerpack.dataflow.arguments import given

T = TypeVar("T")

PathLike = str | os.PathLike[str]

# Deflate, the usual compression, makes at most 1,032 bytes of one.
_MOST_EXPANSION = 1032
_ALWAYS_ALLOWED = 64 << 20


class PerProcess(Generic[T]):
    """A resource that each process opens when it first needs it. Pickled unopened."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._opened: tuple[int, T] | None = None

    def get(self) -> T:
        opened = self._opened
        pid = os.getpid()
        if opened is None or opened[0] != pid:
            opened = (pid, self._make())
            self._opened = opened  # one assignment: safe between threads
        return opened[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}


class OpenFile:
    """A file descriptor for reading at offsets, from any thread; closed with the last reference."""

    def __init__(self, path: PathLike) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read_at(self, offset: int, nbytes: int) -> bytes:
        data = os.pread(self._fd, nbytes, offset)
        if len(data) in (0, nbytes):
            return data
        # One call gives 2 GB at most.
        return data + self.read_at(offset + len(data), nbytes - len(data))

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if hasattr(self, "_fd"):
            close(self._fd)


def path_of(path: object) -> Path:
    """A path that may be there or not; a `ConfigError` for what names nothing."""
    if not isinstance(path, (str, os.PathLike)):
        raise ConfigError("This is no path.", got=given(path), expected="a str or a pathlib.Path")
    return Path(cast("PathLike", path))


def file_of(path: PathLike) -> Path:
    found = path_of(path)
    if not found.is_file():
        got = "a directory" if found.is_dir() else "nothing there"
        raise ConfigError(f"There is no file {found}.", got=got, expected="a file")
    return found


def files_of(paths: PathLike | Sequence[PathLike]) -> list[Path]:
    """One file, several, or those that a pattern such as `train-*.tar` names, sorted."""
    named: Iterable[PathLike]
    if isinstance(paths, Iterable) and not isinstance(paths, (str, bytes, os.PathLike)):
        named = paths
    else:
        pattern = str(path_of(paths))
        is_pattern = glob.has_magic(pattern) and not os.path.exists(pattern)
        named = sorted(glob.glob(pattern, recursive=True)) if is_pattern else [pattern]
    found = [file_of(path) for path in named]
    if not found:
        raise ConfigError(f"There are no files {paths!r:.80}.", expected="one or more")
    return found


class reading:  # noqa: N801 - as those of contextlib
    """Turn what a parser raises in a `with` block into a `FormatError` that names the file.

    Our own errors and `MemoryError` pass. `what` is what it should be: "an npz file".
    """

    # No generator: from Python 3.12 on, an error that one of contextlib's raises over another is in
    # a cycle. Its frames, and what is open in them, would live until garbage is collected.

    def __init__(self, path: PathLike, what: str) -> None:
        self._path = path
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, (TowerpackError, MemoryError)):
            return
        fix = "the file is damaged or of another format; write or fetch it again"
        # LMDB has an error of its own for each kind of damage, and these two for other failures.
        name = f"{type(error).__module__}.{type(error).__name__}"
        unusable = isinstance(error, (BlockingIOError, PermissionError))
        if unusable or name in ("lmdb.Error", "lmdb.LockError"):
            fix = "close the file where it is open, also in other programs; check its permissions"
        raise FormatError(
            f"{os.fspath(self._path)} cannot be read as {self._what}.",
            got=f"{type(error).__name__}: {error}",
            fix=fix,
        ) from error


def check_expansion(nbytes: int, stored: int, what: str, path: PathLike) -> None:
    """Refuse data that claim to be far larger than the `stored` bytes of the file allow."""
    most = _ALWAYS_ALLOWED + _MOST_EXPANSION * stored
    if not 0 <= nbytes <= most:
        raise FormatError(
            f"{what} of {os.fspath(path)} claims {nbytes:,} bytes.",
            got=f"{stored:,} bytes in the file",
            expected=f"at most {most:,} bytes",
            fix="the file is damaged; write or fetch it again",
        )


class Strings(Sequence[str]):
    """Strings, also names of files that are not UTF-8, as one buffer: a million in few objects."""

    def __init__(self, strings: Iterable[str]) -> None:
        buffer = bytearray()
        ends = [0]
        for string in strings:
            buffer += string.encode("utf-8", "surrogateescape")
            ends.append(len(buffer))
        self._buffer = bytes(buffer)
        self._ends = np.asarray(ends, np.int64)

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"{index} is not within {len(self)} strings")
        start, end = self._ends[position : position + 2].tolist()
        return self._buffer[start:end].decode("utf-8", "surrogateescape")
