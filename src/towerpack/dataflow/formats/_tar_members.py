"""The headers of tar archives, walked without trusting them.

The standard library's reader extracts, follows links, guesses, and on damaged archives has been
made to loop for ever; this one only says which bytes of an archive are which file.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Generator
from functools import partial
from pathlib import Path

from towerpack._core.errors import FormatError
from towerpack.dataflow._opening import OpenFile, PerProcess, check_expansion, reading

BLOCK = 512
_ZEROS = bytes(BLOCK)
_LONGEST_NAME = 1 << 16
_MOST_PADDING = 1 << 16
_READ = 1 << 20

_REGULAR = b"0\x007"
_WITHOUT_DATA = b"123456"  # links, devices, directories, pipes
_LINKS_AND_DEVICES = b"12346"
_COMPRESSIONS = (
    (b"\x1f\x8b", gzip.GzipFile),
    (b"BZh", bz2.BZ2File),
    (b"\xfd7zXZ\x00", lzma.LZMAFile),
)
_ZSTD = b"\x28\xb5\x2f\xfd"

Member = tuple[str, int, int]
"""Name, where its bytes begin, how many they are."""


def is_compressed(path: Path) -> bool:
    """Whether an archive has to be decompressed, and so can only be read in order.

    Raises:
        FormatError: It is compressed in a way that nothing here reads.
    """
    with open(path, "rb") as file:
        start = file.read(8)
    if start.startswith(_ZSTD):
        raise FormatError(
            f"{path} is compressed with Zstandard.",
            expected="a plain tar archive, or one compressed with gzip, bzip2 or xz",
            fix=f"unzstd {path}",
        )
    return any(start.startswith(magic) for magic, _ in _COMPRESSIONS)


class PlainTar:
    """Bytes of an uncompressed archive, at any offset, from any thread.

    Args:
        path: The archive.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = path.stat().st_size
        self._file = PerProcess(partial(OpenFile, path))

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """Bytes at an offset; fewer only where the file ends."""
        return self._file.get().read_at(offset, nbytes)

    def close(self) -> None:
        """Close the file; reading opens it again."""
        self._file.drop()

    def check(self, nbytes: int, offset: int) -> None:
        """Refuse a member that does not lie within the file."""
        if offset + nbytes > self.size:
            raise _cut_off(self.path, f"it has {self.size:,} bytes")


class CompressedTar:
    """Bytes of a compressed archive, at offsets that only grow.

    Args:
        path: The archive.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with open(path, "rb") as file:
            start = file.read(8)
        self._file = next(make(path) for magic, make in _COMPRESSIONS if start.startswith(magic))
        self._stored = path.stat().st_size
        self._position = 0

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """Bytes at an offset; fewer only where the archive ends."""
        while self._position < offset and self._read(min(_READ, offset - self._position)):
            pass
        parts: list[bytes] = []
        while nbytes > 0 and (part := self._read(min(_READ, nbytes))):
            parts.append(part)
            nbytes -= len(part)
        return b"".join(parts)

    def check(self, nbytes: int, offset: int) -> None:
        """Refuse a member that is larger than the compressed file can make it."""
        check_expansion(nbytes, self._stored, f"the member at byte {offset:,}", self.path)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _read(self, nbytes: int) -> bytes:
        with reading(self.path, "a compressed tar archive"):
            part = self._file.read(nbytes)
        self._position += len(part)
        return part


def members(tar: PlainTar | CompressedTar, *, only_files: bool = False) -> Generator[Member]:
    """The regular files of an archive, in order.

    Args:
        tar: The archive.
        only_files: A link or a device is an error; otherwise they are passed over.

    Raises:
        FormatError: The archive is damaged, cut off, or uses sparse files.
    """
    offset = 0
    name: str | None = None
    size: int | None = None
    while True:
        header = tar.read_at(offset, BLOCK)
        if header == _ZEROS:
            _check_end(tar, offset)
            return
        if len(header) < BLOCK:
            raise _cut_off(tar.path, "it has no end mark")
        kind = header[156:157]
        try:
            _check_sum(header)
            nbytes = _number(header[124:136])
        except ValueError as error:
            raise _bad_header(tar.path, offset, error) from error
        data = offset + BLOCK
        if kind in b"xgLK":
            extra = _extra(tar, data, nbytes)
            if kind == b"L":
                name = _text(extra)
            elif kind == b"x":
                try:
                    name, size = _extended(extra, name, size)
                except ValueError as error:
                    raise _bad_header(tar.path, offset, error) from error
            offset = _after(data, nbytes)
            continue
        nbytes = 0 if kind in _WITHOUT_DATA else nbytes if size is None else size
        tar.check(nbytes, data)
        if kind == b"S":
            raise _sparse(tar.path, offset)
        if only_files and kind in _LINKS_AND_DEVICES:
            raise _no_file(tar.path, offset)
        if kind in _REGULAR:
            yield _name(header) if name is None else name, data, nbytes
        name = size = None
        offset = _after(data, nbytes)


def _after(data: int, nbytes: int) -> int:
    return data + (nbytes + BLOCK - 1) // BLOCK * BLOCK


def _check_end(tar: PlainTar | CompressedTar, offset: int) -> None:
    """After the end mark there is only padding: archives that were joined would lose the rest."""
    rest = tar.read_at(offset, _MOST_PADDING)
    if len(rest) < 2 * BLOCK:
        raise _cut_off(tar.path, "its end mark is not whole")
    if any(rest):
        raise FormatError(
            f"{tar.path} goes on after its end mark at byte {offset:,}.",
            expected="one archive in one file",
            fix="join archives with `tar --concatenate`, or list them one by one",
        )


def _check_sum(header: bytes) -> None:
    told = _number(header[148:156])
    found = sum(header[:148]) + 8 * ord(" ") + sum(header[156:])
    if told != found:
        raise ValueError(f"the header's checksum is {found}, not {told}")


def _number(field: bytes) -> int:
    """An octal number, or (GNU, for large files) a binary one."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.split(b"\0", 1)[0].strip()
    if digits and not digits.isdigit():  # `int` alone takes signs and underscores
        raise ValueError(f"{field!r} is not a number")
    return int(digits or b"0", 8)


def _name(header: bytes) -> str:
    name = header[:100].split(b"\0", 1)[0]
    prefix = header[345:500].split(b"\0", 1)[0] if header[257:263] == b"ustar\0" else b""
    return _text(prefix + b"/" + name if prefix else name)


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def _extra(tar: PlainTar | CompressedTar, offset: int, nbytes: int) -> bytes:
    """The content of a header that says more about the next member."""
    if nbytes > _LONGEST_NAME:
        raise FormatError(
            f"{tar.path} has a header of {nbytes:,} bytes at byte {offset:,}.",
            expected=f"at most {_LONGEST_NAME:,} bytes",
            fix="the archive is damaged; write or fetch it again",
        )
    data = tar.read_at(offset, nbytes)
    if len(data) < nbytes:
        raise _cut_off(tar.path, "a header is not whole")
    return data


def _extended(data: bytes, name: str | None, size: int | None) -> tuple[str | None, int | None]:
    """Name and size from the records of an extended header, such as `17 path=long/name`."""
    at = 0
    while at < len(data):
        space = data.index(b" ", at, at + 20)
        length = int(data[at:space])
        record = data[space + 1 : at + length]
        if len(record) != at + length - space - 1 or record[-1:] != b"\n":
            raise ValueError("a record's length is wrong")
        key, _, value = record[:-1].partition(b"=")
        if key == b"path":
            name = _text(value)
        elif key == b"size":
            size = int(value)
            if size < 0:
                raise ValueError(f"a size of {size}")
        elif key.startswith(b"GNU.sparse."):
            raise ValueError("a sparse file; archive without --sparse")
        at += length
    return name, size


def _bad_header(path: Path, offset: int, error: ValueError) -> FormatError:
    return FormatError(
        f"{path} cannot be read as a tar archive: the header at byte {offset:,} is bad.",
        got=str(error),
        fix="the file is damaged or of another format; write or fetch it again",
    )


def _cut_off(path: Path, got: str) -> FormatError:
    return FormatError(
        f"{path} is not a whole tar archive.",
        got=got,
        fix="it was cut off; write or fetch it again",
    )


def _sparse(path: Path, offset: int) -> FormatError:
    return FormatError(
        f"{path} holds a sparse file, at byte {offset:,}.", fix="archive without --sparse"
    )


def _no_file(path: Path, offset: int) -> FormatError:
    return FormatError(
        f"{path} holds a link or device, at byte {offset:,}.",
        expected="files and directories",
        fix="do not extract archives from places that you do not trust",
    )
