"""One table of augmentors, for all their laws, and what shows where points went."""

from __future__ import annotations

from typing import Any

import numpy as np

from towerpack.dataflow.images import (
    Affine,
    AugmentorList,
    Brightness,
    BrightnessScale,
    CenterCrop,
    CenterPaste,
    Clip,
    ColorSpace,
    ConstantBackgroundFiller,
    Contrast,
    Flip,
    Gamma,
    GaussianBlur,
    GaussianDeform,
    GaussianNoise,
    GoogleNetRandomCropAndResize,
    Grayscale,
    Hue,
    Identity,
    ImageAugmentor,
    JpegNoise,
    Lighting,
    MapImage,
    MeanVarianceNormalize,
    MinMaxNormalize,
    RandAugment,
    RandomApplyAug,
    RandomChooseAug,
    RandomCrop,
    RandomCropRandomShape,
    RandomCutout,
    RandomErasing,
    RandomOrderAug,
    RandomPaste,
    RandomResize,
    Resize,
    ResizeShortestEdge,
    Rotation,
    RotationAndCropValid,
    SaltPepperNoise,
    Saturation,
    Shift,
    ToFloat32,
    ToUint8,
    Transpose,
)

Array = np.ndarray[Any, Any]

GEOMETRIC: list[ImageAugmentor] = [  # for images of any size
    Shift(0.3, 0.2),
    Rotation(180, step_deg=90),
    Rotation(50, interp="cubic"),
    Rotation(30, (0.3, 0.7), border="constant", border_value=3),
    RotationAndCropValid(60),
    Affine((0.6, 1.5), (0.1, 0.2), 30, 15),
    Flip(horiz=True),
    Flip(vert=True, prob=1),
    Transpose(),
    Resize((31, 47)),
    Resize(90, interp="cubic"),
    ResizeShortestEdge(40, interp="lanczos"),
    RandomResize((0.5, 1.7)),
    RandomResize((20, 70), aspect_ratio_thres=0),
    GoogleNetRandomCropAndResize(target_shape=32),
    CenterPaste((90, 97)),
    RandomPaste(95, ConstantBackgroundFiller(9)),
]
LARGE: list[ImageAugmentor] = [  # for images of at least 24 pixels a side
    RandomCrop((20, 17)),
    CenterCrop(22),
    RandomCropRandomShape(9, 7, max_aspect_ratio=1.5),
    GaussianDeform([(0.3, 0.3), (0.7, 0.6)], sigma=0.3, randrange=4),
    AugmentorList([Flip(horiz=True), Rotation(20), RandomCrop(19), Resize((40, 30)), Transpose()]),
]
PHOTOMETRIC: list[ImageAugmentor] = [
    Brightness(100),
    BrightnessScale((0.1, 3)),
    Contrast((0.1, 3)),
    Gamma(),
    Clip(10, 100),
    GaussianBlur(),
    GaussianNoise(30),
    SaltPepperNoise(),
    RandomCutout(1, 1),
    RandomErasing(0.8),
]
COLOUR: list[ImageAugmentor] = [
    Hue(),
    Saturation(),
    Lighting(1, [5, 5, 5], np.eye(3).tolist()),
    JpegNoise(),
    Contrast((0.1, 3), rgb=True),
]
COMPOSED: list[ImageAugmentor] = [
    Identity(),
    AugmentorList([Flip(horiz=True), Rotation(20), Brightness(5), Resize(9)]),
    RandomApplyAug(Rotation(10), 0.5),
    RandomChooseAug([Rotation(10), Identity(), AugmentorList([Transpose(1), Resize(4)])]),
    RandomChooseAug([(Rotation(10), 0.25), (Brightness(9), 0.75)]),
    RandomOrderAug([Resize(8), RandomCrop(1), Brightness(20)]),
]
CONVERTING: list[ImageAugmentor] = [
    ColorSpace("RGB2HSV"),
    Grayscale(),
    MeanVarianceNormalize(),
    MinMaxNormalize(),
    ToUint8(),
    ToFloat32(),
    MapImage(np.negative),
]
EVERY = [*GEOMETRIC, *LARGE, *PHOTOMETRIC, *COLOUR, *COMPOSED, *CONVERTING, RandAugment(2, 9)]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def picture(shape: tuple[int, ...], dtype: str = "u1", seed: int = 0) -> Array:
    return rng(seed).integers(0, 256, shape).astype(dtype)


def named(augmentors: list[ImageAugmentor]) -> dict[str, Any]:
    """Arguments of `pytest.mark.parametrize`."""
    return {
        "argnames": "aug",
        "argvalues": augmentors,
        "ids": [f"{aug!r:.40}" for aug in augmentors],
    }


def places(h: int, w: int) -> Array:
    """[h, w, 2]: the x and y of the centre of each pixel."""
    y, x = np.mgrid[:h, :w] + 0.5
    return np.stack([x, y], axis=-1).astype(np.float32)


def look(image: Array, points: Array) -> Array:
    """The image at continuous coordinates, bilinear; [n, channels]."""
    x, y = (points - 0.5).T
    x0, y0 = np.floor(x).astype(int), np.floor(y).astype(int)
    fx, fy = (x - x0)[:, None], (y - y0)[:, None]
    top = image[y0, x0] * (1 - fx) + image[y0, x0 + 1] * fx
    bottom = image[y0 + 1, x0] * (1 - fx) + image[y0 + 1, x0 + 1] * fx
    return top * (1 - fy) + bottom * fy


def inner(points: Array, h: int, w: int) -> Array:
    """Which points lie in an image, away from its borders."""
    return ((points >= 2) & (points <= np.array((w, h)) - 2)).all(axis=1)
