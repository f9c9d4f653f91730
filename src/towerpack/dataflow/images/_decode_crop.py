"""Decoding, cropping and scaling in one: what ImageNet training spends its time on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack.dataflow._rows import empty_row
from towerpack.dataflow.images._arguments import (
    INTERPOLATIONS,
    Interpolation,
    Size,
    height_and_width,
    interpolation,
)
from towerpack.dataflow.images._augmentor import RNG
from towerpack.dataflow.images._crop import CropTransform, GoogleNetRandomCropAndResize
from towerpack.dataflow.images._decode import (
    MAX_PIXELS,
    Decoder,
    before_turning,
    fitted,
    memory_of,
    upright,
)
from towerpack.dataflow.images._headers import Bytes, ImageHeader, as_bytes
from towerpack.dataflow.images._image import Image, opencv, resize


@dataclass
class DecodeRandomCrop:
    """Decodes an image file, cuts a random part out and scales it to one size.

    The part is the one that `GoogleNetRandomCropAndResize` would draw, and the pixels are those
    that it would give, with one exception: where the part is at least 2, 4 or 8 times as large as
    the result, a JPEG is decoded at 1/2, 1/4 or 1/8 of its size, which is faster and blurs instead
    of leaving pixels out. The edges of the part are then rounded outwards to 2, 4 or 8 pixels.

    Usually `MapDataComponent(ds, DecodeRandomCrop(224), rng=True)`.

    Contract: a function of the file and the generator; thread-safe; pickles.

    Args:
        target_shape: (height, width) of the result, or one number for both.
        crop_area_fraction: See `GoogleNetRandomCropAndResize`, as the next two.
        aspect_ratio_range: Of the part.
        interp: How to interpolate. "linear" is fast; "area" takes as long as decoding.
        rgb: The order of colours.
        reduce: Decode large parts at a fraction of the size.
        max_pixels: See `decode_image`.
        strict: Refuse truncated and damaged JPEGs. `False` does not decode the rows below the part.
    """

    target_shape: Size = 224
    crop_area_fraction: tuple[float, float] = (0.08, 1.0)
    aspect_ratio_range: tuple[float, float] = (0.75, 1.333)
    interp: Interpolation = "linear"
    rgb: bool = True
    reduce: bool = True
    max_pixels: int = MAX_PIXELS
    strict: bool = True
    _crop: GoogleNetRandomCropAndResize = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._target = height_and_width(self.target_shape, "target_shape")
        self._interp = interpolation(self.interp)
        self._decoder = Decoder(self.rgb, strict=self.strict, max_pixels=self.max_pixels)
        self._crop = GoogleNetRandomCropAndResize(
            self.crop_area_fraction, self.aspect_ratio_range, self.target_shape, self.interp
        )

    def __call__(
        self, data: Bytes, rng: RNG | None = None, *, out: NDArray[np.uint8] | None = None
    ) -> Image:
        """The part as uint8 [height, width, 3].

        Args:
            data: The file.
            rng: What the part is drawn from.
            out: Memory for the result, as for `decode_image`.

        Raises:
            FormatError: The file is damaged.
            ConfigError: `out` does not fit, or is read-only.
        """
        data = as_bytes(data)
        header = self._decoder.read_header(data)
        # Only a JPEG is not decoded as a whole. Of an image the draw looks at the shape alone: an
        # empty one takes no memory.
        is_jpeg = header.format == "jpeg"
        whole = None if is_jpeg else self._decoder.decode(data, header)
        seen = np.empty(header.upright_size, "V0") if whole is None else whole
        transform: Any = self._crop.get_transform(seen, rng)
        part = next(iter(transform))
        if not isinstance(part, CropTransform):  # no draw fitted: the middle, after scaling
            whole = self._decoder.decode(data, header) if whole is None else whole
            return fitted(transform.apply_image(whole), out)
        img = self._part(data, header, part) if whole is None else part.apply_image(whole)
        if self._interp == INTERPOLATIONS["nearest"]:  # OpenCV's is another rule
            return fitted(resize(img, *self._target, self._interp), out)
        memory = None if out is None else memory_of(out, (*self._target, 3))
        direct = memory if memory is not None and memory.flags.c_contiguous else None
        size = self._target[::-1]
        img = opencv().resize(img, size, dst=direct, interpolation=self._interp)
        return img if direct is not None else fitted(img, out)

    def make_in_row(self, data: Bytes, rng: RNG | None = None) -> Image:
        """As calling it, in its place in the batch: see `towerpack.dataflow.empty_row`."""
        if type(self).__call__ is not DecodeRandomCrop.__call__:
            return self(data, rng)
        return self(data, rng, out=empty_row((*self._target, 3), np.uint8))

    def _part(self, data: bytes, header: ImageHeader, part: CropTransform) -> Image:
        """A part of an upright JPEG, reduced if that is good enough."""
        height, width = self._target
        larger = (f for f in (8, 4, 2) if part.h >= f * height and part.w >= f * width)
        factor = next(larger, 1) if self.reduce else 1
        if factor == 1:
            return self._decoder.decode_part(data, header, part)
        # Reduced as it is stored: blocks begin at its edges, not at those of the upright picture.
        lying = header._replace(orientation=1)
        part = before_turning(part, header.upright_size, header.orientation)
        img = self._decoder.decode(data, lying, factor)
        if img.shape[:2] != lying.upright_size:
            part = _reduced(part, factor, (img.shape[0], img.shape[1]))
        return upright(part.apply_image(img), header.orientation)


def _reduced(part: CropTransform, factor: int, size: tuple[int, int]) -> CropTransform:
    """The part of an image at a fraction of the size, rounded outwards."""
    y0, x0 = part.y0 // factor, part.x0 // factor
    y1 = min(-(-(part.y0 + part.h) // factor), size[0])
    x1 = min(-(-(part.x0 + part.w) // factor), size[1])
    return CropTransform(y0, x0, y1 - y0, x1 - x0)
