"""RandAugment: a few of many operations, drawn at random, all of one strength."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack.dataflow._arguments import integer_of
from towerpack.dataflow._datapoints import describe
from towerpack.dataflow.images._augmentor import RNG, ImageAugmentor
from towerpack.dataflow.images._color import Saturation
from towerpack.dataflow.images._histograms import autocontrast, equalize, posterize, solarize
from towerpack.dataflow.images._image import (
    Image,
    Interpolation,
    check_image,
    interpolation,
    opencv,
    size_of,
)
from towerpack.dataflow.images._light import BrightnessScale, Contrast
from towerpack.dataflow.images._ranges import check_number
from towerpack.dataflow.images._transform import (
    NoOpTransform,
    PhotometricTransform,
    Transform,
    TransformList,
)
from towerpack.dataflow.images._warp import WarpAffineTransform, affine, rotation

_SHEAR = 0.3
_TRANSLATE = 150 / 331  # of a side
_ROTATE = 30.0  # degrees
_ENHANCE = 0.9
_POSTERIZE = 4  # bits taken away
_SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13


@dataclass(eq=False, repr=False)
class RandAugment(ImageAugmentor):
    """Applies `n` operations drawn from fourteen, with replacement, all of strength `m`.

    Cubuk et al. 2019, https://arxiv.org/abs/1909.13719, with the operations of table 2 there and
    strengths that grow with `m`; those that have a direction (shears, shifts, rotations, more or
    less of colour, contrast, brightness and sharpness) draw it:

    | operation | at full strength |
    |---|---|
    | identity, auto-contrast, equalize | have none |
    | shear x, shear y | by 0.3, the top left corner fixed |
    | translate x, translate y | by 150/331 of the side |
    | rotate | by 30 degrees |
    | color, contrast, brightness, sharpness | by a factor of 1 ± 0.9 |
    | posterize | to 4 bits |
    | solarize | all values inverted |

    Masks, boxes and coordinates follow the geometric operations.

    Args:
        n: How many operations.
        m: How strong, from 0 to `max_m`. The paper takes (2, 9) for ResNet-50 on ImageNet.
        max_m: What full strength is called: 10 in the paper; torchvision counts to 30.
        fill: What comes in from outside: a number, or one for each channel.
        interp: Of the geometric operations.
        rgb: The channels are red, green, blue; otherwise blue, green, red.
        ops: Names of those to draw from, as in `RandAugment.OPS`; by default all.
        mask_value: The label of what comes in from outside.
    """

    n: int = 2
    m: float = 9.0
    max_m: float = 10.0
    fill: Any = 128
    interp: Interpolation = "linear"
    rgb: bool = True
    ops: tuple[str, ...] | None = None
    mask_value: Any = 0

    OPS = (
        "identity",
        "autocontrast",
        "equalize",
        "rotate",
        "solarize",
        "color",
        "posterize",
        "contrast",
        "brightness",
        "sharpness",
        "shear_x",
        "shear_y",
        "translate_x",
        "translate_y",
    )

    def __post_init__(self) -> None:
        interpolation(self.interp)
        integer_of(self.n, "n")
        check_number(self.m, "m")
        check_number(self.max_m, "max_m")
        if self.n < 0 or not 0 <= self.m <= self.max_m or self.max_m <= 0:
            raise ConfigError(
                f"RandAugment({self.n}, {self.m}, max_m={self.max_m}) makes no sense.",
                expected="n >= 0 and 0 <= m <= max_m",
            )
        unknown = set(self.ops or ()) - set(self.OPS)
        if unknown or self.ops == ():
            raise ConfigError(
                f"There is no operation {', '.join(map(repr, sorted(unknown))) or 'to draw'}.",
                expected=", ".join(self.OPS),
            )

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        rng = self.generator(rng)
        names: Sequence[str] = self.ops or self.OPS
        drawn: list[int] = rng.integers(len(names), size=self.n).tolist()
        signs: list[int] = (rng.integers(2, size=self.n) * 2 - 1).tolist()
        return TransformList(
            self.operation(names[index], sign * self.m / self.max_m, size_of(img))
            for index, sign in zip(drawn, signs, strict=True)
        )

    def operation(self, name: str, strength: float, size: tuple[int, int]) -> Transform:
        """One operation on an image of a size (height, width).

        Args:
            name: One of `OPS`.
            strength: -1 to 1; operations without a direction take its size.
            size: Of the image.
        """
        if name in _GEOMETRIC:
            height, width = size
            return WarpAffineTransform(
                _GEOMETRIC[name](strength, height, width),
                (width, height),
                self.interp,
                "constant",
                self.fill,
                self.mask_value,
            )
        if name == "identity":
            return NoOpTransform()
        return PhotometricTransform(
            partial(_changed, name, strength, self.rgb), f"{name}, {strength:+.2f}"
        )


def _changed(name: str, strength: float, rgb: bool, img: Image) -> Image:
    channels = 1 if check_image(img).ndim == 2 else img.shape[2]
    if img.dtype != np.uint8 or channels not in (1, 3):
        raise ConfigError(
            "RandAugment is for uint8 images of one or three channels.",
            got=describe(img),
            fix="put it before ToFloat32 and normalisation",
        )
    return _PHOTOMETRIC[name](img, strength, rgb)


def _color(img: Image, strength: float, rgb: bool) -> Image:
    if img.ndim == 2 or img.shape[2] == 1:
        return img
    return Saturation(rgb=rgb).change(img, 1 + _ENHANCE * strength)


def _contrast(img: Image, strength: float, rgb: bool) -> Image:
    grey = img.ndim == 2 or img.shape[2] == 1
    return Contrast((1, 1), None if grey else rgb).change(img, 1 + _ENHANCE * strength)


def _brightness(img: Image, strength: float, rgb: bool) -> Image:
    return BrightnessScale((1, 1)).change(img, 1 + _ENHANCE * strength)


def _sharpness(img: Image, strength: float, rgb: bool) -> Image:
    """Towards the smoothed image, or away from it; the outermost pixels stay, as in Pillow."""
    if min(img.shape[:2]) < 3:
        return img
    cv2 = opencv()
    factor = 1 + _ENHANCE * strength
    smooth = cv2.filter2D(img, -1, _SMOOTH).reshape(img.shape)
    sharpened: Image = cv2.addWeighted(img, factor, smooth, 1 - factor, 0).reshape(img.shape)
    for edge in (np.s_[0], np.s_[-1], np.s_[:, 0], np.s_[:, -1]):
        sharpened[edge] = img[edge]
    return sharpened


_PHOTOMETRIC: dict[str, Callable[[Image, float, bool], Image]] = {
    "autocontrast": lambda img, strength, rgb: autocontrast(img),
    "equalize": lambda img, strength, rgb: equalize(img),
    "posterize": lambda img, strength, rgb: posterize(img, 8 - round(_POSTERIZE * abs(strength))),
    "solarize": lambda img, strength, rgb: solarize(img, 256 * (1 - abs(strength))),
    "color": _color,
    "contrast": _contrast,
    "brightness": _brightness,
    "sharpness": _sharpness,
}

_GEOMETRIC: dict[str, Callable[[float, int, int], Any]] = {
    "shear_x": lambda s, h, w: affine(np.array([[1, _SHEAR * s], [0, 1]]), (0, 0)),
    "shear_y": lambda s, h, w: affine(np.array([[1, 0], [_SHEAR * s, 1]]), (0, 0)),
    "translate_x": lambda s, h, w: affine(np.eye(2), (0, 0), (_TRANSLATE * s * w, 0)),
    "translate_y": lambda s, h, w: affine(np.eye(2), (0, 0), (0, _TRANSLATE * s * h)),
    "rotate": lambda s, h, w: affine(rotation(_ROTATE * s), (w / 2, h / 2)),
}
