"""Tar archives as the standard library reads them, but for what it passes over in silence."""

from __future__ import annotations

import tarfile
from collections.abc import Generator
from pathlib import Path
from tarfile import BLOCKSIZE, HeaderError, ReadError, TarFile, TarInfo
from typing import Any, Final, Self

from towerpack.dataflow._opening import reading

_COMPRESSIONS: Final = {b"\x1f\x8b": "gz", b"BZ": "bz2", b"\xfd7": "xz"}
_MOST_PADDING: Final = 1 << 16
_LIBRARY: Any = tarfile  # whose types lack one of its errors


def tar_members(path: Path) -> Generator[tuple[TarFile, TarInfo]]:
    """The open archive and each of its members; the content of one is read before the next.

    Raises:
        FormatError: It is damaged, cut off, or has something after its end.
    """
    with reading(path, "a tar archive"):
        mode = f"r:{compression_of(path)}"
        with _LIBRARY.open(path, mode, tarinfo=_Header, encoding="utf-8") as tar:
            while (member := tar.next()) is not None:
                tar.members.clear()  # or it would keep all of them
                yield tar, member


def compression_of(path: Path) -> str:
    """How an archive is compressed, by its first bytes, as `tarfile` calls it; "" if it is not."""
    with open(path, "rb") as file:
        return _COMPRESSIONS.get(file.read(2), "")


class _Header(TarInfo):
    """A member; what the base takes for the end of the archive is an error if it is not."""

    @classmethod
    def fromtarfile(cls, tarfile: TarFile) -> Self:
        file: Any = tarfile.fileobj
        try:
            found = super().fromtarfile(tarfile)
        except _LIBRARY.EOFHeaderError:
            rest = file.read(_MOST_PADDING)
            if len(rest) < BLOCKSIZE or any(rest):
                raise ReadError("its end mark is not whole, or it goes on after its end") from None
            raise
        except HeaderError as error:
            raise ReadError(f"{error} at byte {tarfile.offset:,}") from error
        if found.size < 0 or found.issparse():
            raise ReadError(f"{found.name!r} is sparse, or its size is wrong")
        return found
