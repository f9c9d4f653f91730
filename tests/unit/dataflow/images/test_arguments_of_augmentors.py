"""Arguments of augmentors that make no sense are refused when they are given, not at an image."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest

from augmentors import picture, rng
from towerpack._core.errors import ConfigError
from towerpack.dataflow import images as im

NAMES = {**vars(im), "np": np, "nan": float("nan"), "inf": float("inf"), "cv2": cv2}
PICTURE = picture((81, 100, 3))
imgaug: Any = im  # arguments of wrong types are the point here

WRONG = """
Rotation(-10); Rotation(nan); Rotation(10, (0.8, 0.2)); Rotation(10, 0.5); Rotation(3, border="x");
Rotation(3, step_deg=0); Rotation(3, step_deg="5"); Shift(2.0); Affine(translate_frac=(-0.1, 0));
Affine(translate_frac=0.1); Affine((1, 2, 3)); Affine((0, 1)); BrightnessScale((0, inf));
Gamma((-1, 0)); GaussianBlur((1.5, 3.5)); GaussianBlur((3, 3)); GaussianBlur(max_size=1.5);
Clip(200, 10); SaltPepperNoise(0.6, 0.6); JpegNoise((0, 102)); JpegNoise((50.0, 60.0));
RandomErasing(2); RandomErasing(1, (0, 0.1));
RandomErasing(1, fill="x"); RandomCutout(2.5, 3); RandomCutout(3, (4, 3)); RandomCutout(0, 3);
RandAugment(2.5, 3); RandAugment(2, 11); RandAugment(ops=("rotat",)); RandAugment(ops=());
Resize((0, 3)); Resize((1, 2, 3)); Resize("ab"); Resize(4, interp="fancy"); Resize(4, interp=17);
RandomResize((0.5, 2), minimum="10"); RandomResize((0.5, 1.0), (0.5, 1.0), aspect_ratio_thres=0);
RandomCropRandomShape(5.5, 5); GoogleNetRandomCropAndResize((1.5, 2));
AugmentorList(3); AugmentorList([Identity]); RandomOrderAug(3); RandomChooseAug([]);
RandomChooseAug([(Identity(), 0.5), Identity()]); RandomChooseAug([(Identity(), 0.5)]);
RandomApplyAug(Identity(), 2); Flip(); Flip(horiz=True, vert=True); Flip(horiz=True, prob=None);
MixUp(nan); MixUp(1.0, 2.5); MixUp(prob=2); MixUp(labels="x"); MosaicLayout(min_visible=2)
"""
RIGHT = """
Rotation(np.float32(10), [0.2, 0.8], step_deg=5); Affine([1, 1], np.array([0.1, 2.0]), 10, 0);
Brightness(-5); Gamma((0, 0)); Clip(0, inf); GaussianBlur([np.int64(1), 3], (0, 0));
RandomCutout(np.int64(3), [3, np.int32(5)]); RandomErasing(1, [0.1, 1]); RandomOrderAug(Identity());
RandomResize(np.array([0.5, 2]), minimum=10); RandomResize((0.5, 2), minimum=(10, np.int64(5)));
RandomChooseAug(Identity()); RandomChooseAug([(Identity(), 0.1)] * 10); ColorSpace("RGB2GRAY");
ColorSpace(cv2.COLOR_RGB2HSV); RandAugment(np.int64(2), np.float32(3), ops=("rotate", "rotate"))
"""


def test_wrong() -> None:
    for call in WRONG.split(";"):
        with pytest.raises(ConfigError):
            pytest.fail(f"made {eval(call.strip(), NAMES)!r}")


def test_right() -> None:
    for call in RIGHT.split(";"):
        assert eval(call.strip(), NAMES).augment(PICTURE, rng()).size


@pytest.mark.parametrize("fill", [(1, 2), (1, 2, 3, 4), 256, -1])
def test_what_is_filled_with_does_not_fit(fill: Any) -> None:
    for channels in ((), (1,), (3,)):
        batch = np.zeros((4, 9, 9, *channels), np.uint8)
        for aug in (im.RandomErasing(1, (0.3, 0.4), fill=fill), im.RandomCutout(3, 3, fill)):
            for run, given in ((aug.augment, batch[0]), (im.BatchAugment(aug), batch)):
                with pytest.raises(ConfigError, match=r"(does not fit|is out of range)"):
                    run(given, rng())


def test_a_matrix_of_whole_numbers() -> None:
    shift = imgaug.WarpAffineTransform([[1, 0, 3], [0, 1, 4]], (100, 81))
    assert shift.apply_coords(np.array([[1.0, 2.0]])).tolist() == [[4, 6]]
    for shown in (shift.apply_image(PICTURE), shift.apply_mask(PICTURE)):
        assert np.array_equal(shown[4:, 3:], PICTURE[:-4, :-3])


@pytest.mark.parametrize("channels", [None, 1, 2, 5, 128, 200])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_as_many_channels_as_one_likes(channels: int | None, dtype: Any) -> None:
    image = picture((6, 7, *([channels] if channels else []))).astype(dtype)
    for horiz in (True, False):
        flip = imgaug.Flip(horiz=horiz, vert=not horiz, prob=1)
        expected = image[:, ::-1] if horiz else image[::-1]
        assert np.array_equal(flip.augment(image), expected)
        assert np.array_equal(im.BatchAugment(flip)(image[None], rng())[0], expected)
    assert np.array_equal(imgaug.Transpose(1).augment(image), image.swapaxes(0, 1))
    for call in ("Brightness(9)", "Contrast((0.5, 2))", "GaussianBlur((1, 2))", "Resize(9)"):
        aug = eval(call, NAMES)
        changed = aug.augment(image, rng(3))
        for channel in {0, channels - 1} if channels else ():
            alone = aug.augment(np.ascontiguousarray(image[..., channel]), rng(3))
            assert np.allclose(changed[..., channel], alone, atol=1e-3), aug
