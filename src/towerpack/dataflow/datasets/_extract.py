"""Safe extraction of archives that may be damaged or malicious."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path, PureWindowsPath
from typing import IO, Any, Final, cast

from towerpack._core.errors import DataFlowError, FormatError, TowerpackError
from towerpack._core.logs import get_logger
from towerpack.dataflow._user_files import PathLike, file_of
from towerpack.dataflow.datasets._download import RemoteFile, exclusive

log = get_logger(__name__)

_READ = 1 << 20
_MOST_EXPANSION = 100
_ALWAYS_ALLOWED = 64 << 20
_LEAST_PER_MEMBER = 24  # bytes of an archive per file; real archives have more
_BYTES_PER_MEMBER = 64 << 10  # of `max_bytes`, so that it also raises the limit of files
_HEADERS_BYTES = 4096  # per file in a tar archive, with extended headers
# Errors of Python's modules for damaged, encrypted or unsupported archives.
_DAMAGED: Final = (
    tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError,
    IndexError, ValueError, OverflowError, RuntimeError,
)  # fmt: skip


def extract(archive: PathLike, folder: PathLike, *, max_bytes: int | None = None) -> Path:
    """Extract a tar archive (plain, gzip, bzip2, xz), a zip archive, or a gzipped file.

    Files are only created inside of `folder`. They appear after the whole archive was read and
    checked, and replace files of the same names.

    Args:
        archive: The archive. Its contents determine its kind.
        folder: Folder to extract to. It is created if necessary.
        max_bytes: Largest total size of the files (default: 64 MiB plus 100 times the archive).
            The largest number of files is 1,000, plus one for each 24 bytes of the archive and
            each 64 KiB of `max_bytes`.

    Returns:
        The folder.

    Raises:
        FormatError: The archive is damaged or too large when extracted, or contains links, devices,
            encrypted files or paths outside of the folder.
        DataFlowError: A file cannot be written.
    """
    archive, folder = file_of(archive), Path(folder)
    if max_bytes is None:
        max_bytes = _ALWAYS_ALLOWED + _MOST_EXPANSION * archive.stat().st_size
    temporary = folder / f".{archive.name}.extracting"
    log.info("extracting %s", archive)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive(temporary):
            shutil.rmtree(temporary, ignore_errors=True)  # left by a killed process
            temporary.mkdir()
            try:
                _unpack(archive, temporary, max_bytes)
                _merge(temporary, folder)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    except TowerpackError:
        raise
    except (OSError, *_DAMAGED) as error:
        if isinstance(error, OSError) and error.errno:
            what = f"{archive} cannot be extracted to {folder}."
            fix = "check the free disk space and the permissions of the directory"
            raise DataFlowError(what, got=str(error)[:500], fix=fix) from error
        raise FormatError(
            f"{archive} is not a valid archive of a data set.",
            got=f"{type(error).__name__}: {error}",
            expected="an archive of regular files of plausible size, whose paths stay inside "
            "the folder",
            fix="delete the archive and download it from a source that you trust",
        ) from error
    return folder


def fetch_member(remote: RemoteFile, folder: Path, name: str) -> Path:
    """Return the path of a file in an archive, after downloading and extracting the archive."""
    wanted = folder / name
    if not wanted.exists():
        archive = remote.fetch(folder)
        with exclusive(archive.with_name(f"{archive.name}.content")):
            if not wanted.exists():
                extract(archive, folder)
    if not wanted.exists():
        what = f"{name} is neither in {folder} nor in the archive {remote.name}."
        fix = f"delete {folder / remote.name} and try again, or copy {name} there"
        raise FormatError(what, fix=fix)
    return wanted


def _unpack(archive: Path, folder: Path, max_bytes: int) -> None:
    left, members = max_bytes, 0
    size = archive.stat().st_size
    most_members = 1000 + size // _LEAST_PER_MEMBER + max_bytes // _BYTES_PER_MEMBER

    def check(name: str, nbytes: int, is_file: bool = True) -> None:
        nonlocal left, members
        path = PureWindowsPath(name)  # detects all paths that escape on POSIX, and more
        if ".." in path.parts or path.drive or path.root or not path.parts:
            raise ValueError(f"{name!r:.200} is outside of the folder")
        if not is_file:
            raise ValueError(f"{name!r:.200} is a link or device")
        members += 1
        if members > most_members:
            raise ValueError(f"more than {most_members:,} files")
        left -= nbytes
        if left < 0:
            raise ValueError(f"more than {max_bytes:,} bytes")

    with open(archive, "rb") as file:
        is_zip = file.read(4) in (b"PK\x03\x04", b"PK\x05\x06")
    if is_zip:
        with zipfile.ZipFile(archive) as content:
            for info in content.infolist():
                if info.orig_filename.endswith("/") and not Path(info.orig_filename).parts:
                    continue  # "./" is the folder itself
                # Archives made on Unix store the mode in the upper half.
                is_file = stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG, stat.S_IFDIR)
                check(info.orig_filename, info.file_size, is_file)
            content.extractall(folder)  # noqa: S202 - checked
    elif archive.suffix == ".gz" and not archive.stem.endswith(".tar"):
        with gzip.open(archive) as source, open(folder / archive.stem, "xb") as target:
            while part := source.read(_READ):
                check(archive.stem, len(part))
                target.write(part)
    else:
        most = max_bytes + _HEADERS_BYTES * most_members
        with (
            _decompressed(archive) as plain,
            # "r:" refuses nested compression, whose bytes would not be counted.
            tarfile.open(fileobj=cast("IO[bytes]", _UpTo(plain, most)), mode="r:") as tar,
        ):
            for member in tar:
                if member.isdir() and not Path(member.name).parts:
                    continue  # "." is the folder itself
                check(member.name, member.size, member.isfile() or member.isdir())
                _write_member(tar, member, folder / member.name)
            rest: Any = tar.fileobj
            rest.seek(tar.offset)
            if rest.read(tarfile.BLOCKSIZE).strip(b"\0"):
                raise ValueError("a header is damaged")  # tarfile takes it for the end
            while rest.read(_READ):  # read to the end, to check the checksum
                pass


def _decompressed(archive: Path) -> Any:
    with open(archive, "rb") as file:
        start = file.read(6)
    kinds = {b"\x1f\x8b": gzip, b"BZh": bz2, b"\xfd7zXZ": lzma, b"\x5d\0\0": lzma}
    module: Any = next((kinds[magic] for magic in kinds if start.startswith(magic)), None)
    return open(archive, "rb") if module is None else module.open(archive)


class _UpTo:
    """File that limits the number of bytes read, because tar headers may declare any size."""

    def __init__(self, file: Any, most: int) -> None:
        self._file, self._most, self._left = file, most, most
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(self._left + 1 if size < 0 else min(size, self._left + 1))
        self._left -= len(data)
        if self._left < 0:
            raise ValueError(f"more than {self._most:,} bytes with headers")
        return data


def _write_member(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    # Python 3.11.2 has no `TarFile.extractall(filter=...)`.
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    content: Any = tar.extractfile(member)
    with content, open(target, "wb") as file:
        shutil.copyfileobj(content, file, _READ)
    os.utime(target, (member.mtime, member.mtime))


def _merge(source: Path, folder: Path) -> None:
    for entry in sorted(source.iterdir()):
        target = folder / entry.name
        if entry.is_dir() and target.is_dir():
            _merge(entry, target)
        else:
            os.replace(entry, target)
