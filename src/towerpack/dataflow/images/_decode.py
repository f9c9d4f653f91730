"""Decoding of image files and encoding of JPEGs: libjpeg-turbo for JPEGs, OpenCV otherwise."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import towerpack.dataflow.images.headers as headers
from towerpack._core.errors import ConfigError, FormatError
from towerpack._core.extras import require
from towerpack.dataflow._batch_rows import empty_row
from towerpack.dataflow.datapoints import describe
from towerpack.dataflow.images import _arguments as args
from towerpack.dataflow.images._augmentor import RNG
from towerpack.dataflow.images._crop import CropTransform, GoogleNetRandomCropAndResize
from towerpack.dataflow.images.headers import Bytes, ImageHeader, as_bytes, image_header
from towerpack.dataflow.images.image import Image, check_image, opencv, resize, upright

MAX_PIXELS = 100_000_000
"""Default limit of the decoded size, in pixels: 300 MB in color."""

Out = NDArray[np.uint8] | None

_JPEG_COLORS = {1: ("GRAY", "GRAY"), 3: ("BGR", "RGB"), 4: ("BGRA", "RGBA")}
_SIGNED = 2  # sample format of a TIFF
_INVERSE = {6: 8, 8: 6}  # orientations that do not invert themselves


def decode_image(
    data: Bytes,
    *,
    rgb: bool = True,
    channels: int | None = 3,
    min_size: int | Sequence[int] | None = None,
    part: Sequence[int] | None = None,
    out: Out = None,
    max_pixels: int = MAX_PIXELS,
    orient: bool = True,
    strict: bool = True,
    name: str | None = None,
) -> Image:
    """Decode a JPEG, PNG, WebP, GIF, BMP or TIFF file.

    libjpeg-turbo decodes JPEGs, directly into `out` if possible. OpenCV decodes the other formats
    and scales depths above 8 bits down. Transparency is dropped without blending, so colors are
    those stored in the file. The first frame of an animation is decoded.

    Args:
        data: Contents of the file.
        rgb: Order of the colors: RGB (`True`) or BGR (`False`).
        channels: 1, 3 or 4, or `None` for the channels and the dtype of the file.
        min_size: (height, width), or one number for both. A JPEG is decoded at the smallest of
            1/8, 1/4, 1/2 or all of its size that is at least this large.
        part: (top, left, height, width) of the part of the upright image to return, instead of
            `min_size`. With `strict=False`, rows of a JPEG below the part are not decoded.
        out: uint8 memory for the result, with its shape, or one axis of at least its size.
        max_pixels: Larger images raise an error before memory is allocated.
        orient: Rotate the image as its EXIF block says. Formats other than JPEG are rotated only
            if `channels` is 1 or 3.
        strict: Raise an error for damaged JPEGs. Otherwise, decode as much as possible.
        name: Name of the image in error messages.

    Returns:
        Image [height, width, channels], uint8 unless `channels` is `None`.

    Raises:
        FormatError: The data is not an image file, is damaged, or is too large.
        ConfigError: `out` does not fit or is read-only, or arguments contradict each other.
    """
    data = as_bytes(data)
    decoder = Decoder(rgb, channels, orient, strict, max_pixels, name)
    header = decoder.read_header(data)
    if min_size is None:
        if part is None:
            return decoder.decode(data, header, 1, out)
        crop = CropTransform(*map(operator.index, part))
        return _fitted(decoder.decode_part(data, header, crop), out)
    if part is not None:
        raise ConfigError("decode_image got both min_size and part.", fix="pass one of them")
    least = args.height_and_width(min_size, "min_size")
    height, width = header.upright_size
    fits = (f for f in (8, 4, 2) if -(-height // f) >= least[0] and -(-width // f) >= least[1])
    return decoder.decode(data, header, next(fits, 1), out)


@dataclass(frozen=True)
class Decoder:
    """Settings for decoding image files. The arguments are those of `decode_image`."""

    rgb: bool = True
    channels: int | None = 3
    orient: bool = True
    strict: bool = True
    max_pixels: int = MAX_PIXELS
    name: str | None = None

    def __post_init__(self) -> None:
        if self.channels not in (None, 1, 3, 4):
            raise ConfigError(f"channels must be 1, 3, 4 or None, got {self.channels}.")

    def read_header(self, data: bytes) -> ImageHeader:
        """Read and check the header of a file. Without `orient`, ignore the orientation."""
        header = image_header(data, name=self.name)
        headers.check_size(header, len(data), self.max_pixels, self.name)
        return header if self.orient else header._replace(orientation=1)

    def decode(self, data: bytes, header: ImageHeader, factor: int = 1, out: Out = None) -> Image:
        """Decode a file with a known header. A JPEG is decoded at 1 / `factor` of its size."""
        headers.check_contents(header, data, self.name)
        img = self._jpeg(data, header, factor, out) if header.ordinary else None
        return _fitted(self._opencv(data, header) if img is None else img, out)

    def decode_part(self, data: bytes, header: ImageHeader, part: CropTransform) -> Image:
        """Decode a part of the upright image. The result may be a view of a larger array."""
        if header.ordinary and not header.progressive and not self.strict:
            part.check(*header.upright_size, self.name)
            stored = _before_turning(part, header)
            fewer, shown = headers.with_first_rows(data, header, stored.y0 + stored.h)
            headers.check_contents(shown, fewer, self.name)
            img = self._jpeg(fewer, shown._replace(orientation=1), 1, None)
            if img is not None:
                return upright(stored.apply_image(img), header.orientation)
        img = self.decode(data, header)
        part.check(img.shape[0], img.shape[1], self.name)
        return part.apply_image(img)

    def _jpeg(self, data: bytes, header: ImageHeader, factor: int, out: Out) -> Image | None:
        """Decode with libjpeg-turbo, into `out` if possible. Return `None` if not supported."""
        channels = self.channels or (1 if header.channels == 1 else 3)
        stored = (-(-header.height // factor), -(-header.width // factor), channels)
        memory = None if out is None or header.orientation > 1 else _memory_of(out, stored)
        if memory is None or not memory.flags.c_contiguous:
            memory = np.empty(stored, np.uint8)
        if not self.strict:
            memory[:] = 0  # libjpeg does not write pixels that it cannot read
        try:
            _simplejpeg().decode_jpeg(
                data,
                colorspace=_JPEG_COLORS[channels][self.rgb],
                min_height=stored[0],
                min_width=stored[1],
                buffer=memory,
                strict=self.strict,
            )
        except ValueError as error:
            if "subsampling" in str(error):
                return None
            raise headers.damaged(self.name, "jpeg", str(error)) from error
        return upright(memory, header.orientation)

    def _opencv(self, data: bytes, header: ImageHeader) -> Image:
        if self.channels == 4 and header.format in ("bmp", "gif", "tiff"):
            # OpenCV reads the colors of some of these files only without their alpha channel.
            color = replace(self, channels=3)._opencv(data, header._replace(orientation=1))
            exact = replace(self, channels=None)._opencv(data, header)
            alpha = exact[:, :, 3:] if exact.shape[2] == 4 else np.full_like(color[:, :, :1], 255)
            alpha = np.right_shift(alpha, 8) if alpha.dtype == np.uint16 else alpha
            return np.dstack([color, alpha.astype(np.uint8)])
        cv2 = opencv()
        flags = {1: cv2.IMREAD_GRAYSCALE, 3: cv2.IMREAD_COLOR}.get(self.channels or 0)
        # The image is rotated below, by the orientation in our header.
        flags = cv2.IMREAD_UNCHANGED if flags is None else flags | cv2.IMREAD_IGNORE_ORIENTATION
        shown = headers.with_stored_colors(data, header, alpha=self.channels is None)
        raw = np.frombuffer(shown, np.uint8)
        tags = headers.tiff_tags(data) if header.format == "tiff" else {}
        try:
            img = exact = cv2.imdecode(raw, flags)
            if tags and (img is None or tags.get(headers.SAMPLE_FORMAT) == _SIGNED):
                exact = cv2.imdecode(raw, cv2.IMREAD_UNCHANGED)
        except cv2.error as error:
            raise headers.damaged(self.name, header.format, str(error)) from error
        if self.channels and exact is not None and exact.dtype.name not in ("uint8", "uint16"):
            what = f"Pixels of {self.name or 'the image'} are {exact.dtype}, with an unknown range."
            raise FormatError(what, fix="pass channels=None to get the values in the file")
        if img is None:
            raise headers.damaged(self.name, header.format, "OpenCV cannot decode it")
        deep = self.channels is None and img.ndim == 3 and img.itemsize > 1
        if deep and tags.get(headers.PLANES) == 2:
            what = f"{self.name or 'The image'} has planes of {img.dtype}, which OpenCV mixes up."
            fix = "pass channels=3, or convert the file to a TIFF without planes"
            raise FormatError(what, fix=fix)
        if header.format == "jpeg" and img.shape[:2] != (header.height, header.width):
            raise headers.damaged(self.name, "jpeg", "its header has a different size")
        rotate = header.format == "jpeg" or self.channels in (1, 3)
        orientation = header.orientation if rotate else 1
        if header.format == "tiff":  # OpenCV rotates TIFFs whatever the flags say
            applied = image_header(data).orientation
            orientation = 1 if orientation == applied else _INVERSE.get(applied, applied)
        return self._colored(upright(img.reshape(*img.shape[:2], -1), orientation))

    def _colored(self, img: Image) -> Image:
        cv2 = opencv()
        if self.channels == 4:
            img = np.right_shift(img, 8).astype(np.uint8) if img.dtype == np.uint16 else img
            codes = {1: cv2.COLOR_GRAY2BGRA, 3: cv2.COLOR_BGR2BGRA}
            img = cv2.cvtColor(img, codes[img.shape[2]]) if img.shape[2] in codes else img
        if not self.rgb or img.shape[2] not in (3, 4):
            return img
        if img.dtype.name not in ("uint8", "uint16", "float32"):  # not supported by cvtColor
            return img[:, :, [2, 1, 0, 3][: img.shape[2]]]
        return cv2.cvtColor(img, cv2.COLOR_BGR2RGB if img.shape[2] == 3 else cv2.COLOR_BGRA2RGBA)


@dataclass
class DecodeRandomCrop:
    """Decode an image file, crop a random part and resize it to a fixed size.

    Typical use is `MapDataComponent(ds, DecodeRandomCrop(224), rng=True)`. The result equals that
    of `GoogleNetRandomCropAndResize`, except for large JPEGs. If the part is at least 2, 4 or 8
    times as large as the result, the JPEG is decoded at 1/2, 1/4 or 1/8 of its size. This is faster
    and smoother, and rounds the edges of the part outwards to 2, 4 or 8 pixels.



    Args:
        target_shape: (height, width) of the result, or one number for both.
        crop_area_fraction, aspect_ratio_range: See `GoogleNetRandomCropAndResize`.
        interp: Interpolation. "linear" is fast, "area" takes as long as decoding.
        rgb, max_pixels: See `decode_image`.
        reduce: Decode JPEGs at a reduced size if the part is large enough.
        strict: Raise an error for damaged JPEGs. `False` does not decode the rows below the part.
    """

    target_shape: args.Size = 224
    crop_area_fraction: tuple[float, float] = (0.08, 1.0)
    aspect_ratio_range: tuple[float, float] = (0.75, 1.333)
    interp: args.Interpolation = "linear"
    rgb: bool = True
    reduce: bool = True
    max_pixels: int = MAX_PIXELS
    strict: bool = True

    def __post_init__(self) -> None:
        self._target = args.height_and_width(self.target_shape, "target_shape")
        self._interp = args.interpolation(self.interp)
        self._decoder = Decoder(self.rgb, strict=self.strict, max_pixels=self.max_pixels)
        drawn = self.crop_area_fraction, self.aspect_ratio_range
        self._crop = GoogleNetRandomCropAndResize(*drawn, self.target_shape, self.interp)

    def __call__(self, data: Bytes, rng: RNG | None = None, *, out: Out = None) -> Image:
        """Decode, crop and resize. Return uint8 [height, width, 3]; `out` as for `decode_image`."""
        data = as_bytes(data)
        header = self._decoder.read_header(data)
        # The draw uses only the shape of the image.
        transform: Any = self._crop.get_transform(np.empty(header.upright_size, "V0"), rng)
        part = next(iter(transform))
        if not isinstance(part, CropTransform):  # no draw fitted, so resize and crop the center
            return _fitted(transform.apply_image(self._decoder.decode(data, header)), out)
        img = self._part(data, header, part)
        memory = None if out is None else _memory_of(out, (*self._target, 3))
        nearest = self.interp == "nearest"  # OpenCV picks different pixels
        if nearest or memory is None or not memory.flags.c_contiguous:
            return _fitted(resize(img, *self._target, self.interp), out)
        size = self._target[::-1]
        return opencv().resize(img, size, dst=memory, interpolation=self._interp)

    def make_in_row(self, data: Bytes, rng: RNG | None = None) -> Image:
        # Write the image into its row of the batch; see `towerpack.dataflow.empty_row`.
        if type(self).__call__ is not DecodeRandomCrop.__call__:
            return self(data, rng)
        return self(data, rng, out=empty_row((*self._target, 3), np.uint8))

    def _part(self, data: bytes, header: ImageHeader, part: CropTransform) -> Image:
        height, width = self._target
        larger = (f for f in (8, 4, 2) if part.h >= f * height and part.w >= f * width)
        factor = next(larger, 1) if self.reduce and header.format == "jpeg" else 1
        if factor == 1:
            return self._decoder.decode_part(data, header, part)
        # Crop before rotating, because blocks begin at the edges of the stored image.
        part = _before_turning(part, header)
        img = self._decoder.decode(data, header._replace(orientation=1), factor)
        if img.shape[:2] != (header.height, header.width):  # rounded outwards
            y0, x0 = part.y0 // factor, part.x0 // factor
            y1 = min(-(-(part.y0 + part.h) // factor), img.shape[0])
            x1 = min(-(-(part.x0 + part.w) // factor), img.shape[1])
            part = CropTransform(y0, x0, y1 - y0, x1 - x0)
        return upright(part.apply_image(img), header.orientation)


def encode_jpeg(
    img: Image, *, quality: int = 90, rgb: bool = True, subsampling: str = "420"
) -> bytes:
    """Encode an image as JPEG.

    Args:
        img: uint8 image [height, width] or [height, width, 1 or 3].
        quality: Quality from 1 to 100.
        rgb: Order of the colors: RGB (`True`) or BGR (`False`).
        subsampling: Chroma subsampling: "444", "422", "420", "440" or "411".

    Raises:
        ConfigError: `img` is not a uint8 image with 1 or 3 channels.
    """
    img = check_image(img)
    img = img[:, :, None] if img.ndim == 2 else img
    if img.dtype != np.uint8 or img.shape[2] not in (1, 3):
        what = "An image to encode as JPEG must be uint8 with 1 or 3 channels."
        raise ConfigError(what, got=describe(img))
    color = _JPEG_COLORS[img.shape[2]][rgb]
    return _simplejpeg().encode_jpeg(
        np.ascontiguousarray(img),
        quality=quality,
        colorspace=color,
        colorsubsampling="Gray" if color == "GRAY" else subsampling,
    )


def _before_turning(part: CropTransform, header: ImageHeader) -> CropTransform:
    """Convert the coordinates of a part of the upright image to those in the stored image."""
    y0, x0, h, w = part.y0, part.x0, part.h, part.w
    if header.orientation in (2, 3, 6, 7):
        x0 = header.upright_size[1] - x0 - w
    if header.orientation in (3, 4, 7, 8):
        y0 = header.upright_size[0] - y0 - h
    turned = header.orientation > 4
    return CropTransform(x0, y0, w, h) if turned else CropTransform(y0, x0, h, w)


def _fitted(img: Image, out: Out) -> Image:
    """Copy an image to `out`. Without `out`, return the image as a contiguous array."""
    if out is None:
        return np.ascontiguousarray(img)
    if img.dtype != np.uint8:
        raise ConfigError(
            f"out= needs a uint8 image, got {img.dtype}.",
            fix="leave out the argument out, or pass a uint8 image",
        )
    memory = _memory_of(out, img.shape)
    if not np.may_share_memory(memory, img):
        np.copyto(memory, img)
    return memory


def _memory_of(out: NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return `out`, or its beginning, with the shape of the result."""
    size = math.prod(shape)
    if not out.flags.writeable:
        raise ConfigError("out must be writable.", got=describe(out), fix="pass writable memory")
    if out.dtype == np.uint8 and out.shape == shape:
        return out
    if out.dtype == np.uint8 and out.ndim == 1 and out.flags.c_contiguous and out.size >= size:
        return out[:size].reshape(shape)
    expected = f"uint8 {list(shape)}, or one axis of at least {size}"
    raise ConfigError("out does not fit the image.", got=describe(out), expected=expected)


def _simplejpeg() -> Any:
    return require("simplejpeg", extra="image", needed_for="Decoding and encoding JPEG")
