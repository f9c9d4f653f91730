"""Decoding, cropping and scaling in one: what ImageNet training spends its time on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack.dataflow._datapoints import describe
from towerpack.dataflow.images._augmentor import RNG
from towerpack.dataflow.images._crop import CropTransform, GoogleNetRandomCropAndResize
from towerpack.dataflow.images._decode import MAX_PIXELS, check_size, decode_image
from towerpack.dataflow.images._headers import Bytes, as_bytes, image_header
from towerpack.dataflow.images._image import (
    Image,
    Interpolation,
    height_and_width,
    interpolation,
    opencv,
)


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
        max_pixels: See `decode_image`, as `strict`.
        strict: Refuse truncated and damaged JPEGs.
    """

    target_shape: int | tuple[int, int] = 224
    crop_area_fraction: tuple[float, float] = (0.08, 1.0)
    aspect_ratio_range: tuple[float, float] = (0.75, 1.333)
    interp: Interpolation = "linear"
    rgb: bool = True
    reduce: bool = True
    max_pixels: int = MAX_PIXELS
    strict: bool = True
    _crop: GoogleNetRandomCropAndResize = field(init=False, repr=False)

    def __post_init__(self) -> None:
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
            ConfigError: `out` does not fit.
        """
        data = as_bytes(data)
        header = image_header(data)
        check_size(header, len(data), self.max_pixels, None)
        size = (header.height, header.width)
        size = size[::-1] if header.orientation > 4 else size
        # Only the shape is looked at: a picture of one byte.
        transform = self._crop.get_transform(np.broadcast_to(np.uint8(0), size), rng)
        steps: Any = transform
        first = next(iter(steps))
        if not isinstance(first, CropTransform):
            return _written(transform.apply_image(self._decoded(data, size)), out)
        factor = self._factor(first) if header.format == "jpeg" else 1
        img = self._decoded(data, (-(-size[0] // factor), -(-size[1] // factor)))
        return self._resized(_part(img, first, size[0] / img.shape[0] > 1.5 and factor or 1), out)
