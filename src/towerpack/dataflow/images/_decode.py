"""Image files from and to bytes: libjpeg-turbo for JPEGs, OpenCV for everything else.

`DecodeRandomCrop` decodes, crops and scales in one: what ImageNet training spends its time on.
"""

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
"""How large a picture is decoded by default: 300 MB in colour."""

Out = NDArray[np.uint8] | None

_JPEG_COLOURS = {1: ("GRAY", "GRAY"), 3: ("BGR", "RGB"), 4: ("BGRA", "RGBA")}
_SIGNED = 2  # numbers of a TIFF
_BACK = {6: 8, 8: 6}  # the turns that undo others; the rest undo themselves


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

    JPEGs are decoded by libjpeg-turbo, straight into `out` if that is given. OpenCV decodes
    everything else, with depths above 8 bits scaled down. Transparency is dropped, not blended:
    colors are those stored in the file. Of an animation the first frame is decoded.

    Args:
        data: The file.
        rgb: The order of colours; `False` is BGR, OpenCV's.
        channels: 1, 3 or 4; or `None` for what the file holds, 16 bits and floats included.
        min_size: (height, width), or one number for both: a JPEG may be decoded at 1/2, 1/4 or 1/8
            of its size, if it stays at least so large.
        part: (top, left, height, width) of what is wanted of the upright picture; not with
            `min_size`. With `strict=False`, rows of a JPEG stored below it are not decoded.
        out: uint8 memory for the result: of the result's shape, or one axis of at least its size.
        max_pixels: Larger pictures are an error, before memory is taken for them.
        orient: Turn the picture upright as its EXIF block says; other formats than JPEG only if
            `channels` is 1 or 3.
        strict: A truncated or damaged JPEG is an error; `False` takes what can be decoded of it.
        name: What messages call the picture.

    Returns:
        [height, width, channels], uint8.

    Raises:
        FormatError: No image file, or a damaged one, or one that is too large.
        ConfigError: `out` does not fit or is read-only, or the arguments make no sense.
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
        raise ConfigError("Either min_size or part can be given, not both.")
    least = args.height_and_width(min_size, "min_size")
    height, width = header.upright_size
    fits = (f for f in (8, 4, 2) if -(-height // f) >= least[0] and -(-width // f) >= least[1])
    return decoder.decode(data, header, next(fits, 1), out)


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
        """The header of a file that is not too large; upright if it is not to be turned."""
        header = image_header(data, name=self.name)
        headers.check_size(header, len(data), self.max_pixels, self.name)
        return header if self.orient else header._replace(orientation=1)

    def decode(self, data: bytes, header: ImageHeader, factor: int = 1, out: Out = None) -> Image:
        """Decode a file whose header was read; a JPEG at 1 / factor of its size."""
        headers.check_contents(header, data, self.name)
        img = self._jpeg(data, header, factor, out) if header.ordinary else None
        return _fitted(self._opencv(data, header) if img is None else img, out)

    def decode_part(self, data: bytes, header: ImageHeader, part: CropTransform) -> Image:
        """As `decode`, a part of the upright picture; mostly a view, or a `ConfigError`."""
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
        """Decode by libjpeg-turbo, into `out` if possible; `None` if it does not know this kind."""
        channels = self.channels or (1 if header.channels == 1 else 3)
        stored = (-(-header.height // factor), -(-header.width // factor), channels)
        memory = None if out is None or header.orientation > 1 else _memory_of(out, stored)
        if memory is None or not memory.flags.c_contiguous:
            memory = np.empty(stored, np.uint8)
        if not self.strict:
            memory[:] = 0  # libjpeg leaves pixels that it cannot read as they are
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
            raise headers.damaged(self.name, "jpeg", str(error)) from error
        return upright(memory, header.orientation)

    def _opencv(self, data: bytes, header: ImageHeader) -> Image:
        """Decode by OpenCV, which refuses what is truncated."""
        if self.channels == 4 and header.format in ("bmp", "gif", "tiff"):
            # OpenCV reads the colors of some of these files only without their alpha.
            color = replace(self, channels=3)._opencv(data, header._replace(orientation=1))
            exact = replace(self, channels=None)._opencv(data, header)
            alpha = exact[:, :, 3:] if exact.shape[2] == 4 else np.full_like(color[:, :, :1], 255)
            alpha = np.right_shift(alpha, 8) if alpha.dtype == np.uint16 else alpha
            return np.dstack([color, alpha.astype(np.uint8)])
        cv2 = opencv()
        flags = {1: cv2.IMREAD_GRAYSCALE, 3: cv2.IMREAD_COLOR}.get(self.channels or 0)
        # Turned below, so that there is one opinion of how: the header's.
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
            what = f"Pixels of {self.name or 'the image'} are {exact.dtype}"
            fix = "decode_image(channels=None) gives them as they are"
            raise FormatError(f"{what}, which have no known range.", fix=fix)
        if img is None:
            raise headers.damaged(self.name, header.format, "OpenCV cannot decode it")
        deep = self.channels is None and img.ndim == 3 and img.itemsize > 1
        if deep and tags.get(headers.PLANES) == 2:
            what = f"{self.name or 'The image'} has planes of {img.dtype}, which OpenCV mixes up"
            raise FormatError(f"{what}.", fix="decode_image(channels=3), or a TIFF without planes")
        if header.format == "jpeg" and img.shape[:2] != (header.height, header.width):
            raise headers.damaged(self.name, "jpeg", "its header tells another size")
        turn = header.format == "jpeg" or self.channels in (1, 3)
        orientation = header.orientation if turn else 1
        if header.format == "tiff":  # OpenCV has turned it, whatever it was told
            turned = image_header(data).orientation
            orientation = 1 if orientation == turned else _BACK.get(turned, turned)
        return self._coloured(upright(img.reshape(*img.shape[:2], -1), orientation))

    def _coloured(self, img: Image) -> Image:
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


@dataclass
class DecodeRandomCrop:
    """Decode an image file, cut a random part out and scale it to one size.

    Usually `MapDataComponent(ds, DecodeRandomCrop(224), rng=True)`. Part and pixels are those of
    `GoogleNetRandomCropAndResize`, with one exception: where the part is at least 2, 4 or 8 times
    as large as the result, a JPEG is decoded at 1/2, 1/4 or 1/8 of its size, which is faster and
    smoother. The edges of the part are then rounded outwards to 2, 4 or 8 pixels.

    Contract: a function of the file and the generator; thread-safe; pickles.

    Args:
        target_shape: (height, width) of the result, or one number for both.
        crop_area_fraction, aspect_ratio_range: See `GoogleNetRandomCropAndResize`.
        interp: How to interpolate. "linear" is fast; "area" takes as long as decoding.
        rgb, max_pixels: See `decode_image`.
        reduce: Decode large parts at a fraction of the size.
        strict: Refuse truncated and damaged JPEGs. `False` does not decode the rows below the part.
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
        """The part as uint8 [height, width, 3]; `out` and errors are as for `decode_image`."""
        data = as_bytes(data)
        header = self._decoder.read_header(data)
        # Of an image the draw looks at the shape alone.
        transform: Any = self._crop.get_transform(np.empty(header.upright_size, "V0"), rng)
        part = next(iter(transform))
        if not isinstance(part, CropTransform):  # no draw fitted: the middle, after scaling
            return _fitted(transform.apply_image(self._decoder.decode(data, header)), out)
        img = self._part(data, header, part)
        memory = None if out is None else _memory_of(out, (*self._target, 3))
        nearest = self.interp == "nearest"  # OpenCV's is another rule
        if nearest or memory is None or not memory.flags.c_contiguous:
            return _fitted(resize(img, *self._target, self.interp), out)
        size = self._target[::-1]
        return opencv().resize(img, size, dst=memory, interpolation=self._interp)

    def make_in_row(self, data: Bytes, rng: RNG | None = None) -> Image:
        """As calling it, in its place in the batch: see `towerpack.dataflow.empty_row`."""
        if type(self).__call__ is not DecodeRandomCrop.__call__:
            return self(data, rng)
        return self(data, rng, out=empty_row((*self._target, 3), np.uint8))

    def _part(self, data: bytes, header: ImageHeader, part: CropTransform) -> Image:
        """A part of an upright picture, reduced if it is a JPEG and that is good enough."""
        height, width = self._target
        larger = (f for f in (8, 4, 2) if part.h >= f * height and part.w >= f * width)
        factor = next(larger, 1) if self.reduce and header.format == "jpeg" else 1
        if factor == 1:
            return self._decoder.decode_part(data, header, part)
        # As it is stored: blocks begin at its edges, not at those of the upright picture.
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
    """Encode a uint8 image with 1 or 3 channels, or none, as JPEG.

    Args:
        img: The image; with `rgb=False` its colours are blue, green, red.
        quality: 1 to 100.
        subsampling: Of the colours: "444", "422", "420", "440" or "411".
    """
    img = check_image(img)
    img = img[:, :, None] if img.ndim == 2 else img
    if img.dtype != np.uint8 or img.shape[2] not in (1, 3):
        what = "A JPEG is made of a uint8 image with 1 or 3 channels."
        raise ConfigError(what, got=describe(img))
    colour = _JPEG_COLOURS[img.shape[2]][rgb]
    return _simplejpeg().encode_jpeg(
        np.ascontiguousarray(img),
        quality=quality,
        colorspace=colour,
        colorsubsampling="Gray" if colour == "GRAY" else subsampling,
    )


def _before_turning(part: CropTransform, header: ImageHeader) -> CropTransform:
    """Where a part of an upright picture lies in the picture as stored."""
    y0, x0, h, w = part.y0, part.x0, part.h, part.w
    if header.orientation in (2, 3, 6, 7):
        x0 = header.upright_size[1] - x0 - w
    if header.orientation in (3, 4, 7, 8):
        y0 = header.upright_size[0] - y0 - h
    turned = header.orientation > 4
    return CropTransform(x0, y0, w, h) if turned else CropTransform(y0, x0, h, w)


def _fitted(img: Image, out: Out) -> Image:
    """The image in the memory that was given for it, or in its own, or a `ConfigError`."""
    if out is None:
        return np.ascontiguousarray(img)
    if img.dtype != np.uint8:
        raise ConfigError(f"The image is {img.dtype}, and out is for uint8.", fix="leave out `out`")
    memory = _memory_of(out, img.shape)
    if not np.may_share_memory(memory, img):
        np.copyto(memory, img)
    return memory


def _memory_of(out: NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Memory for a result with the shape of the result; `out` itself if it has that."""
    size = math.prod(shape)
    if not out.flags.writeable:
        raise ConfigError("out cannot be written.", got=f"{describe(out)}, read-only")
    if out.dtype == np.uint8 and out.shape == shape:
        return out
    if out.dtype == np.uint8 and out.ndim == 1 and out.flags.c_contiguous and out.size >= size:
        return out[:size].reshape(shape)
    expected = f"uint8 {list(shape)}, or one axis of at least {size}"
    raise ConfigError("out does not fit the image.", got=describe(out), expected=expected)


def _simplejpeg() -> Any:
    return require("simplejpeg", extra="image", needed_for="Decoding and encoding JPEG")
