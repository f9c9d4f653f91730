"""Colours: hue, saturation, the noise of AlexNet, colour spaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack.dataflow._datapoints import describe
from towerpack.dataflow.images._arguments import interval, number
from towerpack.dataflow.images._augmentor import RNG, PhotometricAugmentor
from towerpack.dataflow.images._image import Image, check_color, like, luma, map_values, opencv


@dataclass(eq=False, repr=False)
class Hue(PhotometricAugmentor):
    """Turns the circle of colours by a random angle.

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
class Saturation(PhotometricAugmentor):
    """Makes colours stronger or greyer: x * factor + grey * (1 - factor).

    Args:
        alpha: The factor is uniform in 1 - alpha..1 + alpha.
        rgb: The channels are red, green, blue; otherwise blue, green, red.
        clip: See `Brightness`, as `max_value`.
        max_value: White in float images.
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
        return like(opencv().transform(img, matrix), img, self.max_value if self.clip else None)


@dataclass(eq=False, repr=False)
class Lighting(PhotometricAugmentor):
    """Adds a random colour along the principal components of the data set's colours.

    Krizhevsky et al. 2012, section 4.1.

    Args:
        std: Standard deviation of the random numbers that the components are multiplied by.
        eigval: [3] eigenvalues.
        eigvec: [3, 3]; each column is an eigenvector, its rows in the order of the channels.
        clip: See `Brightness`, as `max_value`.
        max_value: White in float images; `eigval` is in the same unit as the image.
    """

    std: Annotated[float, number(0)]
    eigval: Sequence[float]
    eigvec: Sequence[Sequence[float]]
    clip: bool = True
    max_value: float = 255.0

    def __post_init__(self) -> None:
        super().__post_init__()
        shapes = np.shape(self.eigval), np.shape(self.eigvec)
        if shapes != ((3,), (3, 3)):
            raise ConfigError(
                f"The shapes of eigval and eigvec are {list(shapes[0])} and {list(shapes[1])}.",
                expected="[3] and [3, 3]",
            )

    def draw(self, img: Image, rng: RNG) -> list[float]:
        weights = rng.normal(0, self.std, 3) * np.asarray(self.eigval)
        return (np.asarray(self.eigvec) @ weights).tolist()

    def change(self, img: Image, drawn: list[float]) -> Image:
        check_color(img, self)
        shift = np.array(drawn, np.float32)
        return map_values(img, lambda values: values + shift, self.max_value if self.clip else None)


@dataclass(eq=False, repr=False)
class ColorSpace(PhotometricAugmentor):
    """Converts to another colour space.

    Args:
        mode: A constant of OpenCV such as `cv2.COLOR_RGB2HSV`, or its name: "RGB2HSV".
        keepdims: An image that had channels keeps them, be it one.
    """

    mode: int | str
    keepdims: bool = True

    def __post_init__(self) -> None:
        cv2 = opencv()
        names = [name for name in dir(cv2) if name.startswith("COLOR_")]
        if f"COLOR_{self.mode}" not in names and self.mode not in [getattr(cv2, n) for n in names]:
            raise ConfigError(
                f"OpenCV has no conversion {self.mode!r}.", expected='"RGB2HSV", "BGR2GRAY", ...'
            )

    def change(self, img: Image, drawn: None) -> Image:
        cv2 = opencv()
        mode = getattr(cv2, f"COLOR_{self.mode}") if isinstance(self.mode, str) else self.mode
        try:
            converted: Image = cv2.cvtColor(img, mode)
        except cv2.error as error:
            raise ConfigError(
                f"{self!r} does not convert such images.",
                got=describe(img),
                fix="a mode that fits how many channels they have, and their dtype",
            ) from error
        if self.keepdims and img.ndim == 3 and converted.ndim == 2:
            return converted[..., None]
        return converted


@dataclass(eq=False, repr=False)
class Grayscale(PhotometricAugmentor):
    """Takes the colours away.

    Args:
        keepdims: The result has one channel; otherwise it is [height, width].
        rgb: The channels are red, green, blue; otherwise blue, green, red.
        keepshape: The result has three equal channels.
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
