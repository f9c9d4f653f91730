"""Arguments of augmentors that make no sense are refused when they are given, not at an image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import pytest

from towerpack._core.errors import ConfigError
from towerpack.dataflow import images
from towerpack.dataflow.images import BatchAugment, ImageAugmentor

NAN, INF = float("nan"), float("inf")
PICTURE = np.random.default_rng(0).integers(0, 256, (81, 100, 3), np.uint8)
EIGEN = ([1.0, 1, 1], np.eye(3).tolist())
imgaug: Any = images  # arguments of wrong types are the point here

WRONG: dict[str, Callable[[], object]] = {
    "Rotation(-10)": lambda: imgaug.Rotation(-10),
    "Rotation(nan)": lambda: imgaug.Rotation(NAN),
    "Rotation, centre": lambda: imgaug.Rotation(10, (0.8, 0.2)),
    "Rotation, centre, one": lambda: imgaug.Rotation(10, 0.5),
    "Rotation, step": lambda: imgaug.Rotation(-10, step_deg=5),
    "Rotation, step, text": lambda: imgaug.Rotation(10, step_deg="5"),
    "RotationAndCropValid": lambda: imgaug.RotationAndCropValid(-5),
    "Shift": lambda: imgaug.Shift("0.1"),
    "Affine, rotate": lambda: imgaug.Affine(rotate_max_deg=-5),
    "Affine, shear": lambda: imgaug.Affine(shear=-5),
    "Affine, translate": lambda: imgaug.Affine(translate_frac=(-0.1, 0)),
    "Affine, translate, one": lambda: imgaug.Affine(translate_frac=0.1),
    "Affine, scale": lambda: imgaug.Affine(scale=1.5),
    "Affine, scale, three": lambda: imgaug.Affine(scale=(1, 2, 3)),
    "Hue(10)": lambda: imgaug.Hue(10),
    "Hue": lambda: imgaug.Hue((10, -10)),
    "Saturation": lambda: imgaug.Saturation((0.5, 1)),
    "Brightness": lambda: imgaug.Brightness((0.5, 1)),
    "BrightnessScale": lambda: imgaug.BrightnessScale((2, 1)),
    "BrightnessScale(2)": lambda: imgaug.BrightnessScale(2),
    "BrightnessScale, inf": lambda: imgaug.BrightnessScale((0, INF)),
    "Contrast": lambda: imgaug.Contrast((2, 1)),
    "Contrast(.5)": lambda: imgaug.Contrast(0.5),
    "Gamma": lambda: imgaug.Gamma((0.5, -0.5)),
    "Gamma(.5)": lambda: imgaug.Gamma(0.5),
    "Gamma, -1": lambda: imgaug.Gamma((-1, 0)),
    "Clip": lambda: imgaug.Clip(200, 10),
    "Clip, nan": lambda: imgaug.Clip(NAN, 10),
    "GaussianBlur(3)": lambda: imgaug.GaussianBlur(3),
    "GaussianBlur, floats": lambda: imgaug.GaussianBlur((1.5, 3.5)),
    "GaussianBlur, sigma": lambda: imgaug.GaussianBlur((1, 3), (2, 1)),
    "GaussianBlur, -sigma": lambda: imgaug.GaussianBlur((1, 3), (-2, -1)),
    "GaussianBlur, max_size": lambda: imgaug.GaussianBlur(max_size=1.5),
    "GaussianNoise": lambda: imgaug.GaussianNoise(-1),
    "SaltPepperNoise": lambda: imgaug.SaltPepperNoise(NAN, 0.1),
    "JpegNoise(50)": lambda: imgaug.JpegNoise(50),
    "JpegNoise, floats": lambda: imgaug.JpegNoise((50.0, 60.0)),
    "RandomErasing": lambda: imgaug.RandomErasing(1, area=0.5),
    "RandomErasing, ratio": lambda: imgaug.RandomErasing(1, aspect_ratio=(2, 1)),
    "RandomCutout": lambda: imgaug.RandomCutout(2.5, 3),
    "RandomCutout, three": lambda: imgaug.RandomCutout((1, 2, 3), 3),
    "GaussianDeform": lambda: imgaug.GaussianDeform([(0.5, 0.5)], randrange=-3),
    "Lighting": lambda: imgaug.Lighting(-0.1, *EIGEN),
    "RandAugment": lambda: imgaug.RandAugment(2.5, 3),
    "RandAugment, m": lambda: imgaug.RandAugment(2, NAN),
    "ResizeShortestEdge": lambda: imgaug.ResizeShortestEdge((3, 4)),
    "RandomResize, minimum": lambda: imgaug.RandomResize((0.5, 2), minimum="10"),
    "RandomResize, x": lambda: imgaug.RandomResize(0.5),
    "RandomResize, y": lambda: imgaug.RandomResize((0.5, 1), (2, 1)),
    "ResizeTransform": lambda: imgaug.ResizeTransform(40, 50, 0, 5),
    "RandomCropRandomShape": lambda: imgaug.RandomCropRandomShape(5.5, 5),
    "GoogleNet": lambda: imgaug.GoogleNetRandomCropAndResize((1.5, 2)),
    "GoogleNet, one": lambda: imgaug.GoogleNetRandomCropAndResize(0.5),
    "CenterPaste": lambda: imgaug.CenterPaste((60, 70), 5),
    "ColorSpace": lambda: imgaug.ColorSpace(99999),
    "ColorSpace, list": lambda: imgaug.ColorSpace([1]),
    "AugmentorList": lambda: imgaug.AugmentorList(3),
    "RandomOrderAug": lambda: imgaug.RandomOrderAug(3),
    "RandomChooseAug": lambda: imgaug.RandomChooseAug(3),
    "Flip": lambda: imgaug.Flip(horiz=True, prob=None),
    "MixUp, nan": lambda: imgaug.MixUp(NAN),
    "MixUp, inf": lambda: imgaug.CutMix(INF),
    "MixUp, classes": lambda: imgaug.MixUp(1.0, 2.5),
    "MosaicLayout": lambda: imgaug.MosaicLayout(min_visible=2),
    "WarpAffineTransform": lambda: imgaug.WarpAffineTransform(np.eye(3), (5, 5)),
}


@pytest.mark.parametrize("make", WRONG.values(), ids=WRONG)
def test_wrong(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.expected or caught.value.fix


RIGHT: list[ImageAugmentor] = [
    imgaug.Rotation(np.float32(10), [0.2, 0.8], step_deg=5),
    imgaug.Rotation(0),
    imgaug.Shift(np.float64(0.1), 1),
    imgaug.Affine([1, 1], np.array([0.1, 2.0]), 10, 0),
    imgaug.Hue(np.array([-10, 10])),
    imgaug.BrightnessScale([1, 1]),
    imgaug.Brightness(-5),
    imgaug.Gamma((0, 0)),
    imgaug.Clip(0, INF),
    imgaug.GaussianBlur([np.int64(1), 3], (0, 0)),
    imgaug.JpegNoise([50, 51]),
    imgaug.RandomCutout(np.int64(3), [3, np.int32(5)]),
    imgaug.RandomErasing(1, [0.1, 1]),
    imgaug.RandomResize((0.01, 0.02), minimum=10),
    imgaug.RandomResize(np.array([0.5, 2]), np.array([0.5, 2])),
    imgaug.RandomChooseAug(imgaug.Identity()),
    imgaug.RandomResize((np.float64(0.5), 2), minimum=(10, np.int64(5))),
    imgaug.ResizeShortestEdge(np.int64(5)),
    imgaug.RandomCropRandomShape(np.int64(5), 5, np.int64(9)),
    imgaug.RandomOrderAug(imgaug.Identity()),
    imgaug.ColorSpace(cv2.COLOR_RGB2HSV),
    imgaug.ColorSpace("RGB2GRAY"),
    imgaug.RandAugment(np.int64(2), np.float32(3)),
]


@pytest.mark.parametrize("aug", RIGHT, ids=map(repr, RIGHT))
def test_right(aug: ImageAugmentor) -> None:
    for seed in range(3):
        assert aug.augment(PICTURE, np.random.default_rng(seed)).size


def test_batches_of_cutouts_by_numbers_of_numpy() -> None:
    batch = np.zeros((4, 9, 9), np.uint8)
    for sides in (np.int64(3), [3, 3]):
        cut = BatchAugment(imgaug.RandomCutout(sides, sides, 7))(batch, np.random.default_rng(0))
        assert ((cut == 7).sum(axis=(1, 2)) == 9).all()


@pytest.mark.parametrize("channels", [None, 1, 3])
@pytest.mark.parametrize("fill", [(1, 2), (1, 2, 3, 4), 256, -1])
def test_what_is_filled_with_does_not_fit(channels: int | None, fill: Any) -> None:
    batch = np.zeros((4, 9, 9, *([channels] if channels else [])), np.uint8)
    for aug in (imgaug.RandomErasing(1, (0.3, 0.4), fill=fill), imgaug.RandomCutout(3, 3, fill)):
        for run in (aug.augment, BatchAugment(aug)):
            with pytest.raises(ConfigError, match=r"(is no colour|does not fit into)"):
                run(batch[0] if run == aug.augment else batch, np.random.default_rng(0))


def test_colours_do_not_fit_grey_batches() -> None:
    """A row of the rectangle would have got one of the numbers, and not a pixel's channels."""
    batch = np.zeros((4, 9, 9), np.uint8)
    for aug in (
        imgaug.RandomErasing(1, (0.3, 0.4), fill=(1, 2, 3)),
        imgaug.RandomCutout(3, 3, (1, 2, 3)),
    ):
        with pytest.raises(ConfigError, match="is no colour"):
            BatchAugment(aug)(batch, np.random.default_rng(0))
        with pytest.raises(ConfigError, match="is no colour"):
            aug.augment(batch[0], np.random.default_rng(0))


@pytest.mark.parametrize("shape", [(9, 9), (9, 9, 1), (9, 9, 2)])
def test_a_conversion_that_does_not_fit(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"ColorSpace\('RGB2HSV'\) does not convert") as caught:
        imgaug.ColorSpace("RGB2HSV").augment(np.zeros(shape, np.uint8))
    assert "uint8 [9, 9" in str(caught.value)


def test_matrices_of_whole_numbers() -> None:
    points = np.array([[1.0, 2.0]])
    for mat in ([[1, 0, 3], [0, 1, 4]], np.array([[1, 0, 3], [0, 1, 4]])):
        shift = imgaug.WarpAffineTransform(mat, (100, 81))
        assert shift.apply_coords(points).tolist() == [[4, 6]]
        assert np.array_equal(shift.apply_image(PICTURE)[4:, 3:], PICTURE[:-4, :-3])
        assert np.array_equal(shift.apply_mask(PICTURE)[4:, 3:], PICTURE[:-4, :-3])


@pytest.mark.parametrize("channels", [128, 129, 200])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_more_channels_than_opencv_takes(channels: int, dtype: Any) -> None:
    image = np.random.default_rng(0).integers(0, 256, (6, 7, channels)).astype(dtype)
    for horiz in (True, False):
        flip = imgaug.Flip(horiz=horiz, vert=not horiz, prob=1)
        expected = image[:, ::-1] if horiz else image[::-1]
        assert np.array_equal(flip.augment(image), expected)
        assert np.array_equal(
            BatchAugment(flip)(image[None], np.random.default_rng(0))[0], expected
        )
    assert np.array_equal(imgaug.Transpose(1).augment(image), image.swapaxes(0, 1))
    for aug in (
        imgaug.Brightness(9),
        imgaug.Contrast((0.5, 2)),
        imgaug.GaussianBlur((1, 2)),
        imgaug.Resize(9),
    ):
        changed = aug.augment(image, np.random.default_rng(3))
        for channel in (0, channels - 1):
            alone = aug.augment(np.ascontiguousarray(image[..., channel]), np.random.default_rng(3))
            assert np.allclose(changed[..., channel], alone, atol=1e-3), aug
