"""Brightness, contrast, hue and other colours; number ranges and types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack.dataflow.datapoints import describe
from towerpack.dataflow.images._arguments import interval, number
from towerpack.dataflow.images._augmentor import RNG, PhotometricAugmentor
from towerpack.dataflow.images.image import Floats, Image, like, map_values, opencv, to_uint8

Limits = Annotated[tuple[float, float], interval()]


class ClippingAugmentor(PhotometricAugmentor):
    """Base of those that compute new values, and keep float images in 0..max_value if asked to."""

    clip: bool
    max_value: float

    @property
    def limit(self) -> float | None:
        """What white is in float images that are to be clipped."""
        return self.max_value if self.clip else None


@dataclass(eq=False, repr=False)
class Brightness(ClippingAugmentor):
    """Add one random number to all values.

    Args:
        delta: The number is uniform in -delta..delta.
        clip: Keep float images in 0..max_value. uint8 images always stay in 0..255.
        max_value: What white is in float images: 255 or 1.
    """

    delta: Annotated[float, number()]
    clip: bool = True
    max_value: float = 255.0

    def draw(self, img: Image, rng: RNG) -> float:
        return rng.uniform(-abs(self.delta), abs(self.delta))

    def change(self, img: Image, drawn: float) -> Image:
        return map_values(img, lambda values: values + drawn, self.limit)


@dataclass(eq=False, repr=False)
class BrightnessScale(ClippingAugmentor):
    """Multiply all values by one factor, uniform in `range`; the rest is as for `Brightness`."""

    range: Limits
    clip: bool = True
    max_value: float = 255.0

    def draw(self, img: Image, rng: RNG) -> float:
        return rng.uniform(*self.range)

    def change(self, img: Image, drawn: float) -> Image:
        return map_values(img, lambda values: values * drawn, self.limit)


@dataclass(eq=False, repr=False)
class Contrast(ClippingAugmentor):
    """Move all values away from their mean, or towards it: (x - mean) * factor + mean.

    Args:
        factor_range: The factor is uniform in (lowest, highest).
        rgb: The mean is that of each channel (`None`), or that of the grey image, the channels
            being red, green, blue (`True`) or blue, green, red (`False`).
        clip, max_value: See `Brightness`.
    """

    factor_range: Limits
    rgb: bool | None = None
    clip: bool = True
    max_value: float = 255.0

    def draw(self, img: Image, rng: RNG) -> float:
        return rng.uniform(*self.factor_range)

    def change(self, img: Image, drawn: float) -> Image:
        mean = channel_means(img)
        if self.rgb is not None:
            check_color(img, self)
            mean = mean @ luma(self.rgb)
        return map_values(img, lambda values: values * drawn + mean * (1 - drawn), self.limit)


@dataclass(eq=False, repr=False)
class Gamma(PhotometricAugmentor):
    """Raise values, as fractions of white, to the power of 1 / (1 + gamma).

    Args:
        range: gamma is uniform in (lowest, highest); above 0 is brighter, and it is above -1.
        max_value: White in float images: 255 or 1.
    """

    range: Annotated[tuple[float, float], interval(above=-1)] = (-0.5, 0.5)
    max_value: float = 255.0

    def draw(self, img: Image, rng: RNG) -> float:
        return rng.uniform(*self.range)

    def change(self, img: Image, drawn: float) -> Image:
        white = 255.0 if img.dtype == np.uint8 else self.max_value
        power = 1 / (1 + drawn)
        return map_values(
            img, lambda values: np.clip(values / white, 0, 1) ** power * white, self.max_value
        )


@dataclass(eq=False, repr=False)
class Clip(PhotometricAugmentor):
    """Keep values within `min` and `max`."""

    min: float = 0.0
    max: float = 255.0

    def __post_init__(self) -> None:
        # Either of them may be infinite.
        if not self.min <= self.max:
            raise ConfigError(f"{self!r} leaves no values.", expected="min <= max")

    def change(self, img: Image, drawn: None) -> Image:
        return map_values(img, lambda values: np.clip(values, self.min, self.max), None)


@dataclass(eq=False, repr=False)
class Hue(PhotometricAugmentor):
    """Turn the circle of colours by a random angle.

    Args:
        range: The angle is uniform in (lowest, highest), in units of two degrees, as OpenCV counts
            hues: 180 is once around. Try (-10, 10).
        rgb: The channels are red, green, blue; otherwise blue, green, red.
    """

    range: Annotated[tuple[float, float], interval()] = (0.0, 180.0)
    rgb: bool = True

    def draw(self, img: Image, rng: RNG) -> float:
        return rng.uniform(*self.range)

    def change(self, img: Image, drawn: float) -> Image:
        check_color(img, self)
        cv2 = opencv()
        hsv = cv2.cvtColor(img, cv2.COLOR_RGB2HSV if self.rgb else cv2.COLOR_BGR2HSV)
        if img.dtype == np.uint8:
            table = np.repeat(np.arange(256)[:, None], 3, axis=1)
            table[:, 0] = (table[:, 0] + round(drawn)) % 180
            hsv = cv2.LUT(hsv, table.astype(np.uint8)[None])
        else:
            hsv[..., 0] = (hsv[..., 0] + 2 * drawn) % 360
        return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB if self.rgb else cv2.COLOR_HSV2BGR)


@dataclass(eq=False, repr=False)
class Saturation(ClippingAugmentor):
    """Make colours stronger or greyer: x * factor + grey * (1 - factor).

    Args:
        alpha: The factor is uniform in 1 - alpha..1 + alpha.
        rgb, clip, max_value: See `Hue` and `Brightness`.
    """

    alpha: Annotated[float, number()] = 0.4
    rgb: bool = True
    clip: bool = True
    max_value: float = 255.0

    def draw(self, img: Image, rng: RNG) -> float:
        return 1 + rng.uniform(-abs(self.alpha), abs(self.alpha))

    def change(self, img: Image, drawn: float) -> Image:
        check_color(img, self)
        # As one matrix of colours; OpenCV rounds and clips for uint8.
        matrix = np.eye(3) * drawn + np.tile(luma(self.rgb), (3, 1)) * (1 - drawn)
        return like(opencv().transform(img, matrix), img, self.limit)


@dataclass(eq=False, repr=False)
class Lighting(ClippingAugmentor):
    """Add a random colour along the principal components of the data set's colours.

    Krizhevsky et al. 2012, section 4.1.

    Args:
        std: Standard deviation of the random numbers that the components are multiplied by.
        eigval: [3] eigenvalues.
        eigvec: [3, 3]; each column is an eigenvector, its rows in the order of the channels.
        clip, max_value: See `Brightness`; `eigval` is in the same unit as the image.
    """

    std: Annotated[float, number(0)]
    eigval: Sequence[float]
    eigvec: Sequence[Sequence[float]]
    clip: bool = True
    max_value: float = 255.0

    def draw(self, img: Image, rng: RNG) -> list[float]:
        weights = rng.normal(0, self.std, 3) * np.asarray(self.eigval)
        return (np.asarray(self.eigvec) @ weights).tolist()

    def change(self, img: Image, drawn: list[float]) -> Image:
        check_color(img, self)
        shift = np.array(drawn, np.float32)
        return map_values(img, lambda values: values + shift, self.limit)


@dataclass(eq=False, repr=False)
class ColorSpace(PhotometricAugmentor):
    """Convert to another colour space.

    Args:
        mode: A constant of OpenCV such as `cv2.COLOR_RGB2HSV`, or its name: "RGB2HSV".
        keepdims: An image that had channels keeps them, be it one.
    """

    mode: int | str
    keepdims: bool = True

    def change(self, img: Image, drawn: None) -> Image:
        cv2 = opencv()
        mode = getattr(cv2, f"COLOR_{self.mode}") if isinstance(self.mode, str) else self.mode
        converted: Image = cv2.cvtColor(img, mode)
        keep = self.keepdims and img.ndim == 3 and converted.ndim == 2
        return converted[..., None] if keep else converted


@dataclass(eq=False, repr=False)
class Grayscale(PhotometricAugmentor):
    """Take the colours away (for `rgb` see `Hue`).

    The result has three equal channels with `keepshape`, else one with `keepdims`, else no axis.
    """

    keepdims: bool = True
    rgb: bool = True
    keepshape: bool = False

    def change(self, img: Image, drawn: None) -> Image:
        check_color(img, self)
        cv2 = opencv()
        grey: Image = cv2.cvtColor(img, cv2.COLOR_RGB2GRAY if self.rgb else cv2.COLOR_BGR2GRAY)
        if self.keepshape:
            return np.repeat(grey[..., None], 3, axis=2)
        return grey[..., None] if self.keepdims else grey


@dataclass(eq=False, repr=False)
class MeanVarianceNormalize(PhotometricAugmentor):
    """Give every image mean 0 and standard deviation 1, as float32.

    The deviation counts as at least 1 / sqrt(number of values), so that even images are not blown
    up. With `all_channel` over all channels together; otherwise each by itself.
    """

    all_channel: bool = True

    def change(self, img: Image, drawn: None) -> Image:
        mean: Any = np.mean if self.all_channel else channel_means
        values = img.astype(np.float32)
        values -= mean(values)
        count = img.size if self.all_channel else img.shape[0] * img.shape[1]
        return values / np.maximum(np.sqrt(mean(values * values)), np.float32(count**-0.5))


@dataclass(eq=False, repr=False)
class MinMaxNormalize(PhotometricAugmentor):
    """Stretch every image to min..max, as float32; an image of one value becomes `min`.

    With `all_channel` over all channels together; otherwise each by itself.
    """

    min: float = 0.0
    max: float = 255.0
    all_channel: bool = True

    def change(self, img: Image, drawn: None) -> Image:
        values = img.astype(np.float32)
        values -= values.min() if self.all_channel else values.min(axis=0).min(axis=0)
        greatest = values.max() if self.all_channel else values.max(axis=0).max(axis=0)
        values *= (self.max - self.min) / np.where(greatest > 0, greatest, np.float32(1))
        return values + np.float32(self.min)


@dataclass(eq=False, repr=False)
class ToUint8(PhotometricAugmentor):
    """Convert to uint8, rounded, and clipped to 0..255; `max_value` (255 or 1) becomes 255."""

    max_value: float = 255.0

    def change(self, img: Image, drawn: None) -> Image:
        if img.dtype == np.uint8:
            return img
        return to_uint8(img if self.max_value == 255 else img * (255 / self.max_value))


@dataclass(eq=False, repr=False)
class ToFloat32(PhotometricAugmentor):
    """Convert to float32; 255 becomes `max_value` (255 or 1)."""

    max_value: float = 255.0

    def change(self, img: Image, drawn: None) -> Image:
        if img.dtype == np.float32:
            return img
        values = img.astype(np.float32)
        return values if self.max_value == 255 else values * np.float32(self.max_value / 255)


def channel_means(img: Image) -> Floats:
    """The mean of each channel, of shape [channels]."""
    # Rows first: along both axes at once NumPy takes ten times as long.
    means = img.mean(axis=0, dtype=np.float64).mean(axis=0)
    return means.reshape(-1).astype(np.float32)


def luma(rgb: bool) -> Floats:
    """Luma coefficients (ITU-R BT.601), in the order of the channels."""
    weights = np.array((0.299, 0.587, 0.114), np.float32)
    return weights if rgb else weights[::-1]


def check_color(img: Image, who: object) -> None:
    """Raise `ConfigError` for an image without three channels."""
    if img.ndim != 3 or img.shape[2] != 3:
        what = f"{who!r} is for images of three colours."
        raise ConfigError(what, got=describe(img), expected="[height, width, 3]")
