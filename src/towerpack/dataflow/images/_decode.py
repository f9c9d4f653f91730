"""Image files from and to bytes: libjpeg-turbo for JPEGs, OpenCV for everything else."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, FormatError
from towerpack._core.extras import require
from towerpack.dataflow._datapoints import describe
from towerpack.dataflow.images._crop import CropTransform
from towerpack.dataflow.images._headers import (
    Bytes,
    ImageHeader,
    as_bytes,
    image_header,
    with_first_rows,
)
from towerpack.dataflow.images._image import (
    Image,
    check_image,
    height_and_width,
    mirrored,
    opencv,
    transposed,
)

MAX_PIXELS = 100_000_000
"""How large a picture is decoded by default: 300 MB in colour."""

_JPEG_COLOURS = {1: ("GRAY", "GRAY"), 3: ("BGR", "RGB"), 4: ("BGRA", "RGBA")}
_SUBSAMPLINGS = ("444", "422", "420", "440", "411")
_MAX_SCANS = 100  # a progressive JPEG has about ten; each costs time, however little it holds
_COUNT_SCANS_FROM = 1 << 22
_START, _END, _SCAN = b"\xff\xd8", b"\xff\xd9", b"\xff\xda"
# Those that mean something among pixels, too: not stuffing, fill bytes or restarts.
_MARKER = re.compile(rb"\xff[\xc0-\xcf\xd8-\xfe]")
# The most that a byte can hold. In a progressive JPEG of one scan, each bit may be a block of 64
# pixels; deflate makes 1032 bytes of one, each of 8 pixels.
_MOST_PIXELS_PER_BYTE = {"jpeg": 8 * 64, "png": 1032 * 8}
_BACK = {6: 8, 8: 6}  # the turns that undo others; the rest undo themselves
_AGAIN = "take the file from its source again"


def decode_image(
    data: Bytes,
    *,
    rgb: bool = True,
    channels: int | None = 3,
    min_size: int | Sequence[int] | None = None,
    part: Sequence[int] | None = None,
    out: NDArray[np.uint8] | None = None,
    max_pixels: int = MAX_PIXELS,
    orient: bool = True,
    strict: bool = True,
    name: str | None = None,
) -> Image:
    """Decode a JPEG, PNG, WebP, GIF, BMP or TIFF file.

    JPEGs are decoded by libjpeg-turbo, straight into `out` if that is given. OpenCV decodes
    everything else, with depths above 8 bits scaled down; transparency is dropped, not blended.
    The header is read first, and nothing is allocated for a picture that is too large, or that
    cannot possibly be contained in so few bytes.

    Args:
        data: The file.
        rgb: The order of colours; `False` is BGR, OpenCV's.
        channels: 1, 3 or 4; or `None` for what the file holds, 16 bits and floats included.
        min_size: (height, width), or one number for both: a JPEG may be decoded at 1/2, 1/4 or 1/8
            of its size, if it stays at least so large. Other scales would take longer, not less.
        part: (top, left, height, width) of what is wanted of the upright picture, in pixels; not
            with `min_size`. With `strict=False`, rows of a JPEG that are stored below it are not
            decoded.
        out: uint8 memory for the result: of the result's shape, or one axis of at least its size.
        max_pixels: Larger pictures are an error.
        orient: Turn the picture upright as its EXIF block says; other formats than JPEG only if
            `channels` is 1 or 3.
        strict: A truncated or damaged JPEG is an error, wherever the damage is. `False` takes what
            can be decoded of it.
        name: What messages call the picture.

    Returns:
        [height, width, channels], uint8.

    Raises:
        FormatError: No image file, or a damaged one, or one that is too large.
        ConfigError: `out` does not fit or is read-only, or the arguments make no sense.
        MissingExtraError: The extra `image` is not installed.
    """
    raw = as_bytes(data)
    header = image_header(raw, name=name)
    check_size(header, len(raw), max_pixels, name)
    wanted = Wanted(rgb, channels, orient, strict, name)
    if part is not None:
        if min_size is not None:
            raise _no_part(part, min_size)
        return _fitted(decode_part(raw, header, wanted, _part(part)), out)
    seen = header if orient else header._replace(orientation=1)
    factor = 1 if min_size is None else scale_for(seen, min_size)
    return decode_known(raw, header, wanted, factor, out)


def _part(part: Any) -> CropTransform:
    try:
        numbers = [operator.index(number) for number in part]
    except TypeError:
        numbers = []
    if len(numbers) != 4:
        raise _no_part(part, None)
    return CropTransform(*numbers)


def _no_part(part: Any, min_size: Any) -> ConfigError:
    return ConfigError(
        f"There is no part={part!r:.60} of an image, with min_size={min_size}.",
        expected="(top, left, height, width) at full size, in whole numbers, without min_size",
    )


@dataclass(frozen=True)
class Wanted:
    """How a picture is to be decoded: see `decode_image`."""

    rgb: bool = True
    channels: int | None = 3
    orient: bool = True
    strict: bool = True
    name: str | None = None

    def __post_init__(self) -> None:
        if self.channels not in (None, 1, 3, 4):
            raise ConfigError(f"There is no channels={self.channels}.", expected="1, 3, 4 or None")


def decode_known(
    data: bytes,
    header: ImageHeader,
    wanted: Wanted,
    factor: int = 1,
    out: NDArray[np.uint8] | None = None,
) -> Image:
    """Decode a file whose header was read, and its size found good.

    Args:
        data: The file.
        header: Its header.
        wanted: What to make of it.
        factor: Decode a JPEG at 1 / factor of its size: 1, 2, 4 or 8.
        out: As for `decode_image`.
    """
    if header.format == "jpeg":
        check_scans(header, data, wanted.name)
        img = _jpeg(data, header, wanted, factor, out) if header.ordinary else None
        if img is not None:
            return img
    if header.format == "png":
        check_chunks(data, wanted.name)
    return _fitted(_opencv(data, header, wanted), out)


def decode_part(data: bytes, header: ImageHeader, wanted: Wanted, part: CropTransform) -> Image:
    """As `decode_known`, a part of the upright picture; mostly a view.

    Args:
        data: The file.
        header: Its header.
        wanted: What to make of it.
        part: Of the picture when it has been turned.

    Raises:
        ConfigError: The part does not lie in the picture.
    """
    sequential = header.format == "jpeg" and header.ordinary and not header.progressive
    if sequential and not wanted.strict:
        orientation = header.orientation if wanted.orient else 1
        height, width = header.upright_size if wanted.orient else (header.height, header.width)
        part.check(height, width, wanted.name)
        stored = before_turning(part, (height, width), orientation)
        fewer, shown = with_first_rows(data, header, stored.y0 + stored.h)
        check_scans(shown, fewer, wanted.name)
        img = _jpeg(fewer, shown._replace(orientation=1), wanted, 1, None)
        if img is not None:
            return upright(stored.apply_image(img), orientation)
    img = decode_known(data, header, wanted)
    part.check(img.shape[0], img.shape[1], wanted.name)
    return part.apply_image(img)


def before_turning(part: CropTransform, size: tuple[int, int], orientation: int) -> CropTransform:
    """Where a part of an upright picture of some (height, width) lies in the picture as stored."""
    y0, x0, h, w = part.y0, part.x0, part.h, part.w
    if orientation in (2, 3, 6, 7):
        x0 = size[1] - x0 - w
    if orientation in (3, 4, 7, 8):
        y0 = size[0] - y0 - h
    return CropTransform(x0, y0, w, h) if orientation > 4 else CropTransform(y0, x0, h, w)


def encode_jpeg(
    img: Image, *, quality: int = 90, rgb: bool = True, subsampling: str = "420"
) -> bytes:
    """Encode an image as JPEG.

    Args:
        img: uint8, with 1 or 3 channels or none.
        quality: 1 to 100.
        rgb: The order of the image's colours; `False` is BGR.
        subsampling: Of the colours: "444", "422", "420", "440" or "411".

    Raises:
        ConfigError: The image has another dtype or number of channels, or there is no such quality
            or subsampling.
    """
    _check_quality(quality, subsampling)
    img = check_image(img)
    img = img[:, :, None] if img.ndim == 2 else img
    if img.dtype != np.uint8 or img.shape[2] not in (1, 3):
        raise ConfigError(
            "A JPEG is made of a uint8 image with 1 or 3 channels.", got=describe(img)
        )
    colour = _JPEG_COLOURS[img.shape[2]][rgb]
    return _simplejpeg().encode_jpeg(
        np.ascontiguousarray(img),
        quality=quality,
        colorspace=colour,
        colorsubsampling="Gray" if colour == "GRAY" else subsampling,
    )


def _check_quality(quality: Any, subsampling: Any) -> None:
    if not isinstance(quality, (int, np.integer)) or not 1 <= quality <= 100:
        raise ConfigError(
            f"There is no quality={quality!r:.60}.", expected="a whole number, 1 to 100"
        )
    if subsampling not in _SUBSAMPLINGS:
        raise ConfigError(
            f"There is no subsampling={subsampling!r:.60}.",
            expected='"444", "422", "420", "440" or "411"',
        )


def check_size(header: ImageHeader, nbytes: int, max_pixels: int, name: str | None) -> None:
    """Refuse what is too large to decode, or larger than its bytes can be.

    Raises:
        FormatError: It is.
    """
    pixels = header.height * header.width
    what = f"{name or 'The image'} claims {header.height} x {header.width} pixels"
    if pixels > max_pixels:
        raise FormatError(
            f"{what}.",
            expected=f"at most max_pixels={max_pixels:_}",
            fix="allow more, or leave it out",
        )
    most = _MOST_PIXELS_PER_BYTE.get(header.format)
    if most is not None and pixels > most * nbytes:
        raise FormatError(
            f"{what}, but has {nbytes} bytes.",
            expected=f"at least {pixels // most} bytes",
            fix=_AGAIN,
        )


def check_scans(header: ImageHeader, data: bytes, name: str | None) -> None:
    """Refuse a JPEG made to take for ever: every scan of a few bytes passes over all pixels.

    Raises:
        FormatError: There are too many of them.
    """
    if not header.progressive and header.height * header.width < _COUNT_SCANS_FROM:
        return
    if data.count(_SCAN) <= _MAX_SCANS:  # there are no more, whatever the bytes mean
        return
    scans = count_scans(data, header.frame)
    if scans > _MAX_SCANS:
        raise FormatError(
            f"{name or 'The image'} is a JPEG of {scans} scans.",
            expected=f"at most {_MAX_SCANS}; usual are 1 to 12",
        )


def count_scans(data: bytes, at: int) -> int:
    """How many scans of a JPEG libjpeg reads, at most: those before the end marker.

    Args:
        data: The file; behind the end marker there may be a film.
        at: Where its frame header begins, behind the marker.
    """
    scans, marker = 0, None
    while True:
        if marker != _START:
            at += max(2, int.from_bytes(data[at : at + 2], "big"))
        found = _MARKER.search(data, at)
        if found is None or found[0] == _END:
            return scans
        marker, at = found[0], found.end()
        scans += marker == _SCAN


def check_chunks(data: bytes, name: str | None) -> None:
    """Refuse a PNG with a chunk that is longer than the file: OpenCV would allocate it first.

    Raises:
        FormatError: There is one, or the end is missing.
    """
    at, kind = 8, b""
    while kind != b"IEND":
        size, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        at += 12 + size
        if at > len(data):
            raise _damaged(name, "png", "it ends too early")


def scale_for(header: ImageHeader, min_size: int | Sequence[int]) -> int:
    """By how much a JPEG may be reduced while it is decoded: 1, 2, 4 or 8."""
    height, width = height_and_width(min_size, "min_size")
    if header.orientation > 4:  # turned by a quarter
        height, width = width, height
    for factor in (8, 4, 2):
        if _divided(header.height, factor) >= height and _divided(header.width, factor) >= width:
            return factor
    return 1


def upright(img: Image, orientation: int) -> Image:
    """The image, turned as EXIF's orientation (1 to 8) says."""
    if orientation > 4:
        img = transposed(img)
    if orientation in (2, 3, 6, 7):
        img = mirrored(img, -1 if orientation in (3, 7) else 1)
    elif orientation in (4, 8):
        img = mirrored(img, 0)
    return img


def _divided(size: int, factor: int) -> int:
    return -(-size // factor)


def _jpeg(
    data: bytes,
    header: ImageHeader,
    wanted: Wanted,
    factor: int,
    out: NDArray[np.uint8] | None,
) -> Image | None:
    """Decode by libjpeg-turbo; `None` if it does not know this kind."""
    channels = wanted.channels or (1 if header.channels == 1 else 3)
    stored = (_divided(header.height, factor), _divided(header.width, factor), channels)
    turned = wanted.orient and header.orientation != 1
    direct = None if turned or out is None else _memory(out, stored)
    buffer = direct if direct is not None else np.empty(stored, np.uint8)
    try:
        _simplejpeg().decode_jpeg(
            data,
            colorspace=_JPEG_COLOURS[channels][wanted.rgb],
            min_height=stored[0],
            min_width=stored[1],
            buffer=buffer,
            strict=wanted.strict,
        )
    except ValueError as error:
        if "subsampling" in str(error):
            return None
        raise _damaged(wanted.name, "jpeg", str(error)) from error
    if direct is not None:
        return direct
    return _fitted(upright(buffer, header.orientation) if turned else buffer, out)


def _opencv(data: bytes, header: ImageHeader, wanted: Wanted) -> Image:
    """Decode by OpenCV, which refuses what is truncated."""
    cv2 = opencv()
    flags = {1: cv2.IMREAD_GRAYSCALE, 3: cv2.IMREAD_COLOR}.get(wanted.channels or 0)
    if flags is None:
        flags = cv2.IMREAD_UNCHANGED
    else:  # turned below, so that there is one opinion of how: the header's
        flags |= cv2.IMREAD_IGNORE_ORIENTATION
    raw = np.frombuffer(data, np.uint8)
    try:
        img = cv2.imdecode(raw, flags)
        if img is None and header.format == "tiff" and wanted.channels is not None:
            _check_range(cv2.imdecode(raw, cv2.IMREAD_UNCHANGED), wanted.name)
    except cv2.error as error:
        raise _damaged(wanted.name, header.format, str(error)) from error
    if img is None:
        raise _damaged(wanted.name, header.format, "OpenCV cannot decode it")
    if wanted.channels is not None:
        _check_range(img, wanted.name)
    img = cast("Image", img) if img.ndim == 3 else img[:, :, None]
    if header.format == "jpeg" and img.shape[:2] != (header.height, header.width):
        raise _damaged(wanted.name, header.format, "its pixels are not as many as its header says")
    return _coloured(_turned(img, header, wanted), wanted.rgb, wanted.channels)


def _check_range(img: Image | None, name: str | None) -> None:
    """Refuse what cannot be scaled to uint8: nobody knows what is white."""
    if img is not None and img.dtype.name not in ("uint8", "uint16"):
        raise FormatError(
            f"Pixels of {name or 'the image'} are {img.dtype}, which have no known range.",
            expected="8 or 16 bits without a sign",
            fix="decode_image(channels=None) gives them as they are",
        )


def _turned(img: Image, header: ImageHeader, wanted: Wanted) -> Image:
    """What OpenCV decoded, upright if that is wanted."""
    turn = wanted.orient and (header.format == "jpeg" or wanted.channels in (1, 3))
    if header.format == "tiff":  # OpenCV has turned it, whatever it was told
        return img if turn else upright(img, _BACK.get(header.orientation, header.orientation))
    return upright(img, header.orientation) if turn else img


def _coloured(img: Image, rgb: bool, channels: int | None) -> Image:
    """From OpenCV's order and number of channels to those asked for."""
    cv2 = opencv()
    if channels == 4:
        img = np.right_shift(img, 8).astype(np.uint8) if img.dtype == np.uint16 else img
        codes = {1: cv2.COLOR_GRAY2BGRA, 3: cv2.COLOR_BGR2BGRA}
        if img.shape[2] in codes:
            img = cv2.cvtColor(img, codes[img.shape[2]])
    if not rgb or img.shape[2] not in (3, 4):
        return img
    if img.dtype.name not in ("uint8", "uint16", "float32"):  # OpenCV converts no others
        return img[:, :, [2, 1, 0, 3][: img.shape[2]]]
    return cv2.cvtColor(img, cv2.COLOR_BGR2RGB if img.shape[2] == 3 else cv2.COLOR_BGRA2RGBA)


def _fitted(img: Image, out: NDArray[np.uint8] | None) -> Image:
    """The image in the memory that was given for it, or in its own."""
    if out is None:
        return np.ascontiguousarray(img)
    check_writeable(out)
    if img.dtype != np.uint8:
        raise ConfigError(f"The image is {img.dtype}, and out is for uint8.", fix="leave out `out`")
    if out.shape == img.shape and out.dtype == np.uint8:
        np.copyto(out, img)
        return out
    memory = _memory(out, img.shape)
    if memory is None:
        raise ConfigError(
            "out does not fit the image.",
            got=describe(out),
            expected=f"uint8 {list(img.shape)}, or one axis of at least {img.size}",
            fix="image_header(data) tells the size before decoding",
        )
    np.copyto(memory, img)
    return memory


def check_writeable(out: NDArray[Any]) -> None:
    """Refuse memory for a result that is read-only.

    Raises:
        ConfigError: It is.
    """
    if not out.flags.writeable:
        raise ConfigError(
            "out cannot be written.",
            got=f"{describe(out)}, read-only",
            expected="an array with flags.writeable",
            fix="leave out `out`, or give memory of your own: np.empty",
        )


def _memory(out: NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[np.uint8] | None:
    """`out` with this shape, if it is memory that a decoder can write into."""
    if out.dtype != np.uint8 or not (out.flags.c_contiguous and out.flags.writeable):
        return None
    size = shape[0] * shape[1] * shape[2]
    if out.ndim == 1 and out.size >= size:
        return out[:size].reshape(shape)
    return out if out.shape == shape else None


def _damaged(name: str | None, kind: str, why: str) -> FormatError:
    return FormatError(
        f"{name or 'The image'} is a damaged {kind.upper()} file: {why.strip().rstrip('.')}.",
        fix=_AGAIN
        + ("; decode_image(strict=False) takes what can be decoded" if kind == "jpeg" else ""),
    )


def _simplejpeg() -> Any:
    return require("simplejpeg", extra="image", needed_for="Decoding and encoding JPEG")
