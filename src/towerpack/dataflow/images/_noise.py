"""Noise, and rectangles cut out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from towerpack._core.errors import ConfigError, InternalError
from towerpack.dataflow._arguments import integer_of
from towerpack.dataflow.images._augmentor import RNG, PhotometricAugmentor
from towerpack.dataflow.images._crop import too_small
from towerpack.dataflow.images._image import Image, opencv, pixel_values, size_of
from towerpack.dataflow.images._ranges import check_number, check_whole_range, pair_of
from towerpack.dataflow.images._values import like, to_uint8


@dataclass(eq=False, repr=False)
class GaussianNoise(PhotometricAugmentor):
    """Adds a normal random number to every value.

    Args:
        sigma: Its standard deviation.
        clip: See `Brightness`, as `max_value`.
        max_value: White in float images.
    """

    sigma: float = 1.0
    clip: bool = True
    max_value: float = 255.0

    def __post_init__(self) -> None:
        check_number(self.sigma, "sigma", 0)

    def draw(self, img: Image, rng: RNG) -> int:
        return draw_seed(rng)

    def change(self, img: Image, drawn: int) -> Image:
        noise = np.random.default_rng(drawn).standard_normal(img.shape, np.float32)
        return like(
            img + noise * np.float32(self.sigma), img, self.max_value if self.clip else None
        )


@dataclass(eq=False, repr=False)
class SaltPepperNoise(PhotometricAugmentor):
    """Makes some pixels white and some black.

    Args:
        white_prob: Which fraction becomes white.
        black_prob: Which fraction becomes black.
        max_value: White in float images.
    """

    white_prob: float = 0.05
    black_prob: float = 0.05
    max_value: float = 255.0

    def __post_init__(self) -> None:
        check_number(self.white_prob, "white_prob", 0, 1)
        check_number(self.black_prob, "black_prob", 0, 1)
        if self.white_prob + self.black_prob > 1:
            raise ConfigError(f"{self!r}: these are fractions.", expected="a sum of at most 1")

    def draw(self, img: Image, rng: RNG) -> int:
        return draw_seed(rng)

    def change(self, img: Image, drawn: int) -> Image:
        number = np.random.default_rng(drawn).random(img.shape[:2], np.float32)
        noisy = img.copy()
        noisy[number < self.black_prob] = 0
        noisy[number >= 1 - self.white_prob] = 255 if img.dtype == np.uint8 else self.max_value
        return noisy


@dataclass(eq=False, repr=False)
class JpegNoise(PhotometricAugmentor):
    """Leaves the traces of JPEG compression: encodes and decodes.

    Args:
        quality_range: The quality is uniform in low..high-1, of 0 to 100.
        rgb: Three channels are red, green, blue; otherwise blue, green, red.
        max_value: White in float images, which are compressed as uint8.
    """

    quality_range: tuple[int, int] = (40, 100)
    rgb: bool = True
    max_value: float = 255.0

    def __post_init__(self) -> None:
        check_whole_range(self.quality_range, "quality_range", 0, 101)

    def draw(self, img: Image, rng: RNG) -> int:
        return int(rng.integers(*self.quality_range))

    def change(self, img: Image, drawn: int) -> Image:
        channels = 1 if img.ndim == 2 else img.shape[2]
        if channels not in (1, 3):
            raise ConfigError(f"JPEG has 1 or 3 channels, not {channels}.")
        swap = self.rgb and channels == 3
        factor = 1.0 if img.dtype == np.uint8 else 255 / self.max_value
        pixels = img if img.dtype == np.uint8 else to_uint8(img * factor)
        decoded = _through_jpeg(pixels[..., ::-1] if swap else pixels, drawn)
        decoded = decoded[..., ::-1] if swap else decoded
        return like(decoded / factor if factor != 1 else decoded, img, None)


@dataclass(eq=False, repr=False)
class RandomCutout(PhotometricAugmentor):
    """Fills a rectangle at a random place (DeVries & Taylor 2017). Masks and boxes stay.

    Args:
        h_range: Height of the rectangle: a number, or (least, greatest).
        w_range: Width of the rectangle, likewise.
        fill: What it is filled with: a number, or one for each channel.
    """

    h_range: int | tuple[int, int]
    w_range: int | tuple[int, int]
    fill: Any = 0

    def __post_init__(self) -> None:
        for limits in (self.h_range, self.w_range):
            low, high = side_limits(limits)
            if not 0 < low <= high:
                raise ConfigError(
                    f"{limits!r} is no length of a side.",
                    expected="a number, or (least, greatest), of 1 or more",
                )

    def draw(self, img: Image, rng: RNG) -> tuple[int, int, int, int]:
        height, width = size_of(img)
        h, w = (_draw_side(limits, rng) for limits in (self.h_range, self.w_range))
        if h > height or w > width:
            raise too_small((height, width), (h, w))
        y, x = int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1))
        return y, x, h, w

    def change(self, img: Image, drawn: tuple[int, int, int, int]) -> Image:
        y, x, h, w = drawn
        cut = img.copy()
        cut[y : y + h, x : x + w] = pixel_values(self.fill, img)
        return cut


def draw_seed(rng: RNG) -> int:
    """The seed of noise that is made where it is applied, so that a transform stays small."""
    return int(rng.integers(1 << 62))


def _through_jpeg(img: Image, quality: int) -> Image:
    cv2 = opencv()
    done, encoded = cv2.imencode(
        ".jpg", np.ascontiguousarray(img), [cv2.IMWRITE_JPEG_QUALITY, quality]
    )
    if not done:
        raise InternalError(f"OpenCV did not encode {img.shape} at quality {quality}.")
    decoded: Image = cv2.imdecode(encoded, cv2.IMREAD_UNCHANGED)
    return decoded.reshape(img.shape)


def side_limits(value: int | tuple[int, int]) -> tuple[int, int]:
    """The (least, greatest) length of a side, where one number is both."""
    low, high = pair_of(value) or (value, value)
    return integer_of(low, "The length of a side"), integer_of(high, "The length of a side")


def _draw_side(limits: int | tuple[int, int], rng: RNG) -> int:
    low, high = side_limits(limits)
    return int(rng.integers(low, high + 1))
