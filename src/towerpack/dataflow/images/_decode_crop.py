"""Decoding, cropping and scaling in one: what ImageNet training spends its time on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack.dataflow._datapoints import describe
from towerpack.dataflow._rows import empty_row
from towerpack.dataflow.images._augmentor import RNG
from towerpack.dataflow.images._crop import CropTransform, GoogleNetRandomCropAndResize
from towerpack.dataflow.images._decode import (
    MAX_PIXELS,
    Wanted,
    before_turning,
    check_size,
    check_writeable,
    decode_known,
    decode_part,
    upright,
)
from towerpack.dataflow.images._headers import Bytes, ImageHeader, as_bytes, image_header
from towerpack.dataflow.images._image import (
    INTERPOLATIONS,
    Image,
    Interpolation,
    height_and_width,
    interpolation,
    opencv,
)
from towerpack.dataflow.images._resampling import resize


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

    target_shape: int | tuple[int, int] = 224
    crop_area_fraction: tuple[float, float] = (0.08, 1.0)
    aspect_ratio_range: tuple[float, float] = (0.75, 1.333)
    interp: Interpolation = "linear"
    rgb: bool = True
    reduce: bool = True
    max_pixels: int = MAX_PIXELS
    strict: bool = True
    _crop: GoogleNetRandomCropAndResize = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._target = height_and_width(self.target_shape, "size")
        self._interp = interpolation(self.interp)
        self._wanted = Wanted(self.rgb, strict=self.strict)
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
            out: Contiguous memory for the result.

        Raises:
            FormatError: The file is damaged.
            ConfigError: `out` does not fit, or is read-only.
        """
        data = as_bytes(data)
        header = image_header(data)
        check_size(header, len(data), self.max_pixels, None)
        # Only a JPEG is not decoded as a whole. Of an image the draw looks at the shape alone: an
        # empty one takes no memory.
        is_jpeg = header.format == "jpeg"
        whole = None if is_jpeg else decode_known(data, header, self._wanted)
        seen = np.empty(header.upright_size, "V0") if whole is None else whole
        transform: Any = self._crop.get_transform(seen, rng)
        part = next(iter(transform))
        if not isinstance(part, CropTransform):  # no draw fitted: the middle, after scaling
            whole = decode_known(data, header, self._wanted) if whole is None else whole
            return self._kept(transform.apply_image(whole), out)
        img = self._part(data, header, part) if whole is None else part.apply_image(whole)
        return self._scaled(img, out)

    def make_in_row(self, data: Bytes, rng: RNG | None = None) -> Image:
        """As calling it, in its place in the batch: see `towerpack.dataflow.empty_row`."""
        if type(self).__call__ is not DecodeRandomCrop.__call__:
            return self(data, rng)
        return self(data, rng, out=empty_row((*self._target, 3), np.uint8))

    def _part(self, data: bytes, header: ImageHeader, part: CropTransform) -> Image:
        """A part of an upright JPEG, reduced if that is good enough."""
        factor = self._factor(part)
        if factor == 1:
            return decode_part(data, header, self._wanted, part)
        # Reduced as it is stored: blocks begin at its edges, not at those of the upright picture.
        lying = header._replace(orientation=1)
        part = before_turning(part, header.upright_size, header.orientation)
        img = decode_known(data, lying, self._wanted, factor)
        if img.shape[:2] != lying.upright_size:
            part = _reduced(part, factor, (img.shape[0], img.shape[1]))
        return upright(part.apply_image(img), header.orientation)

    def _factor(self, part: CropTransform) -> int:
        height, width = self._target
        larger = (f for f in (8, 4, 2) if part.h >= f * height and part.w >= f * width)
        return next(larger, 1) if self.reduce else 1

    def _scaled(self, img: Image, out: NDArray[np.uint8] | None) -> Image:
        if self._interp == INTERPOLATIONS["nearest"]:  # OpenCV's is another rule
            return self._kept(resize(img, *self._target, self._interp), out)
        if out is not None:
            self._check(out)
        return opencv().resize(img, self._target[::-1], dst=out, interpolation=self._interp)

    def _kept(self, img: Image, out: NDArray[np.uint8] | None) -> Image:
        if out is None:
            return img
        self._check(out)
        np.copyto(out, img)
        return out

    def _check(self, out: NDArray[np.uint8]) -> None:
        shape = (*self._target, 3)
        if out.shape != shape or out.dtype != np.uint8 or not out.flags.c_contiguous:
            # OpenCV would leave it alone, and allocate.
            raise ConfigError(
                "out does not fit the result.",
                got=describe(out),
                expected=f"contiguous uint8 {list(shape)}",
            )
        check_writeable(out)


def _reduced(part: CropTransform, factor: int, size: tuple[int, int]) -> CropTransform:
    """The part of an image at a fraction of the size, rounded outwards."""
    y0, x0 = part.y0 // factor, part.x0 // factor
    y1 = min(-(-(part.y0 + part.h) // factor), size[0])
    x1 = min(-(-(part.x0 + part.w) // factor), size[1])
    return CropTransform(y0, x0, y1 - y0, x1 - x0)
