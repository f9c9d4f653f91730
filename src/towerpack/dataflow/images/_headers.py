"""What the first bytes of an image file say about it: read before any memory is taken for it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, FormatError
from towerpack.dataflow._datapoints import describe

_STAND_ALONE = {0x01, *range(0xD0, 0xD8)}  # markers without a length
_FRAMES = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_ORDINARY_FRAMES = {0xC0, 0xC1, 0xC2}
_PROGRESSIVE = {0xC2, 0xC6, 0xCA, 0xCE}
_PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}
_TIFF_NUMBERS = {1: "B", 3: "H", 4: "I"}
_EXIF = b"Exif\0\0"  # what an EXIF block begins with in a JPEG; elsewhere some programs write it
_HAS_EXIF = 8  # a flag of an extended WebP file


Bytes = bytes | bytearray | memoryview | NDArray[np.uint8]


class ImageHeader(NamedTuple):
    """What the header of an image file says.

    Attributes:
        format: "jpeg", "png", "webp", "gif", "bmp" or "tiff".
        height: In pixels, before `orientation` is applied.
        width: In pixels, before `orientation` is applied.
        channels: As stored; 4 is CMYK in a JPEG. 0 where the header does not say.
        orientation: EXIF's, 1 to 8, of JPEG, PNG, WebP and TIFF; 1 is upright.
        ordinary: A JPEG of 8 bits, sequential or progressive.
        progressive: A JPEG in many scans.
        frame: Where the frame header of a JPEG begins, behind its marker.
    """

    format: str
    height: int
    width: int
    channels: int = 0
    orientation: int = 1
    ordinary: bool = False
    progressive: bool = False
    frame: int = 0

    @property
    def upright_size(self) -> tuple[int, int]:
        """(height, width) after `orientation` is applied."""
        turned = self.orientation > 4  # by a quarter
        return (self.width, self.height) if turned else (self.height, self.width)


class _DamageError(Exception):
    """What a parser found; `image_header` says where."""


def image_header(data: Bytes, *, name: str | None = None) -> ImageHeader:
    """Read the header of an image file; that takes microseconds, and no memory.

    Args:
        data: The file, or its first part.
        name: What messages call it.

    Raises:
        FormatError: It is damaged, or of none of the formats known here.
    """
    data = as_bytes(data)
    start = next((start for start in _PARSERS if data.startswith(start)), None)
    if start is None:
        raise FormatError(
            f"{name or 'This'} is no image file.",
            got=f"{len(data)} bytes that begin with {data[:8]!r}",
            expected="a JPEG, PNG, WebP, GIF, BMP or TIFF file",
            fix="leave it out, or take it from its source again if it should be one",
        )
    try:
        header = _PARSERS[start](data)
        if header.height < 1 or header.width < 1:
            raise _DamageError(f"it says {header.height} rows of {header.width} pixels")
    except (_DamageError, struct.error) as error:
        raise FormatError(
            f"The header of {name or 'this image'} is damaged: {error}.",
            got=f"{len(data)} bytes that begin with {data[:16]!r}",
            fix="take the file from its source again",
        ) from error
    return header


def with_first_rows(data: bytes, header: ImageHeader, rows: int) -> tuple[bytes, ImageHeader]:
    """A JPEG that announces only its first rows, so that a decoder stops behind them.

    Args:
        data: The file; ordinary and not progressive.
        header: Its header.
        rows: How many are needed. There are enough more that these are as in the whole picture:
            colours are scaled up with the rows next to them, and stored in blocks.
    """
    # Behind length, bits, height, width and channels: number, sampling and table of each channel.
    sampling = data[header.frame + 9 : header.frame + 8 + 3 * header.channels : 3]
    block = 8 * max([1, *(factors & 15 for factors in sampling)])  # damaged files have any factors
    height = -(-(rows + 2) // block) * block
    if height >= header.height:
        return data, header
    at = header.frame + 3
    fewer = b"".join((data[:at], height.to_bytes(2, "big"), data[at + 2 :]))
    return fewer, header._replace(height=height)


def as_bytes(data: Any) -> bytes:
    """The contents of a file, whatever kind of memory holds them.

    Raises:
        ConfigError: It is none.
    """
    if isinstance(data, bytes):
        return data
    try:
        return bytes(memoryview(data))
    except TypeError as error:
        raise ConfigError(
            "The contents of an image file are bytes.",
            got=describe(data),
            fix="read the file first: Path(path).read_bytes()",
        ) from error


def _jpeg(data: bytes) -> ImageHeader:
    """Walk over the segments up to the frame's, as libjpeg does: rubbish in between is skipped."""
    at, orientation = 2, 1
    while True:
        at = data.find(b"\xff", at)
        while 0 <= at < len(data) and data[at] == 0xFF:
            at += 1
        if not 0 <= at < len(data) - 2:
            raise _DamageError("it ends before the frame header")
        marker = data[at]
        at += 1
        if marker == 0 or marker in _STAND_ALONE:
            continue
        size = (data[at] << 8) | data[at + 1]
        if size < 2 or marker in (0xD8, 0xD9, 0xDA):
            raise _DamageError(f"there is no frame header before byte {at}")
        if marker in _FRAMES:
            bits, height, width, channels = struct.unpack_from(">BHHB", data, at + 2)
            ordinary = marker in _ORDINARY_FRAMES and bits == 8
            return ImageHeader(
                "jpeg",
                height,
                width,
                channels,
                orientation,
                ordinary,
                progressive=marker in _PROGRESSIVE,
                frame=at,
            )
        if marker == 0xE1 and data.startswith(_EXIF, at + 2):
            orientation = _exif_orientation(data[at + 2 : at + size])
        at += size


def _exif_orientation(exif: bytes) -> int:
    """Upright if the block is damaged: a picture is not the worse for it."""
    try:
        return _orientation(_tiff_tags(exif.removeprefix(_EXIF)))
    except (_DamageError, struct.error):
        return 1


def _orientation(tags: dict[int, int]) -> int:
    orientation = tags.get(0x0112, 1)
    return orientation if 1 <= orientation <= 8 else 1


def _tiff_tags(data: bytes) -> dict[int, int]:
    """The first value of each whole-numbered tag in the first directory of a TIFF structure."""
    if data[:4] not in (b"II*\0", b"MM\0*"):
        raise _DamageError("it is no TIFF structure")
    endian = "<" if data[:2] == b"II" else ">"
    (start,) = struct.unpack_from(f"{endian}I", data, 4)
    (count,) = struct.unpack_from(f"{endian}H", data, start)
    tags: dict[int, int] = {}
    for entry in range(start + 2, start + 2 + 12 * count, 12):
        tag, kind = struct.unpack_from(f"{endian}HH", data, entry)
        if kind in _TIFF_NUMBERS:
            value = struct.unpack_from(endian + _TIFF_NUMBERS[kind], data, entry + 8)[0]
            tags.setdefault(tag, value)  # libtiff, too, goes by the first of several
    return tags


def _tiff(data: bytes) -> ImageHeader:
    tags = _tiff_tags(data)
    return ImageHeader("tiff", tags.get(0x0101, 0), tags.get(0x0100, 0), 0, _orientation(tags))


def _png(data: bytes) -> ImageHeader:
    kind, width, height, _, colour = struct.unpack_from(">4sIIBB", data, 12)
    if kind != b"IHDR" or colour not in _PNG_CHANNELS:
        raise _DamageError("its first chunk is no IHDR")
    return ImageHeader("png", height, width, _PNG_CHANNELS[colour], _png_orientation(data))


def _png_orientation(data: bytes) -> int:
    """By the first EXIF block, which may stand behind the pixels."""
    at, kind = 8, b""
    while kind != b"IEND" and at < len(data):
        size, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        if kind == b"eXIf":
            return _exif_orientation(data[at + 8 : at + 8 + size])
        at += 12 + size
    return 1


def _webp(data: bytes) -> ImageHeader:
    kind, orientation = data[8:16], 1
    if kind == b"WEBPVP8X":
        width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
        orientation = _webp_orientation(data)
    elif kind == b"WEBPVP8L":
        (packed,) = struct.unpack_from("<I", data, 21)
        width, height = (packed & 0x3FFF) + 1, (packed >> 14 & 0x3FFF) + 1
    elif kind == b"WEBPVP8 ":
        width, height = (n & 0x3FFF for n in struct.unpack_from("<HH", data, 26))
    else:
        raise _DamageError("it is a RIFF file, but not of WebP")
    if len(data) < 30:
        raise _DamageError("it ends too early")
    return ImageHeader("webp", height, width, 0, orientation)


def _webp_orientation(data: bytes) -> int:
    """By the EXIF block of an extended file; it stands behind the pixels."""
    if not data[20:21] or not data[20] & _HAS_EXIF:
        return 1
    at = 12
    while at < len(data):
        kind, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        if kind == b"EXIF":
            return _exif_orientation(data[at + 8 : at + 8 + size])
        at += 8 + size + size % 2
    return 1


def _gif(data: bytes) -> ImageHeader:
    width, height = struct.unpack_from("<HH", data, 6)
    return ImageHeader("gif", height, width)


def _bmp(data: bytes) -> ImageHeader:
    (size,) = struct.unpack_from("<I", data, 14)
    width, height = struct.unpack_from("<hh" if size == 12 else "<ii", data, 18)
    return ImageHeader("bmp", abs(height), width)  # a negative height: from the top down


_PARSERS: dict[bytes, Callable[[bytes], ImageHeader]] = {
    b"\xff\xd8\xff": _jpeg,
    b"\x89PNG\r\n\x1a\n": _png,
    b"RIFF": _webp,
    b"GIF8": _gif,
    b"BM": _bmp,
    b"II*\0": _tiff,
    b"MM\0*": _tiff,
}
