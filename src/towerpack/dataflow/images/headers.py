"""Headers of image files: format, size, channels and orientation, read without decoding."""

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
_EXIF = b"Exif\0\0"  # prefix of an EXIF block in JPEGs, and in other formats by some programs
_BMP_HEADERS = {12, 16, 40, 52, 56, 64, 108, 124}  # sizes in bytes
_HEADER_BYTES = 1 << 18  # bytes of a file that are read first
_HAS_EXIF = 8  # flag of an extended WebP file
_MAX_SCANS = 100  # progressive JPEGs have about ten, and even empty scans cost time
_COUNT_SCANS_FROM = 1 << 22  # pixels
_START, _END, _SCAN = b"\xff\xd8", b"\xff\xd9", b"\xff\xda"
_PNG = b"\x89PNG\r\n\x1a\n"
# Markers with a length, and the end marker, but no stuffing, fill bytes or restarts.
_MARKER = re.compile(rb"\xff[\xc0-\xcf\xd8-\xfe]")
# Upper bounds. In a progressive JPEG of one scan, each bit may be a block of 64 pixels. Deflate
# expands a byte to at most 1032 bytes, each with at most 8 pixels.
_MOST_PIXELS_PER_BYTE = {"jpeg": 8 * 64, "png": 1032 * 8}
# Graphic control extension of a GIF. The last flag is transparency.
_GIF_CONTROL = re.compile(rb"(!\xf9\x04)(.)(?=...\0,)", re.DOTALL)
_EXTRA_SAMPLES, SAMPLE_FORMAT, PLANES = 0x0152, 0x0153, 0x011C  # tags of a TIFF
_BMP_MASKS = bytes.fromhex("0000ff0000ff0000ff000000")  # red, green, blue
_AGAIN = "replace the file with an intact copy"

Bytes = bytes | bytearray | memoryview | NDArray[np.uint8]


class ImageHeader(NamedTuple):
    """Header of an image file.

    Attributes:
        format: "jpeg", "png", "webp", "gif", "bmp" or "tiff".
        height, width: Size in pixels, before `orientation` is applied.
        channels: Number of stored channels (4 is CMYK in a JPEG), or 0 if unknown.
        orientation: EXIF orientation from 1 (upright) to 8, of JPEG, PNG, WebP and TIFF.
        ordinary: Whether the file is a JPEG of 8 bits and of a common kind.
        progressive: Whether the file is a progressive JPEG.
        frame: Position of the frame header of a JPEG, after its marker, in bytes.
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
        """Size (height, width) in pixels after `orientation` is applied."""
        swapped = self.orientation > 4
        return (self.width, self.height) if swapped else (self.height, self.width)


def image_header(data: Bytes, *, name: str | None = None) -> ImageHeader:
    """Read the header of an image file.

    Args:
        data: Contents of the file, or their first part.
        name: Name of the image in error messages.

    Raises:
        FormatError: The header is damaged, or the format is not supported. It is a `ValueError`.
    """
    data = as_bytes(data)
    start = next((start for start in _PARSERS if data.startswith(start)), None)
    if start is None:
        what, got = (
            f"{name or 'The data'} is not an image file.",
            f"{len(data)} bytes: {data[:8]!r}",
        )
        expected = "a JPEG, PNG, WebP, GIF, BMP or TIFF file"
        raise FormatError(what, got=got, expected=expected, fix=f"remove the file, or {_AGAIN}")
    try:
        header = _PARSERS[start](data)
        if header.height < 1 or header.width < 1:
            raise ValueError(f"the size is {header.height} x {header.width} pixels")
    except (ValueError, IndexError, struct.error) as error:
        what = f"The header of {name or 'this image'} is damaged: {error}."
        raise FormatError(what, got=f"{len(data)} bytes: {data[:16]!r}", fix=_AGAIN) from error
    return header


def header_of(path: str | Path) -> ImageHeader:
    """Read the header of an image file. Do not read the pixels of JPEG and PNG files."""
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
    """Return whether the first bytes of a file (18 or more) are those of an image."""
    if start.startswith(b"BM"):  # texts may also begin with "BM"
        return int.from_bytes(start[14:18], "little") in _BMP_HEADERS
    if start.startswith(b"RIFF"):
        return start[8:12] == b"WEBP"
    return start.startswith(tuple(_PARSERS))


def as_bytes(data: Any) -> bytes:
    if isinstance(data, bytes):
        return data
    try:
        return bytes(memoryview(data))
    except TypeError as error:
        what, fix = "The contents of an image file must be bytes.", "pass Path(path).read_bytes()"
        raise ConfigError(what, got=describe(data), fix=fix) from error


def damaged(name: str | None, kind: str, why: str) -> FormatError:
    partly = ", or decode as much as possible with strict=False" if kind == "jpeg" else ""
    what = f"{name or 'The image'} is a damaged {kind.upper()} file"
    return FormatError(f"{what}: {why.strip().rstrip('.')}.", fix=_AGAIN + partly)


def check_size(header: ImageHeader, nbytes: int, max_pixels: int, name: str | None) -> None:
    """Raise `FormatError` if an image has more pixels than allowed or than its bytes can hold."""
    pixels = header.height * header.width
    what = f"{name or 'The image'} claims {header.height} x {header.width} pixels"
    if pixels > max_pixels:
        raise FormatError(
            f"{what}, more than max_pixels={max_pixels:_}.", fix="increase max_pixels"
        )
    most = _MOST_PIXELS_PER_BYTE.get(header.format)
    if most is not None and pixels > most * nbytes:
        least = f"at least {pixels // most} bytes"
        raise FormatError(f"{what}, but has {nbytes} bytes.", expected=least, fix=_AGAIN)


def check_contents(header: ImageHeader, data: bytes, name: str | None) -> None:
    """Raise `FormatError` for JPEGs with too many scans, which are slow, and truncated PNGs."""
    # OpenCV would allocate the claimed size of a truncated chunk.
    if header.format == "png" and not any(
        kind == b"IEND" for kind, _ in _png_chunks(BytesIO(data))
    ):
        raise damaged(name, "png", "it ends too early")
    slow = header.progressive or header.height * header.width >= _COUNT_SCANS_FROM
    # The number of these bytes is an upper bound of the number of scans.
    if header.format != "jpeg" or not slow or data.count(_SCAN) <= _MAX_SCANS:
        return
    # Count the scans up to the end marker. A video may follow.
    scans, position = 0, header.frame + int.from_bytes(data[header.frame : header.frame + 2], "big")
    while (marker := _MARKER.search(data, position)) and marker[0] != _END:
        position = marker.end()
        if marker[0] != _START:
            position += max(2, int.from_bytes(data[position : position + 2], "big"))
        scans += marker[0] == _SCAN
    if scans > _MAX_SCANS:
        what = f"{name or 'The image'} must have at most {_MAX_SCANS} scans, got {scans}."
        raise FormatError(what, expected="a JPEG of 1 to 12 scans, which are common")


def with_stored_colors(data: bytes, header: ImageHeader, alpha: bool) -> bytes:
    """Change a file so that OpenCV returns the stored colors of transparent pixels.

    OpenCV would give transparent pixels of a GIF the color of the background, and would multiply
    colors of a TIFF by alpha. `alpha` keeps the transparency of a GIF.
    """
    if header.format == "gif" and not alpha:
        return _GIF_CONTROL.sub(lambda m: m[1] + bytes([m[2][0] & 0xFE]), data, count=1)
    for endian in "<>" if header.format == "tiff" else "":
        unassociated = struct.pack(f"{endian}HHIH", _EXTRA_SAMPLES, 3, 1, 2)
        data = data.replace(unassociated, unassociated[:8] + b"\0\0")
    return data


def with_first_rows(data: bytes, header: ImageHeader, rows: int) -> tuple[bytes, ImageHeader]:
    """Reduce the height in the header of an ordinary sequential JPEG to at least `rows`.

    The height includes two more rows, because chroma is interpolated, and is a multiple of a block.
    """
    # Length, bits, height, width and channels precede id, sampling and table of each channel.
    sampling = data[header.frame + 9 : header.frame + 8 + 3 * header.channels : 3]
    block = 8 * max([1, *(factors & 15 for factors in sampling)])  # may be 0 in damaged files
    height = -(-(rows + 2) // block) * block
    if height >= header.height:
        return data, header
    position = header.frame + 3
    fewer = data[:position] + height.to_bytes(2, "big") + data[position + 2 :]
    return fewer, header._replace(height=height)


def _jpeg(data: bytes) -> ImageHeader:
    """Read segments up to the frame header. Skip bytes between segments, as libjpeg does."""
    start, orientation = 2, 0
    while match := _MARKER.search(data, start):
        marker, start = data[match.end() - 1], match.end()
        size = (data[start] << 8) | data[start + 1]
        if size < 2 or marker in (0xD8, 0xD9, 0xDA):
            raise ValueError(f"there is no frame header before byte {start}")
        if marker in _FRAMES:
            bits, height, width, channels = struct.unpack_from(">BHHB", data, start + 2)
            kind = marker <= 0xC2 and bits == 8, marker in _PROGRESSIVE
            return ImageHeader("jpeg", height, width, channels, orientation or 1, *kind, start)
        if marker == 0xE1 and not orientation and data.startswith(_EXIF, start + 2):
            orientation = _exif_orientation(data[start + 2 : start + size])
        start += size
    raise ValueError("it ends before the frame header")


def _exif_orientation(exif: bytes) -> int:
    """Return the orientation in an EXIF block, or 1 (upright) if the block is damaged."""
    try:
        orientation = tiff_tags(exif.removeprefix(_EXIF)).get(0x0112, 1)
    except (ValueError, struct.error):
        return 1
    return orientation if 1 <= orientation <= 8 else 1


def tiff_tags(data: bytes) -> dict[int, int]:
    """Return the first value of each integer tag in the first directory of a TIFF structure."""
    if data[:4] not in (b"II*\0", b"MM\0*"):
        raise ValueError("it is not a TIFF structure")
    endian = "<" if data[:2] == b"II" else ">"
    (start,) = struct.unpack_from(f"{endian}I", data, 4)
    (count,) = struct.unpack_from(f"{endian}H", data, start)
    tags: dict[int, int] = {}
    for entry in range(start + 2, start + 2 + 12 * count, 12):
        tag, kind, values = struct.unpack_from(f"{endian}HHI", data, entry)
        if kind in _TIFF_NUMBERS:
            position = entry + 8
            if tag == SAMPLE_FORMAT and values > 2:  # stored outside of the directory
                (position,) = struct.unpack_from(f"{endian}I", data, position)
            value = struct.unpack_from(endian + _TIFF_NUMBERS[kind], data, position)[0]
            tags.setdefault(tag, value)  # libtiff also uses the first of several entries
    return tags


def _tiff(data: bytes) -> ImageHeader:
    tags = tiff_tags(data)
    return ImageHeader("tiff", tags.get(0x0101, 0), tags.get(0x0100, 0), 0, _exif_orientation(data))


def _png(data: bytes) -> ImageHeader:
    kind, width, height, _, color = struct.unpack_from(">4sIIBB", data, 12)
    if kind != b"IHDR" or color not in _PNG_CHANNELS:
        raise ValueError("the first chunk is not IHDR")
    orientation = _png_orientation(BytesIO(data))
    return ImageHeader("png", height, width, _PNG_CHANNELS[color], orientation)


def _png_orientation(file: IO[bytes]) -> int:
    return _exif_orientation(next((e for kind, e in _png_chunks(file) if kind == b"eXIf"), b""))


def _png_chunks(file: IO[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Iterate over the kinds of a file's complete chunks, with the contents of EXIF chunks."""
    position, kind, end = len(_PNG), b"", file.seek(0, os.SEEK_END)
    while kind != b"IEND":
        file.seek(position)
        start = file.read(8)
        size, kind = int.from_bytes(start[:4], "big"), start[4:]
        position += 12 + size
        if position > end:
            return
        yield kind, file.read(size) if kind == b"eXIf" else b""


def _webp(data: bytes) -> ImageHeader:
    kind, position, orientation = data[8:16], 12, 1
    if len(data) < 30:
        raise ValueError("it ends too early")
    if kind == b"WEBPVP8X":
        width, height = (int.from_bytes(data[i : i + 3], "little") + 1 for i in (24, 27))
        # The EXIF block follows the pixels.
        while data[20] & _HAS_EXIF and position < len(data):
            chunk = data[position : position + 4]
            size = int.from_bytes(data[position + 4 : position + 8], "little")
            position += 8
            if chunk == b"EXIF":
                orientation = _exif_orientation(data[position : position + size])
                break
            position += size + size % 2
    elif kind == b"WEBPVP8L":
        (packed,) = struct.unpack_from("<I", data, 21)
        width, height = (packed & 0x3FFF) + 1, (packed >> 14 & 0x3FFF) + 1
    elif kind == b"WEBPVP8 ":
        width, height = (n & 0x3FFF for n in struct.unpack_from("<HH", data, 26))
    else:
        raise ValueError("it is a RIFF file of another format than WebP")
    return ImageHeader("webp", height, width, 0, orientation)


def _gif(data: bytes) -> ImageHeader:
    width, height = struct.unpack_from("<HH", data, 6)
    return ImageHeader("gif", height, width)


def _bmp(data: bytes) -> ImageHeader:
    (size,) = struct.unpack_from("<I", data, 14)
    width, height = struct.unpack_from("<hh" if size == 12 else "<ii", data, 18)
    masked = data[28:31:2] == b"\x20\x03"  # 32 bits, with a mask for each color
    if masked and not _BMP_MASKS.startswith(data[54:66]):
        raise ValueError("its order of colors is not supported by OpenCV")
    return ImageHeader("bmp", abs(height), width)  # the height is negative if rows are top-down


_PARSERS: dict[bytes, Callable[[bytes], ImageHeader]] = {
    b"\xff\xd8\xff": _jpeg,
    _PNG: _png,
    b"RIFF": _webp,
    b"GIF8": _gif,
    b"BM": _bmp,
    b"II*\0": _tiff,
    b"MM\0*": _tiff,
}
