"""Image files from and to bytes: libjpeg-turbo for JPEGs, OpenCV for everything else."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, FormatError
from towerpack._core.extras import require
from towerpack.dataflow._arguments import integer_of
from towerpack.dataflow._datapoints import describe
from towerpack.dataflow.images._arguments import height_and_width
from towerpack.dataflow.images._crop import CropTransform
from towerpack.dataflow.images._headers import (
    Bytes,
    ImageHeader,
    as_bytes,
    check_contents,
    check_size,
    damaged,
    image_header,
    with_first_rows,
)
from towerpack.dataflow.images._image import Image, check_image, mirrored, opencv, transposed

MAX_PIXELS = 100_000_000
"""How large a picture is decoded by default: 300 MB in colour."""

_JPEG_COLOURS = {1: ("GRAY", "GRAY"), 3: ("BGR", "RGB"), 4: ("BGRA", "RGBA")}
_SUBSAMPLINGS = ("444", "422", "420", "440", "411")
_BACK = {6: 8, 8: 6}  # the turns that undo others; the rest undo themselves


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
    data = as_bytes(data)
    decoder = Decoder(rgb, channels, orient, strict, max_pixels, name)
    header = decoder.read_header(data)
    if part is not None:
        try:
            crop = CropTransform(*map(operator.index, part))
            no_part = min_size is not None
        except TypeError:
            crop, no_part = CropTransform(0, 0, 0, 0), True
        if no_part:
            raise ConfigError(
                f"There is no part={part!r:.60} of an image, with min_size={min_size}.",
                expected="(top, left, height, width) at full size, in whole numbers, without "
                "min_size",
            )
        return fitted(decoder.decode_part(data, header, crop), out)
    factor = 1 if min_size is None else decoder.factor_for(header, min_size)
    return decoder.decode(data, header, factor, out)


@dataclass(frozen=True)
class Decoder:
    """How image files are decoded; arguments as for `decode_image`."""

    rgb: bool = True
    channels: int | None = 3
    orient: bool = True
    strict: bool = True
    max_pixels: int = MAX_PIXELS
    name: str | None = None

    def __post_init__(self) -> None:
        if self.channels not in (None, 1, 3, 4):
            raise ConfigError(f"There is no channels={self.channels}.", expected="1, 3, 4 or None")

    def read_header(self, data: bytes) -> ImageHeader:
        """The header of a file that is not too large, or a `FormatError`."""
        header = image_header(data, name=self.name)
        check_size(header, len(data), self.max_pixels, self.name)
        return header

    def factor_for(self, header: ImageHeader, min_size: int | Sequence[int]) -> int:
        """By how much a JPEG may be reduced while it is decoded: 1, 2, 4 or 8."""
        height, width = height_and_width(min_size, "min_size")
        stored = header.upright_size if self.orient else (header.height, header.width)
        sizes = ((f, -(-stored[0] // f), -(-stored[1] // f)) for f in (8, 4, 2))
        return next((f for f, h, w in sizes if h >= height and w >= width), 1)

    def decode(
        self,
        data: bytes,
        header: ImageHeader,
        factor: int = 1,
        out: NDArray[np.uint8] | None = None,
    ) -> Image:
        """Decode a file whose header was read; a JPEG at 1 / factor of its size."""
        check_contents(header, data, self.name)
        img = self._jpeg(data, header, factor, out) if header.ordinary else None
        return fitted(self._opencv(data, header) if img is None else img, out)

    def decode_part(self, data: bytes, header: ImageHeader, part: CropTransform) -> Image:
        """As `decode`, a part of the upright picture; mostly a view, or a `ConfigError`."""
        if header.ordinary and not header.progressive and not self.strict:
            orientation = header.orientation if self.orient else 1
            size = header.upright_size if self.orient else (header.height, header.width)
            part.check(*size, self.name)
            stored = before_turning(part, size, orientation)
            fewer, shown = with_first_rows(data, header, stored.y0 + stored.h)
            check_contents(shown, fewer, self.name)
            img = self._jpeg(fewer, shown._replace(orientation=1), 1, None)
            if img is not None:
                return upright(stored.apply_image(img), orientation)
        img = self.decode(data, header)
        part.check(img.shape[0], img.shape[1], self.name)
        return part.apply_image(img)

    def _jpeg(
        self, data: bytes, header: ImageHeader, factor: int, out: NDArray[np.uint8] | None
    ) -> Image | None:
        """Decode by libjpeg-turbo, into `out` if possible; `None` if it does not know this kind."""
        channels = self.channels or (1 if header.channels == 1 else 3)
        stored = (-(-header.height // factor), -(-header.width // factor), channels)
        orientation = header.orientation if self.orient else 1
        memory = None if out is None or orientation > 1 else memory_of(out, stored)
        if memory is None or not memory.flags.c_contiguous:
            memory = np.empty(stored, np.uint8)
        try:
            _simplejpeg().decode_jpeg(
                data,
                colorspace=_JPEG_COLOURS[channels][self.rgb],
                min_height=stored[0],
                min_width=stored[1],
                buffer=memory,
                strict=self.strict,
            )
        except ValueError as error:
            if "subsampling" in str(error):
                return None
            raise damaged(self.name, "jpeg", str(error)) from error
        return upright(memory, orientation)

    def _opencv(self, data: bytes, header: ImageHeader) -> Image:
        """Decode by OpenCV, which refuses what is truncated."""
        cv2 = opencv()
        flags = {1: cv2.IMREAD_GRAYSCALE, 3: cv2.IMREAD_COLOR}.get(self.channels or 0)
        if flags is None:
            flags = cv2.IMREAD_UNCHANGED
        else:  # turned below, so that there is one opinion of how: the header's
            flags |= cv2.IMREAD_IGNORE_ORIENTATION
        raw = np.frombuffer(data, np.uint8)
        try:
            img = cv2.imdecode(raw, flags)
            if img is None and header.format == "tiff" and self.channels is not None:
                self._check_range(cv2.imdecode(raw, cv2.IMREAD_UNCHANGED))
        except cv2.error as error:
            raise damaged(self.name, header.format, str(error)) from error
        if img is None:
            raise damaged(self.name, header.format, "OpenCV cannot decode it")
        if self.channels is not None:
            self._check_range(img)
        if header.format == "jpeg" and img.shape[:2] != (header.height, header.width):
            raise damaged(self.name, "jpeg", "its pixels are not as many as its header says")
        img = img.reshape(*img.shape[:2], -1)
        turn = self.orient and (header.format == "jpeg" or self.channels in (1, 3))
        if header.format != "tiff":
            img = upright(img, header.orientation if turn else 1)
        elif not turn:  # OpenCV has turned it, whatever it was told
            img = upright(img, _BACK.get(header.orientation, header.orientation))
        return self._coloured(img)

    def _check_range(self, img: Image | None) -> None:
        """Refuse what cannot be scaled to uint8: nobody knows what is white."""
        if img is not None and img.dtype.name not in ("uint8", "uint16"):
            raise FormatError(
                f"Pixels of {self.name or 'the image'} are {img.dtype}, which have no known range.",
                expected="8 or 16 bits without a sign",
                fix="decode_image(channels=None) gives them as they are",
            )

    def _coloured(self, img: Image) -> Image:
        """From OpenCV's order and number of channels to those asked for."""
        cv2 = opencv()
        if self.channels == 4:
            img = np.right_shift(img, 8).astype(np.uint8) if img.dtype == np.uint16 else img
            codes = {1: cv2.COLOR_GRAY2BGRA, 3: cv2.COLOR_BGR2BGRA}
            img = cv2.cvtColor(img, codes[img.shape[2]]) if img.shape[2] in codes else img
        if not self.rgb or img.shape[2] not in (3, 4):
            return img
        if img.dtype.name not in ("uint8", "uint16", "float32"):  # OpenCV converts no others
            return img[:, :, [2, 1, 0, 3][: img.shape[2]]]
        return cv2.cvtColor(img, cv2.COLOR_BGR2RGB if img.shape[2] == 3 else cv2.COLOR_BGRA2RGBA)


def before_turning(part: CropTransform, size: tuple[int, int], orientation: int) -> CropTransform:
    """Where a part of an upright picture of some (height, width) lies in the picture as stored."""
    y0, x0, h, w = part.y0, part.x0, part.h, part.w
    if orientation in (2, 3, 6, 7):
        x0 = size[1] - x0 - w
    if orientation in (3, 4, 7, 8):
        y0 = size[0] - y0 - h
    return CropTransform(x0, y0, w, h) if orientation > 4 else CropTransform(y0, x0, h, w)


def upright(img: Image, orientation: int) -> Image:
    """The image, turned as EXIF's orientation (1 to 8) says."""
    if orientation > 4:
        img = transposed(img)
    if orientation in (2, 3, 6, 7):
        img = mirrored(img, -1 if orientation in (3, 7) else 1)
    elif orientation in (4, 8):
        img = mirrored(img, 0)
    return img


def fitted(img: Image, out: NDArray[np.uint8] | None) -> Image:
    """The image in the memory that was given for it, or in its own, or a `ConfigError`."""
    if out is None:
        return np.ascontiguousarray(img)
    if img.dtype != np.uint8:
        raise ConfigError(f"The image is {img.dtype}, and out is for uint8.", fix="leave out `out`")
    memory = memory_of(out, img.shape)
    if not np.may_share_memory(memory, img):
        np.copyto(memory, img)
    return memory


def memory_of(out: NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Memory for a result with the shape of the result; `out` itself if it has that."""
    size = math.prod(shape)
    if out.flags.writeable and out.dtype == np.uint8:
        if out.shape == shape:
            return out
        if out.ndim == 1 and out.flags.c_contiguous and out.size >= size:
            return out[:size].reshape(shape)
    read_only = not out.flags.writeable
    raise ConfigError(
        "out cannot be written." if read_only else "out does not fit the image.",
        got=describe(out) + (", read-only" if read_only else ""),
        expected=f"writeable uint8 {list(shape)}, or one axis of at least {size}",
        fix="leave out `out`, or ask image_header(data) for the size before decoding",
    )


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
    img = check_image(img)
    img = img[:, :, None] if img.ndim == 2 else img
    if img.dtype != np.uint8 or img.shape[2] not in (1, 3):
        raise ConfigError(
            "A JPEG is made of a uint8 image with 1 or 3 channels.", got=describe(img)
        )
    if not 1 <= integer_of(quality, "quality") <= 100 or subsampling not in _SUBSAMPLINGS:
        raise ConfigError(
            f"There is no quality={quality!r:.60} with subsampling={subsampling!r:.60}.",
            expected='1 to 100; "444", "422", "420", "440" or "411"',
        )
    colour = _JPEG_COLOURS[img.shape[2]][rgb]
    return _simplejpeg().encode_jpeg(
        np.ascontiguousarray(img),
        quality=quality,
        colorspace=colour,
        colorsubsampling="Gray" if colour == "GRAY" else subsampling,
    )


def _simplejpeg() -> Any:
    return require("simplejpeg", extra="image", needed_for="Decoding and encoding JPEG")
