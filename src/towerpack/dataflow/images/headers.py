"""What the first bytes of an image file say about it: read before any memory is taken for it."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, FormatError
from towerpack.dataflow.datapoints import describe

_FRAMES = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_PROGRESSIVE = {0xC2, 0xC6, 0xCA, 0xCE}
_PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}
_TIFF_NUMBERS = {1: "B", 3: "H", 4: "I"}
_EXIF = b"Exif\0\0"  # what an EXIF block begins with in a JPEG; elsewhere some programs write it
_BMP_HEADERS = {12, 16, 40, 52, 56, 64, 108, 124}  # their sizes in bytes
_HEADER_BYTES = 1 << 18  # of a file are read first
_HAS_EXIF = 8  # a flag of an extended WebP file
_MAX_SCANS = 100  # a progressive JPEG has about ten; each costs time, however little it holds
_COUNT_SCANS_FROM = 1 << 22
_START, _END, _SCAN = b"\xff\xd8", b"\xff\xd9", b"\xff\xda"
_PNG = b"\x89PNG\r\n\x1a\n"
# Those with a length, and the end: not stuffing, fill bytes or restarts.
_MARKER = re.compile(rb"\xff[\xc0-\xcf\xd8-\xfe]")
# The most that a byte can hold. In a progressive JPEG of one scan, each bit may be a block of 64
# pixels; deflate makes 1032 bytes of one, each of 8 pixels.
_MOST_PIXELS_PER_BYTE = {"jpeg": 8 * 64, "png": 1032 * 8}
# In a GIF file: how its next frame is shown, with flags of which the last is transparency.
_GIF_CONTROL = re.compile(rb"(!\xf9\x04)(.)(?=...\0,)", re.DOTALL)
_EXTRA_SAMPLES, SAMPLE_FORMAT, PLANES = 0x0152, 0x0153, 0x011C  # tags of a TIFF
_BMP_MASKS = bytes.fromhex("0000ff0000ff0000ff000000")  # red, green, blue
_AGAIN = "take the file from its source again"

Bytes = bytes | bytearray | memoryview | NDArray[np.uint8]


class ImageHeader(NamedTuple):
    """What the header of an image file says.

    Attributes:
        format: "jpeg", "png", "webp", "gif", "bmp" or "tiff".
        height, width: In pixels, before `orientation` is applied.
        channels: As stored; 4 is CMYK in a JPEG. 0 where the header does not say.
        orientation: EXIF's, 1 to 8, of JPEG, PNG, WebP and TIFF; 1 is upright.
        ordinary, progressive: A JPEG of 8 bits, not of rare kinds; one in many scans.
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


def image_header(data: Bytes, *, name: str | None = None) -> ImageHeader:
    """Read the header of an image file, or of its first part, that messages call `name`.

    Raises:
        FormatError: It is damaged, or of none of the formats known here.
    """
    data = as_bytes(data)
    start = next((start for start in _PARSERS if data.startswith(start)), None)
    if start is None:
        what, got = f"{name or 'This'} is no image file.", f"{len(data)} bytes: {data[:8]!r}"
        expected = "a JPEG, PNG, WebP, GIF, BMP or TIFF file"
        raise FormatError(what, got=got, expected=expected, fix=f"leave it out, or {_AGAIN}")
    try:
        header = _PARSERS[start](data)
        if header.height < 1 or header.width < 1:
            raise ValueError(f"it says {header.height} rows of {header.width} pixels")
    except (ValueError, IndexError, struct.error) as error:
        what = f"The header of {name or 'this image'} is damaged: {error}."
        raise FormatError(what, got=f"{len(data)} bytes: {data[:16]!r}", fix=_AGAIN) from error
    return header


def header_of(path: str | Path) -> ImageHeader:
    """Read the header of an image file. Pixels of JPEG and PNG files are not read.

    Raises:
        FormatError: The file is damaged, or is not an image.
    """
    with open(path, "rb", buffering=0) as file:
        data = file.read(_HEADER_BYTES)
        if data.startswith(_PNG):
            header = image_header(data, name=str(path))
            return header._replace(orientation=_png_orientation(file))
        if data.startswith(_START):
            with suppress(FormatError):
                return image_header(data, name=str(path))
        # Segments before the frame header may be long. WebP and TIFF may end with an EXIF block.
        return image_header(data + file.read(), name=str(path))


def begins_like_image(start: bytes) -> bool:
    """Return whether a file with these first 18 bytes or more is an image of a known format."""
    if start.startswith(b"BM"):  # Texts may start so too.
        return int.from_bytes(start[14:18], "little") in _BMP_HEADERS
    if start.startswith(b"RIFF"):
        return start[8:12] == b"WEBP"
    return start.startswith(tuple(_PARSERS))


def as_bytes(data: Any) -> bytes:
    """The contents of a file, whatever kind of memory holds them, or a `ConfigError`."""
    if isinstance(data, bytes):
        return data
    try:
        return bytes(memoryview(data))
    except TypeError as error:
        what, fix = "The contents of an image file are bytes.", "Path(path).read_bytes()"
        raise ConfigError(what, got=describe(data), fix=fix) from error


def damaged(name: str | None, kind: str, why: str) -> FormatError:
    """Return the error for an image file whose contents are damaged."""
    partly = "; decode_image(strict=False) takes what can be decoded" if kind == "jpeg" else ""
    what = f"{name or 'The image'} is a damaged {kind.upper()} file"
    return FormatError(f"{what}: {why.strip().rstrip('.')}.", fix=_AGAIN + partly)


def check_size(header: ImageHeader, nbytes: int, max_pixels: int, name: str | None) -> None:
    """Raise `FormatError` for what is too large to decode, or larger than its bytes can be."""
    pixels = header.height * header.width
    what = f"{name or 'The image'} claims {header.height} x {header.width} pixels"
    if pixels > max_pixels:
        raise FormatError(f"{what}.", expected=f"at most max_pixels={max_pixels:_}")
    most = _MOST_PIXELS_PER_BYTE.get(header.format)
    if most is not None and pixels > most * nbytes:
        least = f"at least {pixels // most} bytes"
        raise FormatError(f"{what}, but has {nbytes} bytes.", expected=least, fix=_AGAIN)


def check_contents(header: ImageHeader, data: bytes, name: str | None) -> None:
    """Refuse JPEGs of so many scans that they take for ever, and PNGs that end early.

    OpenCV would first allocate a chunk that is longer than the file.
    """
    if header.format == "png" and not any(
        kind == b"IEND" for kind, _ in _png_chunks(BytesIO(data))
    ):
        raise damaged(name, "png", "it ends too early")
    slow = header.progressive or header.height * header.width >= _COUNT_SCANS_FROM
    # There are no more scans than these bytes occur, whatever they mean.
    if header.format != "jpeg" or not slow or data.count(_SCAN) <= _MAX_SCANS:
        return
    # Those that libjpeg reads, at most, up to the end marker; behind it may be a film.
    scans, at = 0, header.frame + int.from_bytes(data[header.frame : header.frame + 2], "big")
    while (found := _MARKER.search(data, at)) and found[0] != _END:
        at = found.end()
        if found[0] != _START:
            at += max(2, int.from_bytes(data[at : at + 2], "big"))
        scans += found[0] == _SCAN
    if scans > _MAX_SCANS:
        what = f"{name or 'The image'} is a JPEG of {scans} scans."
        raise FormatError(what, expected=f"at most {_MAX_SCANS}; usual are 1 to 12")


def with_stored_colors(data: bytes, header: ImageHeader, alpha: bool) -> bytes:
    """Return a file whose colors OpenCV decodes as they are stored.

    OpenCV gives transparent pixels of a GIF the background's color, and multiplies colors of a TIFF
    by an alpha channel unless its meaning is unspecified (0). `alpha` keeps that of a GIF.
    """
    if header.format == "gif" and not alpha:
        return _GIF_CONTROL.sub(lambda m: m[1] + bytes([m[2][0] & 0xFE]), data, count=1)
    for endian in "<>" if header.format == "tiff" else "":
        unassociated = struct.pack(f"{endian}HHIH", _EXTRA_SAMPLES, 3, 1, 2)
        data = data.replace(unassociated, unassociated[:8] + b"\0\0")
    return data


def with_first_rows(data: bytes, header: ImageHeader, rows: int) -> tuple[bytes, ImageHeader]:
    """An ordinary JPEG, not progressive, that announces its first `rows` only, and a few more.

    Colours are scaled up with the rows next to them, and stored in blocks.
    """
    # Behind length, bits, height, width and channels: number, sampling and table of each channel.
    sampling = data[header.frame + 9 : header.frame + 8 + 3 * header.channels : 3]
    block = 8 * max([1, *(factors & 15 for factors in sampling)])  # damaged files have any factors
    height = -(-(rows + 2) // block) * block
    if height >= header.height:
        return data, header
    at = header.frame + 3
    fewer = data[:at] + height.to_bytes(2, "big") + data[at + 2 :]
    return fewer, header._replace(height=height)


def _jpeg(data: bytes) -> ImageHeader:
    """Walk over the segments up to the frame's, as libjpeg does: rubbish in between is skipped."""
    at, orientation = 2, 0
    while found := _MARKER.search(data, at):
        marker, at = data[found.end() - 1], found.end()
        size = (data[at] << 8) | data[at + 1]
        if size < 2 or marker in (0xD8, 0xD9, 0xDA):
            raise ValueError(f"there is no frame header before byte {at}")
        if marker in _FRAMES:
            bits, height, width, channels = struct.unpack_from(">BHHB", data, at + 2)
            kind = marker <= 0xC2 and bits == 8, marker in _PROGRESSIVE
            return ImageHeader("jpeg", height, width, channels, orientation or 1, *kind, at)
        if marker == 0xE1 and not orientation and data.startswith(_EXIF, at + 2):
            orientation = _exif_orientation(data[at + 2 : at + size])
        at += size
    raise ValueError("it ends before the frame header")


def _exif_orientation(exif: bytes) -> int:
    """Upright if the block is damaged: a picture is not the worse for it."""
    try:
        orientation = tiff_tags(exif.removeprefix(_EXIF)).get(0x0112, 1)
    except (ValueError, struct.error):
        return 1
    return orientation if 1 <= orientation <= 8 else 1


def tiff_tags(data: bytes) -> dict[int, int]:
    """The first value of each whole-numbered tag in the first directory of a TIFF structure."""
    if data[:4] not in (b"II*\0", b"MM\0*"):
        raise ValueError("it is no TIFF structure")
    endian = "<" if data[:2] == b"II" else ">"
    (start,) = struct.unpack_from(f"{endian}I", data, 4)
    (count,) = struct.unpack_from(f"{endian}H", data, start)
    tags: dict[int, int] = {}
    for entry in range(start + 2, start + 2 + 12 * count, 12):
        tag, kind, values = struct.unpack_from(f"{endian}HHI", data, entry)
        if kind in _TIFF_NUMBERS:
            at = entry + 8
            if tag == SAMPLE_FORMAT and values > 2:  # they stand elsewhere
                (at,) = struct.unpack_from(f"{endian}I", data, at)
            value = struct.unpack_from(endian + _TIFF_NUMBERS[kind], data, at)[0]
            tags.setdefault(tag, value)  # libtiff, too, goes by the first of several
    return tags


def _tiff(data: bytes) -> ImageHeader:
    tags = tiff_tags(data)
    return ImageHeader("tiff", tags.get(0x0101, 0), tags.get(0x0100, 0), 0, _exif_orientation(data))


def _png(data: bytes) -> ImageHeader:
    kind, width, height, _, colour = struct.unpack_from(">4sIIBB", data, 12)
    if kind != b"IHDR" or colour not in _PNG_CHANNELS:
        raise ValueError("its first chunk is no IHDR")
    orientation = _png_orientation(BytesIO(data))
    return ImageHeader("png", height, width, _PNG_CHANNELS[colour], orientation)


def _png_orientation(file: IO[bytes]) -> int:
    """Return the orientation of a PNG file. Its EXIF block may follow the pixels."""
    return _exif_orientation(next((e for kind, e in _png_chunks(file) if kind == b"eXIf"), b""))


def _png_chunks(file: IO[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Iterate over the complete chunks of a file: the kind and, of EXIF blocks, the contents."""
    at, kind, end = len(_PNG), b"", file.seek(0, os.SEEK_END)
    while kind != b"IEND":
        file.seek(at)
        start = file.read(8)
        size, kind = int.from_bytes(start[:4], "big"), start[4:]
        at += 12 + size
        if at > end:
            return
        yield kind, file.read(size) if kind == b"eXIf" else b""


def _webp(data: bytes) -> ImageHeader:
    kind, at, orientation = data[8:16], 12, 1
    if len(data) < 30:
        raise ValueError("it ends too early")
    if kind == b"WEBPVP8X":
        width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
        # The EXIF block stands behind the pixels.
        while data[20] & _HAS_EXIF and at < len(data):
            chunk, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
            at += 8
            if chunk == b"EXIF":
                orientation = _exif_orientation(data[at : at + size])
                break
            at += size + size % 2
    elif kind == b"WEBPVP8L":
        (packed,) = struct.unpack_from("<I", data, 21)
        width, height = (packed & 0x3FFF) + 1, (packed >> 14 & 0x3FFF) + 1
    elif kind == b"WEBPVP8 ":
        width, height = (n & 0x3FFF for n in struct.unpack_from("<HH", data, 26))
    else:
        raise ValueError("it is a RIFF file, but not of WebP")
    return ImageHeader("webp", height, width, 0, orientation)


def _gif(data: bytes) -> ImageHeader:
    width, height = struct.unpack_from("<HH", data, 6)
    return ImageHeader("gif", height, width)


def _bmp(data: bytes) -> ImageHeader:
    (size,) = struct.unpack_from("<I", data, 14)
    width, height = struct.unpack_from("<hh" if size == 12 else "<ii", data, 18)
    masked = data[28:31:2] == b"\x20\x03"  # 32 bits, with a mask for each color
    if masked and not _BMP_MASKS.startswith(data[54:66]):
        raise ValueError("its colors are in an order that OpenCV would mix up")
    return ImageHeader("bmp", abs(height), width)  # a negative height: from the top down


_PARSERS: dict[bytes, Callable[[bytes], ImageHeader]] = {
    b"\xff\xd8\xff": _jpeg,
    _PNG: _png,
    b"RIFF": _webp,
    b"GIF8": _gif,
    b"BM": _bmp,
    b"II*\0": _tiff,
    b"MM\0*": _tiff,
}
