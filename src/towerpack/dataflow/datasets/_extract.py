"""Archives taken apart without believing them: they may be damaged, or made to do harm."""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import stat
import zipfile
from collections.abc import Generator, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO

from towerpack._core.errors import DataFlowError, FormatError
from towerpack.dataflow._opening import PathLike, file_of, reading
from towerpack.dataflow.datasets._download import RemoteFile
from towerpack.dataflow.datasets._location import only_one
from towerpack.dataflow.datasets._progress import byte_progress
from towerpack.dataflow.formats._tar_members import (
    CompressedTar,
    PlainTar,
    is_compressed,
    members,
)

_READ = 1 << 20
_MOST_EXPANSION = 100
_ALWAYS_ALLOWED = 64 << 20
_MOST_FILES = 4_000_000
_LONGEST_NAME = 1024
_ZIP_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}

Content = tuple[str, Iterator[bytes]]
"""Name and bytes of a file in an archive. The bytes have to be taken before the next file is."""


def extract(archive: PathLike, folder: PathLike, *, max_bytes: int | None = None) -> Path:
    """Take apart a tar archive (plain, gzip, bzip2, xz), a zip archive, or a gzipped file.

    Only files with names inside of `folder` are made, and nothing is ever written through a link.
    They appear when the whole archive has been read and its checks passed. Files of the same names
    are replaced.

    Args:
        archive: Its kind is told from its bytes.
        folder: Where to; made if need be.
        max_bytes: The most that may come out; by default 100 times the archive, and 64 MB at
            least.

    Returns:
        `folder`.

    Raises:
        FormatError: The archive is damaged, names a file outside of it, holds a link, a device or
            encrypted files, or is far larger inside than outside.
        DataFlowError: Writing failed.
    """
    archive, folder = file_of(archive), Path(folder)
    if max_bytes is None:
        max_bytes = _ALWAYS_ALLOWED + _MOST_EXPANSION * archive.stat().st_size
    temporary = folder / f".{archive.name}.extracting"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with only_one(temporary):
            shutil.rmtree(temporary, ignore_errors=True)  # of a process that was killed
            temporary.mkdir()
            try:
                _write(archive, temporary, max_bytes)
                _merge(temporary, folder)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise DataFlowError(
            f"{archive} cannot be extracted to {folder}.",
            got=str(error),
            fix="see that there is room, and that the directory may be written to",
        ) from error
    return folder


def fetch_member(remote: RemoteFile, folder: Path, name: str) -> Path:
    """A file or folder of an archive's, below `folder`; the archive is fetched if it is missing.

    Raises:
        FormatError: The archive does not have it.
    """
    wanted = folder / name
    if not wanted.exists():
        archive = remote.fetch(folder)
        with only_one(archive.with_name(f"{archive.name}.content")):
            if not wanted.exists():
                extract(archive, folder)
    if not wanted.exists():
        raise FormatError(
            f"There is no {name} in {folder}, nor in the archive {remote.name}.",
            fix=f"delete {folder / remote.name} and try again, or put {name} there",
        )
    return wanted


def _write(archive: Path, folder: Path, max_bytes: int) -> None:
    done = 0
    with (
        byte_progress(f"extracting {archive.name}") as report,
        contextlib.closing(_contents(archive)) as contents,
    ):
        for count, (name, parts) in enumerate(contents):
            if count >= _MOST_FILES:
                raise _hostile(archive, f"more than {_MOST_FILES:,} files")
            target = folder.joinpath(*_inside(archive, name))
            with _new_file(archive, target, name) as file:
                for part in parts:
                    done += len(part)
                    if done > max_bytes:
                        raise _hostile(archive, f"more than {max_bytes:,} bytes")
                    file.write(part)
            report(done, None)


def _contents(archive: Path) -> Generator[Content]:
    with open(archive, "rb") as file:
        start = file.read(4)
    if start in (b"PK\x03\x04", b"PK\x05\x06"):
        yield from _zip(archive)
    elif archive.name.lower().endswith(".gz") and not archive.name.lower().endswith(".tar.gz"):
        yield from _gzip(archive)
    else:
        yield from _tar(archive)


def _tar(archive: Path) -> Generator[Content]:
    tar = CompressedTar(archive) if is_compressed(archive) else PlainTar(archive)
    with contextlib.closing(tar):
        for name, offset, nbytes in members(tar, only_files=True):
            yield name, _tar_member(tar, offset, nbytes)


def _tar_member(tar: CompressedTar | PlainTar, offset: int, nbytes: int) -> Generator[bytes]:
    end = offset + nbytes
    while offset < end:
        part = tar.read_at(offset, min(_READ, end - offset))
        if not part:
            raise FormatError(
                f"{tar.path} is not a whole tar archive.",
                got="it ends within a file",
                fix="it was cut off; fetch it again",
            )
        yield part
        offset += len(part)


def _zip(archive: Path) -> Generator[Content]:
    with reading(archive, "a zip archive"), zipfile.ZipFile(archive) as content:
        for info in content.infolist():
            # The upper half holds the mode of archives that were made on Unix; else it is 0.
            kind = stat.S_IFMT(info.external_attr >> 16)
            if info.is_dir():
                continue
            if kind not in (0, stat.S_IFREG):
                raise _hostile(archive, f"{info.filename!r}, a link or device")
            if info.compress_type not in _ZIP_METHODS:
                raise _hostile(archive, f"{info.filename!r}, compressed in an odd way")
            # `filename` ends at a zero byte; what is behind it is hidden from the checks.
            with content.open(info) as file:
                yield info.orig_filename, _parts(archive, file)


def _gzip(archive: Path) -> Generator[Content]:
    with gzip.open(archive, "rb") as file:
        yield archive.name[: -len(".gz")], _parts(archive, file)


def _parts(archive: Path, file: IO[bytes] | gzip.GzipFile) -> Generator[bytes]:
    while True:
        with reading(archive, "an archive"):
            part = file.read(_READ)
        if not part:
            return
        yield part


def _inside(archive: Path, name: str) -> tuple[str, ...]:
    """The parts of a name that stays inside on every system."""
    path = PurePosixPath(name)
    # Windows takes all for a way out that POSIX does, and more.
    strictest = PureWindowsPath(name)
    if (
        not path.parts
        or ".." in strictest.parts
        or strictest.drive
        or strictest.root
        or "\\" in name
        or "\0" in name
        or len(name) > _LONGEST_NAME
    ):
        raise _hostile(archive, f"a file named {name[:200]!r}")
    return path.parts


def _new_file(archive: Path, target: Path, name: str) -> IO[bytes]:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        return open(target, "xb")
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise _hostile(archive, f"{name!r} twice, as a file and something else") from error


def _merge(source: Path, folder: Path) -> None:
    """Move everything into a folder; what is new there arrives at once, with all that is in it."""
    for entry in sorted(source.iterdir()):
        target = folder / entry.name
        if entry.is_dir() and target.is_dir():
            _merge(entry, target)
        else:
            os.replace(entry, target)


def _hostile(archive: Path, got: str) -> FormatError:
    return FormatError(
        f"{archive} is no archive of a data set.",
        got=got,
        expected="files with names inside of it, no larger than such data are",
        fix="delete it and fetch it from a place that you trust",
    )
