"""Arguments of augmentors that make no sense are refused when they are given, not at an image."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest

from augmentors import picture, rng
from towerpack._core.errors import ConfigError
from towerpack.dataflow import images
from towerpack.dataflow.images import BatchAugment, ImageAugmentor

NAMES = {**vars(images), "np": np, "nan": float("nan"), "inf": float("inf"), "cv2": cv2}
PICTURE = picture((81, 100, 3))
imgaug: Any = images  # arguments of wrong types are the point here

WRONG = """
Rotation(-10); Rotation(nan); Rotation(10, (0.8, 0.2)); Rotation(10, 0.5); Rotation(3, border="x");
Rotation(-10, step_deg=5); Rotation(10, step_deg="5"); Rotation(3, step_deg=0); Shift("0.1");
RotationAndCropValid(-5); Shift(2.0); Affine(rotate_max_deg=-5); Affine(shear=-5); Affine((0, 1));
Affine(translate_frac=(-0.1, 0)); Affine(translate_frac=0.1); Affine(1.5); Affine((1, 2, 3));
Hue(10); Hue((10, -10)); Saturation((0.5, 1)); Brightness((0.5, 1)); BrightnessScale((2, 1));
BrightnessScale(2); BrightnessScale((0, inf)); Contrast((2, 1)); Contrast(0.5); Gamma((0.5, -0.5));
Gamma(0.5); Gamma((-1, 0)); Clip(200, 10); Clip(nan, 10); GaussianBlur(3); GaussianBlur((1.5, 3.5));
GaussianBlur((3, 3)); GaussianBlur((-1, 3)); GaussianBlur((1, 3), (2, 1)); JpegNoise(50);
GaussianBlur((1, 3), (-2, -1)); GaussianBlur(max_size=1.5); GaussianNoise(-1); JpegNoise((90, 90));
JpegNoise((50.0, 60.0)); JpegNoise((0, 102)); SaltPepperNoise(nan, 0.1); SaltPepperNoise(0.6, 0.6);
SaltPepperNoise(-0.1, 0.6); RandomErasing(2); RandomErasing(1, (0, 0.1)); RandomErasing(1, 0.5);
RandomErasing(1, (0.5, 0.1)); RandomErasing(1, aspect_ratio=(2, 1)); RandomErasing(1, fill="x");
RandomErasing(1, aspect_ratio=(0, 1)); RandomCutout(2.5, 3); RandomCutout((1, 2, 3), 3);
RandomCutout(0, 3); RandomCutout(3, (4, 3)); GaussianDeform([(0.5, 0.5)], randrange=-3);
GaussianDeform([0.5]); Lighting(-0.1, [1.0, 1, 1], np.eye(3)); Lighting(1, [1, 2], np.eye(3));
RandAugment(2.5, 3); RandAugment(2, nan); RandAugment(2, 11); RandAugment(2, -1); RandAugment(-1);
RandAugment(ops=("rotat",)); RandAugment(ops=()); Resize((0, 3)); Resize((1, 2, 3)); Resize(3.5);
Resize((3.5, 2)); Resize("ab"); Resize(4, interp="fancy"); Resize(4, interp=17); RandomResize(0.5);
ResizeShortestEdge((3, 4)); RandomResize((0.5, 2), minimum="10"); RandomResize((0.5, 1), (2, 1));
RandomResize((0.0, 1.0)); RandomResize((0.5, 1.0), (0.5, 1.0), aspect_ratio_thres=0);
ResizeTransform(40, 50, 0, 5); RandomCropRandomShape(5.5, 5); RandomCropRandomShape(5, 5, 4);
RandomCropRandomShape(5, 5, max_aspect_ratio=0.5); GoogleNetRandomCropAndResize((1.5, 2));
GoogleNetRandomCropAndResize(0.5); GoogleNetRandomCropAndResize((0.0, 1.0)); CenterPaste(60, 5);
ColorSpace(99999); ColorSpace([1]); ColorSpace("RGB2XXX"); AugmentorList(3); RandomOrderAug(3);
RandomChooseAug(3); RandomChooseAug([]); RandomChooseAug([(Identity(), 0.5), Identity()]);
RandomChooseAug([(Identity(), 0.5)]); RandomChooseAug([(Identity(), 1.5)] * 2); AugmentorList("ab");
RandomApplyAug(Identity(), 2); RandomApplyAug(abs, 0.5); AugmentorList([Identity]); MapImage(3);
Flip(horiz=True, prob=None); Flip(); Flip(horiz=True, vert=True); Flip(horiz=True, prob=1.5);
Transpose(prob=-0.1); MixUp(nan); CutMix(inf); MixUp(0); MixUp(1.0, 2.5); MixUp(prob=2);
MixUp(labels="x"); MosaicLayout(min_visible=2); MosaicLayout(3);
WarpAffineTransform(np.eye(3), (5, 5)); TransformFactory(coords=abs)
"""


def calls(text: str) -> list[str]:
    return [call.strip() for call in text.split(";")]


@pytest.mark.parametrize("call", calls(WRONG))
def test_wrong(call: str) -> None:
    with pytest.raises(ConfigError):
        eval(call, NAMES)


RIGHT = """
Rotation(np.float32(10), [0.2, 0.8], step_deg=5); Rotation(0); Shift(np.float64(0.1), 1);
Affine([1, 1], np.array([0.1, 2.0]), 10, 0); Hue(np.array([-10, 10])); BrightnessScale([1, 1]);
Brightness(-5); Gamma((0, 0)); Clip(0, inf); GaussianBlur([np.int64(1), 3], (0, 0));
JpegNoise([50, 51]); RandomCutout(np.int64(3), [3, np.int32(5)]); RandomErasing(1, [0.1, 1]);
RandomResize((0.01, 0.02), minimum=10); RandomResize(np.array([0.5, 2]), np.array([0.5, 2]));
RandomChooseAug(Identity()); RandomResize((np.float64(0.5), 2), minimum=(10, np.int64(5)));
RandomChooseAug([(Identity(), 0.1)] * 10); ResizeShortestEdge(np.int64(5));
RandomCropRandomShape(np.int64(5), 5, np.int64(9)); RandomOrderAug(Identity());
ColorSpace(cv2.COLOR_RGB2HSV); ColorSpace("RGB2GRAY"); RandAugment(np.int64(2), np.float32(3))
"""


@pytest.mark.parametrize("call", calls(RIGHT))
def test_right(call: str) -> None:
    aug: ImageAugmentor = eval(call, NAMES)
    for seed in range(3):
        assert aug.augment(PICTURE, rng(seed)).size


@pytest.mark.parametrize("channels", [None, 1, 3])
@pytest.mark.parametrize("fill", [(1, 2), (1, 2, 3, 4), 256, -1])
def test_what_is_filled_with_does_not_fit(channels: int | None, fill: Any) -> None:
    batch = np.zeros((4, 9, 9, *([channels] if channels else [])), np.uint8)
    for aug in (imgaug.RandomErasing(1, (0.3, 0.4), fill=fill), imgaug.RandomCutout(3, 3, fill)):
        for run, given in ((aug.augment, batch[0]), (BatchAugment(aug), batch)):
            with pytest.raises(ConfigError, match=r"(is no colour|does not fit into)"):
                run(given, rng())


@pytest.mark.parametrize("shape", [(9, 9), (9, 9, 1), (9, 9, 2)])
def test_a_conversion_that_does_not_fit(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"ColorSpace\('RGB2HSV'\) does not convert") as caught:
        imgaug.ColorSpace("RGB2HSV").augment(np.zeros(shape, np.uint8))
    assert "uint8 [9, 9" in str(caught.value)


def test_matrices_of_whole_numbers() -> None:
    for mat in ([[1, 0, 3], [0, 1, 4]], np.array([[1, 0, 3], [0, 1, 4]])):
        shift = imgaug.WarpAffineTransform(mat, (100, 81))
        assert shift.apply_coords(np.array([[1.0, 2.0]])).tolist() == [[4, 6]]
        assert np.array_equal(shift.apply_image(PICTURE)[4:, 3:], PICTURE[:-4, :-3])
        assert np.array_equal(shift.apply_mask(PICTURE)[4:, 3:], PICTURE[:-4, :-3])


@pytest.mark.parametrize("channels", [None, 1, 2, 5, 9, 128, 129, 200])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_as_many_channels_as_one_likes(channels: int | None, dtype: Any) -> None:
    image = picture((6, 7, *([channels] if channels else []))).astype(dtype)
    for horiz in (True, False):
        flip = imgaug.Flip(horiz=horiz, vert=not horiz, prob=1)
        expected = image[:, ::-1] if horiz else image[::-1]
        assert np.array_equal(flip.augment(image), expected)
        assert np.array_equal(BatchAugment(flip)(image[None], rng())[0], expected)
    assert np.array_equal(imgaug.Transpose(1).augment(image), image.swapaxes(0, 1))
    for call in ("Brightness(9)", "Contrast((0.5, 2))", "GaussianBlur((1, 2))", "Resize(9)"):
        aug = eval(call, NAMES)
        changed = aug.augment(image, rng(3))
        for channel in {0, channels - 1} if channels else ():
            alone = aug.augment(np.ascontiguousarray(image[..., channel]), rng(3))
            assert np.allclose(changed[..., channel], alone, atol=1e-3), aug
