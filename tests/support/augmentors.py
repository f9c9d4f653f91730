"""One table of augmentors, for all their laws, and what shows where points went."""

from __future__ import annotations

from typing import Any

import numpy as np

from towerpack.dataflow import images as im

Array = np.ndarray[Any, Any]

GEOMETRIC: list[im.ImageAugmentor] = [  # for images of any size
    im.Shift(0.3, 0.2),
    im.Rotation(180, step_deg=90),
    im.Rotation(50, interp="cubic"),
    im.Rotation(30, (0.3, 0.7), border="constant", border_value=3),
    im.RotationAndCropValid(60),
    im.Affine((0.6, 1.5), (0.1, 0.2), 30, 15),
    im.Flip(horiz=True),
    im.Flip(vert=True, prob=1),
    im.Transpose(),
    im.Resize((31, 47)),
    im.Resize(90, interp="cubic"),
    im.ResizeShortestEdge(40, interp="lanczos"),
    im.RandomResize((0.5, 1.7)),
    im.RandomResize((20, 70), aspect_ratio_thres=0),
    im.GoogleNetRandomCropAndResize(target_shape=32),
    im.CenterPaste((90, 97)),
    im.RandomPaste(95, im.ConstantBackgroundFiller(9)),
]
LARGE: list[im.ImageAugmentor] = [  # for images of at least 24 pixels a side
    im.RandomCrop((20, 17)),
    im.CenterCrop(22),
    im.RandomCropRandomShape(9, 7, max_aspect_ratio=1.5),
    im.GaussianDeform([(0.3, 0.3), (0.7, 0.6)], sigma=0.3, randrange=4),
    im.AugmentorList(
        [
            im.Flip(horiz=True),
            im.Rotation(20),
            im.RandomCrop(19),
            im.Resize((40, 30)),
            im.Transpose(),
        ]
    ),
]
PHOTOMETRIC: list[im.ImageAugmentor] = [
    im.Brightness(100),
    im.BrightnessScale((0.1, 3)),
    im.Contrast((0.1, 3)),
    im.Gamma(),
    im.Clip(10, 100),
    im.GaussianBlur(),
    im.GaussianNoise(30),
    im.SaltPepperNoise(),
    im.RandomCutout(1, 1),
    im.RandomErasing(0.8),
]
COLOUR: list[im.ImageAugmentor] = [
    im.Hue(),
    im.Saturation(),
    im.Lighting(1, [5, 5, 5], np.eye(3).tolist()),
    im.JpegNoise(),
    im.Contrast((0.1, 3), rgb=True),
]
COMPOSED: list[im.ImageAugmentor] = [
    im.Identity(),
    im.AugmentorList([im.Flip(horiz=True), im.Rotation(20), im.Brightness(5), im.Resize(9)]),
    im.RandomApplyAug(im.Rotation(10), 0.5),
    im.RandomChooseAug(
        [im.Rotation(10), im.Identity(), im.AugmentorList([im.Transpose(1), im.Resize(4)])]
    ),
    im.RandomChooseAug([(im.Rotation(10), 0.25), (im.Brightness(9), 0.75)]),
    im.RandomOrderAug([im.Resize(8), im.RandomCrop(1), im.Brightness(20)]),
]
CONVERTING: list[im.ImageAugmentor] = [
    im.ColorSpace("RGB2HSV"),
    im.Grayscale(),
    im.MeanVarianceNormalize(),
    im.MinMaxNormalize(),
    im.ToUint8(),
    im.ToFloat32(),
    im.MapImage(np.negative),
]
EVERY = [*GEOMETRIC, *LARGE, *PHOTOMETRIC, *COLOUR, *COMPOSED, *CONVERTING, im.RandAugment(2, 9)]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def picture(shape: tuple[int, ...], dtype: str = "u1", seed: int = 0) -> Array:
    return rng(seed).integers(0, 256, shape).astype(dtype)


def named(augmentors: list[im.ImageAugmentor]) -> dict[str, Any]:
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
