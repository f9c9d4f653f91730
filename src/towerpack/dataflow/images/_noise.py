from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack.dataflow.images import _arguments as args
from towerpack.dataflow.images._augmentor import RNG, PhotometricAugmentor
from towerpack.dataflow.images._color import ClippingAugmentor, ToUint8
from towerpack.dataflow.images._crop import draw_place
from towerpack.dataflow.images.image import Image, in_parts, like, opencv, pixel_values, size_of

_TRIES = 100


@dataclass(eq=False, repr=False)
class GaussianNoise(ClippingAugmentor):
    """Add normally distributed noise to every value.

    Args:
        sigma: Standard deviation of the noise, in the unit of the image's values.
        clip, max_value: See `Brightness`.
    """

    sigma: Annotated[float, args.number(0)] = 1.0
    clip: bool = True
    max_value: float = 255.0

    def draw(self, img: Image, rng: RNG) -> int:
        return draw_seed(rng)

    def change(self, img: Image, drawn: int) -> Image:
        noise = np.random.default_rng(drawn).standard_normal(img.shape, np.float32)
        noisy = img + noise * np.float32(self.sigma)
        return like(noisy, img, self.limit)


@dataclass(eq=False, repr=False)
class SaltPepperNoise(PhotometricAugmentor):
    """Set random pixels to white or black.

    Args:
        white_prob, black_prob: Fractions of the pixels.
        max_value: Value of white in float images: 255 or 1.
    """

    white_prob: args.Probability = 0.05
    black_prob: args.Probability = 0.05
    max_value: float = 255.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.white_prob + self.black_prob > 1:
            raise ConfigError(f"white_prob + black_prob must be at most 1, got {self!r}.")

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
    """Encode and decode as JPEG, to add compression artifacts.

    Args:
        quality_range: (low, high) quality from 0 to 100, excluding `high`.
        rgb: Order of the channels: RGB (`True`) or BGR (`False`).
        max_value: Value of white in float images, which are compressed as uint8.
    """

    quality_range: Annotated[tuple[int, int], args.whole_interval(0, 101)] = (40, 100)
    rgb: bool = True
    max_value: float = 255.0

    def draw(self, img: Image, rng: RNG) -> int:
        return int(rng.integers(*self.quality_range))

    def change(self, img: Image, drawn: int) -> Image:
        cv2, order = opencv(), -1 if self.rgb and img.shape[2:] == (3,) else 1  # OpenCV uses BGR
        factor = 1.0 if img.dtype == np.uint8 else 255 / self.max_value
        pixels = ToUint8(self.max_value).change(img, None)[..., ::order]
        quality = [cv2.IMWRITE_JPEG_QUALITY, drawn]
        _, encoded = cv2.imencode(".jpg", np.ascontiguousarray(pixels), quality)
        decoded = cv2.imdecode(encoded, cv2.IMREAD_UNCHANGED).reshape(img.shape)[..., ::order]
        return like(decoded / factor if factor != 1 else decoded, img, None)


@dataclass(eq=False, repr=False)
class GaussianBlur(PhotometricAugmentor):
    """Blur with a Gaussian window of random size.

    Args:
        size_range: (low, high) of n, excluding `high`, for a window of 2 * n + 1 pixels. A single
            number is `high`, with a `low` of 0.
        sigma_range: (lowest, highest) standard deviation in pixels. 0 derives it from the size.
        symmetric: Use the same window for x and y.
        max_size: Tensorpack's name for the `high` of `size_range`.
    """

    size_range: Annotated[Any, args.whole_interval(0)] = (0, 3)
    sigma_range: Annotated[tuple[float, float], args.interval(0)] = (0.0, 0.0)
    symmetric: bool = True
    max_size: int | None = None

    def __post_init__(self) -> None:
        high = self.size_range if self.max_size is None else self.max_size
        if np.ndim(high) == 0:
            self.size_range = (0, high)
        super().__post_init__()

    def draw(self, img: Image, rng: RNG) -> tuple[list[int], list[float]]:
        count = 1 if self.symmetric else 2
        low, high = self.size_range
        sizes = rng.integers(low, high, count) * 2 + 1
        sigmas = rng.uniform(*self.sigma_range, count)
        return np.resize(sizes, 2).tolist(), np.resize(sigmas, 2).tolist()

    def change(self, img: Image, drawn: tuple[list[int], list[float]]) -> Image:
        cv2, sizes, (x, y) = opencv(), *drawn
        border = cv2.BORDER_REPLICATE
        return in_parts(img, lambda part, _: cv2.GaussianBlur(part, sizes, x, None, y, border))


@dataclass(eq=False, repr=False)
class RandomCutout(PhotometricAugmentor):
    """Fill a rectangle at a random place. Masks and boxes do not change.

    DeVries & Taylor 2017, https://arxiv.org/abs/1708.04552.

    Args:
        h_range, w_range: Height and width in pixels: a number, or (least, greatest).
        fill: Value of the pixels: a number, or one for each channel.
    """

    h_range: Annotated[int | tuple[int, int], args.side_limits]
    w_range: Annotated[int | tuple[int, int], args.side_limits]
    fill: Any = 0

    def draw(self, img: Image, rng: RNG) -> tuple[int, int, int, int]:
        limits = args.side_limits(self.h_range), args.side_limits(self.w_range)
        h, w = (int(rng.integers(low, high + 1)) for low, high in limits)
        return *draw_place(size_of(img), (h, w), rng), h, w

    def change(self, img: Image, drawn: tuple[int, int, int, int]) -> Image:
        y, x, h, w = drawn
        cut = img.copy()
        cut[y : y + h, x : x + w] = pixel_values(self.fill, img)
        return cut


@dataclass(eq=False, repr=False)
class RandomErasing(PhotometricAugmentor):
    """Fill a rectangle of random area, shape and place. Masks and boxes do not change.

    Zhong et al. 2017, https://arxiv.org/abs/1708.04896, algorithm 1. If a hundred draws give no
    rectangle that fits, the image does not change.

    Args:
        prob: Probability to change an image.
        area: (least, greatest) area as a fraction of the image's area.
        aspect_ratio: (least, greatest) height / width, drawn uniformly on a logarithmic scale.
        fill: "random" for noise (best in the paper), a number, or one for each channel.
        max_value: Upper bound of noise in float images: 255 or 1.
    """

    prob: args.Probability = 0.5
    area: args.Fractions = (0.02, 0.4)
    aspect_ratio: args.Factors = (0.3, 1 / 0.3)
    fill: Any = "random"
    max_value: float = 255.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.fill, str) and self.fill != "random":
            raise ConfigError(f'fill must be "random" or numbers, got {self.fill!r}.')

    def draw(self, img: Image, rng: RNG) -> tuple[int, int, int, int, int] | None:
        if rng.random() >= self.prob:
            return None
        height, width = size_of(img)
        low, high = map(math.log, self.aspect_ratio)
        for _ in range(_TRIES):
            area = rng.uniform(*self.area) * height * width
            ratio = math.exp(rng.uniform(low, high))
            h, w = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < h <= height and 0 < w <= width:
                return *draw_place((height, width), (h, w), rng), h, w, draw_seed(rng)
        return None

    def change(self, img: Image, drawn: tuple[int, int, int, int, int] | None) -> Image:
        if drawn is None:
            return img
        y, x, h, w, seed = drawn
        erased, rng = img.copy(), np.random.default_rng(seed)
        part = erased[y : y + h, x : x + w]
        if not isinstance(self.fill, str):
            part[:] = pixel_values(self.fill, img)
        elif img.dtype == np.uint8:
            part[:] = rng.integers(256, size=part.shape, dtype=np.uint8)
        else:
            part[:] = rng.random(part.shape, np.float32) * np.float32(self.max_value)
        return erased


def draw_seed(rng: RNG) -> int:
    """Draw a seed for noise. Transforms store the seed, which is smaller than the noise."""
    return int(rng.integers(1 << 62))
