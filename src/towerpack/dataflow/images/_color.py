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
    """Base class of augmentors that compute new values and optionally clip float images."""

    clip: bool
    max_value: float

    @property
    def limit(self) -> float | None:
        """Largest value of a float image after clipping, or `None` for no clipping."""
        return self.max_value if self.clip else None


@dataclass(eq=False, repr=False)
class Brightness(ClippingAugmentor):
    """Add one random number to all values of an image.

    Args:
        delta: Largest absolute value of the number, which is uniform in -delta..delta.
        clip: Clip float images to 0..max_value. uint8 images always stay in 0..255.
        max_value: Value of white in float images: 255 or 1.
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
    """Multiply all values of an image by one random factor.

    Args:
        range: (lowest, highest) factor.
        clip, max_value: See `Brightness`.
    """

    range: Limits
    clip: bool = True
    max_value: float = 255.0

    def draw(self, img: Image, rng: RNG) -> float:
        return rng.uniform(*self.range)

    def change(self, img: Image, drawn: float) -> Image:
        return map_values(img, lambda values: values * drawn, self.limit)


@dataclass(eq=False, repr=False)
class Contrast(ClippingAugmentor):
    """Scale the distance of all values from their mean: (x - mean) * factor + mean.

    Args:
        factor_range: (lowest, highest) factor.
        rgb: Use the mean of each channel (`None`), or the mean of the gray image computed from
            RGB (`True`) or BGR (`False`) channels.
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
        range: (lowest, highest) gamma, above -1. A gamma above 0 makes the image brighter.
        max_value: Value of white in float images: 255 or 1.
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
    """Clip values to `min`..`max`, which may be infinite."""

    min: float = 0.0
    max: float = 255.0

    def __post_init__(self) -> None:
        if not self.min <= self.max:
            raise ConfigError(f"min must be at most max, got {self!r}.")

    def change(self, img: Image, drawn: None) -> Image:
        return map_values(img, lambda values: np.clip(values, self.min, self.max), None)


@dataclass(eq=False, repr=False)
class Hue(PhotometricAugmentor):
    """Shift the hue by a random angle.

    Args:
        range: (lowest, highest) angle in OpenCV's units of two degrees, so 180 is a full turn.
            A moderate value is (-10, 10).
        rgb: Order of the channels: RGB (`True`) or BGR (`False`).
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
    """Change the saturation of colors: x * factor + gray * (1 - factor).

    Args:
        alpha: The factor is drawn uniformly from 1 - alpha to 1 + alpha.
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
        # One matrix product over the channels. OpenCV rounds and clips uint8.
        matrix = np.eye(3) * drawn + np.tile(luma(self.rgb), (3, 1)) * (1 - drawn)
        return like(opencv().transform(img, matrix), img, self.limit)


@dataclass(eq=False, repr=False)
class Lighting(ClippingAugmentor):
    """Add a random color along the principal components of the data set's colors.

    Krizhevsky et al. 2012, "ImageNet Classification with Deep CNNs", section 4.1.

    Args:
        std: Standard deviation of the factor of each component.
        eigval: [3] eigenvalues, in the unit of the image's values.
        eigvec: [3, 3] eigenvectors in columns, with rows in the order of the channels.
        clip, max_value: See `Brightness`.
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
    """Convert to another color space.

    Args:
        mode: Constant of OpenCV such as `cv2.COLOR_RGB2HSV`, or its name: "RGB2HSV".
        keepdims: Return a gray image with one channel instead of none.
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
    """Convert to gray.

    Args:
        keepdims: Return one channel, [height, width, 1], instead of [height, width].
        rgb: See `Hue`.
        keepshape: Return three equal channels, whatever `keepdims` says.
    """

    keepdims: bool = True
    rgb: bool = True
    keepshape: bool = False

    def change(self, img: Image, drawn: None) -> Image:
        check_color(img, self)
        cv2 = opencv()
        gray: Image = cv2.cvtColor(img, cv2.COLOR_RGB2GRAY if self.rgb else cv2.COLOR_BGR2GRAY)
        if self.keepshape:
            return np.repeat(gray[..., None], 3, axis=2)
        return gray[..., None] if self.keepdims else gray


@dataclass(eq=False, repr=False)
class MeanVarianceNormalize(PhotometricAugmentor):
    """Normalize every image to mean 0 and standard deviation 1, as float32.

    The divisor is at least 1 / sqrt(number of values), so that constant images do not explode.

    Args:
        all_channel: Normalize all channels together instead of each channel separately.
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
    """Scale every image linearly to the range min..max, as float32.

    An image with a single value becomes `min`.

    Args:
        min, max: Bounds of the range.
        all_channel: Scale all channels together instead of each channel separately.
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
    """Convert to uint8 by rounding and clipping. White (`max_value`, 255 or 1) becomes 255."""

    max_value: float = 255.0

    def change(self, img: Image, drawn: None) -> Image:
        if img.dtype == np.uint8:
            return img
        return to_uint8(img if self.max_value == 255 else img * (255 / self.max_value))


@dataclass(eq=False, repr=False)
class ToFloat32(PhotometricAugmentor):
    """Convert to float32. The uint8 value 255 becomes `max_value` (255 or 1)."""

    max_value: float = 255.0

    def change(self, img: Image, drawn: None) -> Image:
        if img.dtype == np.float32:
            return img
        values = img.astype(np.float32)
        return values if self.max_value == 255 else values * np.float32(self.max_value / 255)


def channel_means(img: Image) -> Floats:
    # NumPy takes ten times as long for both axes at once.
    means = img.mean(axis=0, dtype=np.float64).mean(axis=0)
    return means.reshape(-1).astype(np.float32)


def luma(rgb: bool) -> Floats:
    weights = np.array((0.299, 0.587, 0.114), np.float32)  # ITU-R BT.601
    return weights if rgb else weights[::-1]


def check_color(img: Image, augmentor: object) -> None:
    if img.ndim != 3 or img.shape[2] != 3:
        what = f"{augmentor!r} needs images with three color channels."
        raise ConfigError(what, got=describe(img), expected="[height, width, 3]")
