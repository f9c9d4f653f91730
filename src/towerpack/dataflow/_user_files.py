"""Helpers for users' files: check paths, open files per process, report parser errors."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import cast, overload

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, FormatError, TowerpackError
from towerpack._core.open_files import OpenFile as OpenFile
from towerpack._core.open_files import PerProcess as PerProcess
from towerpack._core.remote_path import is_url
from towerpack.dataflow._remote_files import HEAD_BYTES, RemoteFile, expanded, remote_files, urls_of
from towerpack.dataflow.arguments import repr_of

PathLike = str | os.PathLike[str]
AnyFile = Path | RemoteFile

# Deflate, the usual compression, expands one byte to at most 1,032 bytes.
_MOST_EXPANSION = 1032
_ALWAYS_ALLOWED = 64 << 20


def path_of(path: object) -> Path:
    """Convert an argument to a path, which may not exist. Raise `ConfigError` for other types."""
    if not isinstance(path, (str, os.PathLike)):
        raise ConfigError(f"A path must be a str or a pathlib.Path, got {repr_of(path)}.")
    if is_url(cast("object", path)):
        fix = "copy the data to a local disk; TarData, ParquetData and TFRecordData read URLs"
        raise ConfigError(f"A local path is needed, got the URL {path}.", fix=fix)
    return Path(cast("PathLike", path))


def file_of(path: PathLike) -> Path:
    file = path_of(path)
    if not file.is_file():
        problem = f"{file} is a directory" if file.is_dir() else f"There is no file {file}"
        raise ConfigError(f"{problem}.", expected="a file")
    return file


def any_file_of(path: PathLike) -> AnyFile:
    return remote_files([str(path)])[0] if is_url(path) else file_of(path)


def open_file(file: AnyFile) -> OpenFile | RemoteFile:
    return file if isinstance(file, RemoteFile) else OpenFile(file)


def head_of(file: AnyFile) -> bytes:
    """Return the first bytes of a file, at most `HEAD_BYTES`."""
    if isinstance(file, RemoteFile):
        return file.head()
    with file.open("rb") as opened:
        return opened.read(HEAD_BYTES)


def files_of(paths: PathLike | Sequence[PathLike]) -> list[AnyFile]:
    """Return the files of one or more paths or URLs, or of a pattern such as `train-*.tar`."""
    names: Iterable[PathLike]
    if isinstance(paths, Iterable) and not isinstance(paths, (str, bytes, os.PathLike)):
        names = paths
    elif is_url(paths):
        names = urls_of(str(paths))
    else:
        names = _matches(str(path_of(paths)))
    names = list(names)
    urls = [str(name) for name in names if is_url(name)]
    remote = iter(remote_files(urls) if urls else ())
    files = [next(remote) if is_url(name) else file_of(name) for name in names]
    if not files:
        raise ConfigError(f"There are no files {paths!r:.80}.", expected="one or more files")
    return files


def _matches(pattern: str) -> list[str]:
    if os.path.exists(pattern):
        return [pattern]
    patterns = expanded(pattern)
    return [
        name
        for each in patterns
        for name in (sorted(glob.glob(each, recursive=True)) if glob.has_magic(each) else [each])
    ]


class reading:  # noqa: N801 - named like those of contextlib
    """Context manager that converts errors of a parser to a `FormatError` naming the file.

    Towerpack's own errors and `MemoryError` pass. `what` names the format, such as "an npz file".
    """

    # Not a generator: since Python 3.12, an error that contextlib raises from another one is part
    # of a reference cycle, which would keep open files alive.

    def __init__(self, path: PathLike | RemoteFile, what: str) -> None:
        self._path = path
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, (TowerpackError, MemoryError)):
            return
        fix = "write or download the file again, because it is damaged or has another format"
        # LMDB has an error class for each kind of damage, and these two for other failures.
        name = f"{type(error).__module__}.{type(error).__name__}"
        unusable = isinstance(error, (BlockingIOError, PermissionError))
        if unusable or name in ("lmdb.Error", "lmdb.LockError"):
            fix = "close the file in all programs that use it, and check its permissions"
        raise FormatError(
            f"{self._path} cannot be read as {self._what}.",
            got=f"{type(error).__name__}: {error}",
            fix=fix,
        ) from error


def check_expansion(nbytes: int, stored: int, what: str, path: PathLike | RemoteFile) -> None:
    """Raise a `FormatError` if a file's `stored` bytes cannot expand to `nbytes` bytes."""
    most = _ALWAYS_ALLOWED + _MOST_EXPANSION * stored
    if not 0 <= nbytes <= most:
        raise FormatError(
            f"{what} of {path} claims {nbytes:,} bytes, which is implausible.",
            got=f"{stored:,} bytes in the file",
            expected=f"at most {most:,} bytes",
            fix="write or download the file again, because it is damaged",
        )


class Strings(Sequence[str]):
    """Sequence of strings in one buffer, which saves memory. Strings need not be valid UTF-8."""

    def __init__(self, strings: Iterable[str]) -> None:
        buffer = bytearray()
        ends = [0]
        for string in strings:
            buffer += string.encode("utf-8", "surrogateescape")
            ends.append(len(buffer))
        self._buffer = bytes(buffer)
        self._ends = np.asarray(ends, np.int64)

    @classmethod
    def from_arrays(cls, buffer: NDArray[np.uint8], ends: NDArray[np.int64]) -> Strings:
        """Return the strings of `arrays`."""
        strings = cls(())
        strings._buffer, strings._ends = buffer.tobytes(), ends
        return strings

    @property
    def arrays(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """The bytes of all strings, and where each string ends, after a zero."""
        return np.frombuffer(self._buffer, np.uint8), self._ends

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
            raise IndexError(f"index {index} is out of range for {len(self)} strings")
        start, end = self._ends[position : position + 2].tolist()
        return self._buffer[start:end].decode("utf-8", "surrogateescape")
