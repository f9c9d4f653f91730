from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack.dataflow.arguments import integer_of
from towerpack.dataflow.datapoints import describe
from towerpack.dataflow.images._arguments import Interpolation, number
from towerpack.dataflow.images._augmentor import RNG, ImageAugmentor
from towerpack.dataflow.images._color import BrightnessScale, Contrast, Saturation
from towerpack.dataflow.images._transform import (
    NoOpTransform,
    PhotometricTransform,
    Transform,
    TransformList,
)
from towerpack.dataflow.images._warp import WarpAffineTransform, affine, rotation
from towerpack.dataflow.images.image import Image, look_up, map_values, opencv, size_of

_SHEAR = 0.3
_TRANSLATE = 150 / 331  # of a side
_ROTATE = 30.0  # degrees
_ENHANCE = 0.9
_POSTERIZE = 4  # bits taken away
_SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13


@dataclass(eq=False, repr=False)
class RandAugment(ImageAugmentor):
    """Apply `n` operations drawn from fourteen, with replacement, all of strength `m`.

    Cubuk et al. 2019, https://arxiv.org/abs/1909.13719, with the operations of their table 2. The
    direction of an operation is random. Geometric operations also move masks, boxes and points.

    | operation | at full strength |
    |---|---|
    | identity, auto-contrast, equalize | independent of the strength |
    | shear x, shear y | by 0.3, the top left corner fixed |
    | translate x, translate y | by 150/331 of the side |
    | rotate | by 30 degrees |
    | color, contrast, brightness, sharpness | by a factor of 1 ± 0.9 |
    | posterize; solarize | to 4 bits; all values inverted |

    Args:
        n: Number of operations.
        m: Strength from 0 to `max_m`. The paper uses n=2 and m=9 for ResNet-50 on ImageNet.
        max_m: Value of `m` for full strength: 10 in the paper, 30 in torchvision.
        fill: Value of pixels from outside of the image: a number, or one for each channel.
        interp: Interpolation of the geometric operations.
        rgb: Order of the channels: RGB (`True`) or BGR (`False`).
        ops: Names of the operations to draw from (default: all of `RandAugment.OPS`).
        mask_value: Label of mask pixels from outside of the image.
    """

    n: Annotated[int, integer_of, number(0)] = 2
    m: Annotated[float, number(0)] = 9.0
    max_m: Annotated[float, number(above=0)] = 10.0
    fill: Any = 128
    interp: Interpolation = "linear"
    rgb: bool = True
    ops: tuple[str, ...] | None = None
    mask_value: Any = 0

    OPS = (
        "identity", "autocontrast", "equalize", "rotate", "solarize", "color", "posterize",
        "contrast", "brightness", "sharpness", "shear_x", "shear_y", "translate_x", "translate_y",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.m > self.max_m:
            raise ConfigError(f"m must be at most max_m={self.max_m}, got {self.m}.")
        if self.ops == () or not set(self.ops or ()) <= set(self.OPS):
            raise ConfigError(f"ops must be some of {', '.join(self.OPS)}, got {self.ops!r}.")

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
        # `strength` is from -1 to 1, `size` is the (height, width) of the image.
        if name == "identity":
            return NoOpTransform()
        if name in _PHOTOMETRIC:
            change = partial(_changed, name, strength, self.rgb)
            return PhotometricTransform(change, f"{name}, {strength:+.2f}")
        h, w = size
        matrix, outside = _GEOMETRIC[name](strength, h, w), (self.fill, self.mask_value)
        return WarpAffineTransform(matrix, (w, h), self.interp, "constant", *outside)


def _changed(name: str, strength: float, rgb: bool, img: Image) -> Image:
    if img.dtype != np.uint8 or img.shape[2:] not in ((), (1,), (3,)):
        what = "RandAugment needs uint8 images of one or three channels."
        fix = "apply RandAugment before ToFloat32 and normalization"
        raise ConfigError(what, got=describe(img), fix=fix)
    return _PHOTOMETRIC[name](img, strength, rgb)


def _enhanced(name: str, img: Image, strength: float, rgb: bool) -> Image:
    factor, gray = 1 + _ENHANCE * strength, img.ndim == 2 or img.shape[2] == 1
    if name == "color":
        return img if gray else Saturation(rgb=rgb).change(img, factor)
    if name == "contrast":
        return Contrast((1, 1), None if gray else rgb).change(img, factor)
    return BrightnessScale((1, 1)).change(img, factor)


def _sharpness(img: Image, strength: float, rgb: bool) -> Image:
    """Blend an image with a smoothed image, or extrapolate. Border pixels stay, as in Pillow."""
    if min(img.shape[:2]) < 3:
        return img
    cv2 = opencv()
    factor = 1 + _ENHANCE * strength
    smooth = cv2.filter2D(img, -1, _SMOOTH).reshape(img.shape)
    sharpened: Image = cv2.addWeighted(img, factor, smooth, 1 - factor, 0).reshape(img.shape)
    for edge in (np.s_[0], np.s_[-1], np.s_[:, 0], np.s_[:, -1]):
        sharpened[edge] = img[edge]
    return sharpened


# The tables of auto-contrast and equalization are those of Pillow.


def _autocontrast(histogram: NDArray[np.int64]) -> NDArray[Any]:
    occurring = np.flatnonzero(histogram)
    low, high = int(occurring[0]), int(occurring[-1])
    if high == low:
        return np.arange(256)
    scale = 255 / (high - low)
    # The order matters, because fractions are cut off.
    return np.clip(np.arange(256) * scale - low * scale, 0, 255)


def _equalize(histogram: NDArray[np.int64]) -> NDArray[Any]:
    step = (int(histogram.sum()) - int(histogram[histogram > 0][-1])) // 255
    if step == 0:
        return np.arange(256)
    before = np.cumsum(histogram) - histogram
    return np.minimum((step // 2 + before) // step, 255)


def _by_histogram(
    table_of: Callable[[NDArray[np.int64]], NDArray[Any]], img: Image, strength: float, rgb: bool
) -> Image:
    flat = img.reshape(*img.shape[:2], -1)
    tables = [
        # OpenCV counts in float32, which is exact up to 2**24 pixels of one value.
        table_of(opencv().calcHist([flat], [c], None, [256], [0, 256]).ravel().astype(np.int64))
        for c in range(flat.shape[2])
    ]
    return look_up(img, np.stack(tables, axis=1).astype(np.uint8))


def _solarize(img: Image, strength: float, rgb: bool) -> Image:
    from_ = 256 * (1 - abs(strength))
    return map_values(img, lambda values: np.where(values < from_, values, 255 - values), None)


_PHOTOMETRIC: dict[str, Callable[[Image, float, bool], Image]] = {
    "autocontrast": partial(_by_histogram, _autocontrast),
    "equalize": partial(_by_histogram, _equalize),
    "posterize": lambda img, s, _: img & np.uint8(256 - (1 << round(_POSTERIZE * abs(s))) & 255),
    "solarize": _solarize,
    **{name: partial(_enhanced, name) for name in ("color", "contrast", "brightness")},
    "sharpness": _sharpness,
}

_GEOMETRIC: dict[str, Callable[[float, int, int], Any]] = {
    "shear_x": lambda s, h, w: affine(np.array([[1, _SHEAR * s], [0, 1]]), (0, 0)),
    "shear_y": lambda s, h, w: affine(np.array([[1, 0], [_SHEAR * s, 1]]), (0, 0)),
    "translate_x": lambda s, h, w: affine(np.eye(2), (0, 0), (_TRANSLATE * s * w, 0)),
    "translate_y": lambda s, h, w: affine(np.eye(2), (0, 0), (0, _TRANSLATE * s * h)),
    "rotate": lambda s, h, w: affine(rotation(_ROTATE * s), (w / 2, h / 2)),
}
