"""Geometry: numbers checked by hand; `test_laws` has what is true of all that moves."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest

from augmentors import places, rng
from scaling import scaled
from towerpack._core.errors import ConfigError
from towerpack.dataflow import images as im
from towerpack.dataflow.images import clip_boxes

IMAGE = np.zeros((10, 20, 3), np.uint8)


def at(transform: im.Transform, x: float, y: float) -> list[float]:
    return np.round(transform.apply_coords(np.array([(x, y)], np.float64))[0], 9).tolist()


def test_by_hand() -> None:
    assert at(im.FlipTransform(10, 20), 0, 3) == [20, 3]
    assert at(im.FlipTransform(10, 20, horiz=False), 3, 0) == [3, 10]
    assert at(im.ResizeTransform(10, 20, 5, 40), 20, 10) == [40, 5]
    assert at(im.CropTransform(2, 3, 4, 5), 3, 2) == [0, 0]
    assert at(im.Transpose(prob=1).get_transform(IMAGE), 20, 10) == [10, 20]
    assert at(im.CenterPaste((20, 31)).get_transform(IMAGE), 0, 0) == [5, 5]
    # A quarter turn, counter-clockwise: what was on the right is at the top.
    turn = im.Rotation(90, (0.5, 0.5), step_deg=90)
    turns = {tuple(at(turn.get_transform(IMAGE, rng(seed)), 15, 5)) for seed in range(20)}
    assert turns == {(15, 5), (10, 0), (10, 10)}
    # Twice as large, about the centre.
    assert at(im.Affine((2, 2)).get_transform(IMAGE), 11, 6) == [12, 7]
    # Vertical lines lean to the side, the centre stays.
    lean = im.Affine(shear=30).get_transform(IMAGE, rng(1))
    assert at(lean, 10, 5) == [10, 5]
    assert at(lean, 0, 5) == [0, 5] and at(lean, 10, 0)[0] != 10


def test_a_shift_is_by_whole_pixels_within_its_limits() -> None:
    shifts = [at(im.Shift(0.2, 0.1).get_transform(IMAGE, rng(seed)), 0, 0) for seed in range(200)]
    assert {x for x, _ in shifts} == {-4, -3, -2, -1, 0, 1, 2, 3, 4}
    assert {y for _, y in shifts} == {-1, 0, 1}
    # A quarter and a bit of ten pixels are two whole ones; all places are equally likely.
    tall = np.zeros((100, 10))
    odd = [at(im.Shift(0.26, 0.29).get_transform(tall, rng(s)), 0, 0) for s in range(600)]
    assert {y for _, y in odd} <= {*range(-29, 30)} and max(y for _, y in odd) == 29
    counts = [sum(x == shift for x, _ in odd) for shift in range(-2, 3)]
    assert sum(counts) == 600 and min(counts) > 80


def test_values_that_do_not_fit() -> None:
    image = np.zeros((9, 9, 3), np.uint8)
    for value in (-1, (1, 2)):
        turn = im.Rotation(40, (0, 0), border="constant", border_value=value)
        for aug in (turn, im.CenterPaste(20, im.ConstantBackgroundFiller(value))):
            with pytest.raises(ConfigError, match=r"(does not fit|out of range for uint8)"):
                aug(image)
    turn = im.Rotation(40, (0, 0), border="constant", mask_value=255)
    for aug in (turn, im.CenterPaste(20, mask_value=255)):
        transform = aug.get_transform(image, rng(1))
        assert transform.apply_mask(image[..., 0]).max() == 255
        with pytest.raises(ConfigError, match="255 is out of range for int8"):
            transform.apply_mask(image[..., 0].astype(np.int8))


def test_border_values() -> None:
    image = np.full((20, 20, 3), 9, np.uint8)
    middle = (0.5, 0.5)
    turn = im.Rotation(40, middle, border="constant", border_value=(1, 2, 3), mask_value=255)
    turned = turn.get_transform(image, rng(3))
    assert turned.apply_image(image)[0, 0].tolist() == [1, 2, 3]
    assert turned.apply_mask(image[..., 0])[0, 0] == 255
    assert im.Rotation(40).get_transform(image, rng(3)).apply_image(image).min() == 9
    for channels in (1, 4, 5, 9):
        many = np.arange(channels, dtype=np.float32) + np.ones((20, 20, 1), np.float32)
        warp = im.WarpAffineTransform(np.eye(2, 3), (30, 30), "cubic", border_value=range(channels))
        shown = warp.apply_image(many)
        assert shown[5, 5].tolist() == [i + 1 for i in range(channels)]
        assert shown[29, 29].tolist() == list(range(channels))


def test_rotation_and_crop_shows_only_the_image() -> None:
    aug = im.RotationAndCropValid(180)
    for seed in range(scaled(1000)):
        h, w = rng(seed).integers(1, 61, 2).tolist()
        transform: Any = aug.get_transform(np.ones((h, w), np.uint8), rng(seed))
        new_w, new_h = transform.dsize
        back = np.linalg.inv(np.vstack([transform.mat, (0, 0, 1)]))[:2]
        corners = np.array([(0, 0), (new_w, 0), (0, new_h), (new_w, new_h)]) - 0.5
        old = np.column_stack([corners, np.ones(4)]) @ back.T + 0.5
        if min(new_h, new_w) > 1:  # a side has at least one pixel, whether it fits or not
            assert old.min() > -1e-6 and (old <= np.array((w, h)) + 1e-6).all()
        if min(h, w) > 20:
            assert new_h * new_w >= h * w * 0.15 * min(h, w) / max(h, w)


def test_rotation_and_crop_in_steps() -> None:
    square = np.zeros((1000, 1000), np.uint8)
    for degrees in (45, 225, 45 + 1e-12, 45 - 1e-12):
        aug = im.RotationAndCropValid(degrees, step_deg=degrees)
        turns: list[Any] = [aug.get_transform(square, rng(seed)) for seed in range(9)]
        assert {turn.dsize for turn in turns} == {(1000, 1000), (707, 707)}
    image = np.arange(12, dtype=np.uint8).reshape(3, 4)
    quarters = [np.rot90(image, k).tolist() for k in range(4)]
    turned = [im.RotationAndCropValid(180, step_deg=90)(image, rng(seed)) for seed in range(40)]
    assert {quarters.index(each.tolist()) for each in turned} == {0, 1, 2, 3}


def test_resizes() -> None:
    image = np.zeros((30, 60, 3), np.uint8)
    for aug, shape in (
        (im.Resize((5, 7)), (5, 7, 3)),
        (im.Resize(8), (8, 8, 3)),
        (im.ResizeShortestEdge(10), (10, 20, 3)),
        (im.RandomResize((0.001, 0.001), aspect_ratio_thres=0), (1, 1, 3)),
        (im.RandomResize((9.0, 9.0), (1.0, 1.0)), image.shape),  # no draw will do
        (im.RandomResize((9.0, 9.0), (1.0, 1.0), minimum=(90, 90)), (90, 180, 3)),
        (im.RandomResize((9.0, 9.0), (1.0, 1.0), minimum=(91, 7)), (46, 91, 3)),
    ):
        assert aug(image).shape == shape
    assert im.ResizeShortestEdge(10)(image[:, :7]).shape == (43, 10, 3)
    for seed in range(50):
        h, w = im.RandomResize((0.5, 2.0))(image, rng(seed)).shape[:2]
        assert 15 <= h <= 60 and 30 <= w <= 120 and 1.69 < w / h < 2.31 + 0.1
        h, w = im.RandomResize((20, 25), (50, 55), aspect_ratio_thres=9)(image, rng(seed)).shape[:2]
        assert 20 <= w <= 25 and 50 <= h <= 55
        h, w = im.RandomResize((0.1, 0.2), minimum=(50, 10), aspect_ratio_thres=0)(image).shape[:2]
        assert (h, w) == (25, 50)
    widths = {
        im.RandomResize((5, 7), aspect_ratio_thres=9)(image, rng(s)).shape[1] for s in range(60)
    }
    assert widths == {5, 6, 7}


def test_the_nearest_pixel_is_the_same_for_images_and_masks() -> None:
    for seed in range(scaled(1000)):
        h, w, y, x = rng(seed).integers(1, 41, 4).tolist()
        image = rng(seed).integers(0, 256, (h, w, 3), np.uint8)
        transform = im.Resize((y, x), interp="nearest").get_transform(image)
        assert np.array_equal(transform.apply_image(image), transform.apply_mask(image))
        shown = transform.apply_image(image[..., 0].astype(np.float32))
        back = np.floor(places(y, x).reshape(-1, 2) * (w / x, h / y) + 1e-9).astype(int)
        assert np.array_equal(shown.ravel(), image[back[:, 1], back[:, 0], 0])


def test_the_constant_of_opencv_gives_its_pixels() -> None:
    """`cv2.INTER_NEAREST` for images as in Tensorpack; masks keep their rule."""
    for seed in range(scaled(300)):
        h, w, y, x = rng(seed).integers(1, 41, 4).tolist()
        image = rng(seed).integers(0, 256, (h, w, 3), np.uint8)
        transform = im.Resize((y, x), cv2.INTER_NEAREST).get_transform(image)
        expected = cv2.resize(image, (x, y), interpolation=cv2.INTER_NEAREST)
        assert np.array_equal(transform.apply_image(image), expected)
        named = im.Resize((y, x), "nearest").get_transform(image)
        assert np.array_equal(transform.apply_mask(image), named.apply_mask(image))


def test_crops_reach_every_place() -> None:
    image = np.arange(20, dtype=np.uint8).reshape(4, 5)
    corners = {im.RandomCrop((2, 3))(image, rng(seed))[0, 0].item() for seed in range(200)}
    assert corners == {0, 1, 2, 5, 6, 7, 10, 11, 12}
    assert im.CenterCrop((2, 3))(image).tolist() == [[6, 7, 8], [11, 12, 13]]
    crops = [im.RandomCropRandomShape(2, 1)(image, rng(seed)) for seed in range(300)]
    assert {crop.shape for crop in crops} == {(h, w) for h in range(1, 5) for w in range(2, 6)}
    assert {crop[-1, -1].item() for crop in crops if crop.shape == (3, 4)} == {13, 14, 18, 19}
    wide = np.zeros((50, 500), np.uint8)
    for seed in range(50):
        h, w = im.RandomCropRandomShape(10, 10, max_aspect_ratio=2)(wide, rng(seed)).shape
        assert 0.5 <= w / h <= 2
        h, w = im.RandomCropRandomShape(10, 10, 20, 1000)(wide, rng(seed)).shape
        assert 10 <= w <= 20 and 10 <= h <= 50


def test_random_resized_crop_draws_areas_and_ratios() -> None:
    image = np.zeros((300, 300), np.uint8)
    aug = im.GoogleNetRandomCropAndResize((0.1, 0.4), (2, 2))
    crops: list[Any] = [next(iter(aug.get_transform(image, rng(s)))) for s in range(300)]  # pyright: ignore
    areas = [crop.w * crop.h / image.size for crop in crops]
    assert 0.09 < min(areas) < 0.12 and 0.38 < max(areas) < 0.41
    assert {round(crop.w / crop.h, 1) for crop in crops} == {0.5, 2.0}


def test_pastes() -> None:
    image = np.full((2, 3, 3), 200, np.uint8)
    pasted = im.CenterPaste((4, 6))(image)
    assert pasted.sum() == 200 * 18 and (pasted[1:3, 1:4] == 200).all()
    coloured = im.CenterPaste(5, im.ConstantBackgroundFiller((1, 2, 3)))(image)
    assert coloured[0, 0].tolist() == [1, 2, 3] and coloured[2, 2].tolist() == [200] * 3
    places = {int(im.RandomPaste((3, 4))(image, rng(s))[..., 0].argmax()) for s in range(100)}
    assert places == {0, 1, 4, 5}
    transform = im.CenterPaste(4, mask_value=-1).get_transform(image)
    expected = np.pad(np.ones((2, 3), np.int64), ((1, 1), (0, 1)), constant_values=-1)
    assert np.array_equal(transform.apply_mask(np.ones((2, 3), np.int64)), expected)


def test_a_deformation_that_almost_folds_moves_points_and_one_that_folds_refuses_them() -> None:
    image = np.zeros((100, 100), np.uint8)
    for seed in range(scaled(2000)):
        draw = rng(seed)
        aug = im.GaussianDeform(draw.random((1, 2)), sigma=0.2, randrange=22)  # slopes up to 0.94
        transform = aug.get_transform(image, draw)
        transform.apply_coords(draw.uniform(0, 100, (100, 2)))

    aug = im.GaussianDeform([(0.5, 0.5)], (100, 100), sigma=0.02, randrange=80)
    with pytest.raises(ConfigError, match="must not fold the image"):
        aug.get_transform(image, rng(0)).apply_coords(rng(0).uniform(40, 60, (200, 2)))


@pytest.mark.parametrize("border", ["constant", "replicate", "reflect", "wrap", "reflect_101"])
def test_borders_of_images_and_masks_agree(border: str) -> None:
    numbers = np.arange(20 * 30, dtype=np.float32).reshape(20, 30)
    turn = im.Rotation(180, (0.5, 0.5), border=border, step_deg=90)
    for aug in (im.Shift(0.5, 0.5, border=border), turn):
        for seed in range(5):
            transform = aug.get_transform(numbers, rng(seed))
            shown, mask = transform.apply_image(numbers), transform.apply_mask(numbers.astype(int))
            assert np.abs(shown - mask).max() < 0.01


def test_clip_boxes() -> None:
    boxes = np.array([[-5, -5, 5, 5], [1, 1, 2, 2], [8, 8, 20, 20], [30, 0, 40, 5], [3, 3, 3, 9]])
    clipped, keep = clip_boxes(boxes, 10, 12)
    assert clipped.tolist()[:3] == [[0, 0, 5, 5], [1, 1, 2, 2], [8, 8, 12, 10]]
    assert keep.tolist() == [True, True, True, False, False]
    assert clip_boxes(boxes, 10, 12, min_area=0.2)[1].tolist() == [True, True, False, False, False]

    # Some end before they begin.
    boxes = np.array([[50.0, 50, 10, 10], [50, 10, 10, 50], [np.nan, 1, 2, 3], [1, 1, 2, 2]])
    assert clip_boxes(boxes, 100, 100)[1].tolist() == [False, False, False, True]
    # Areas that float16 cannot hold.
    boxes = np.array([[0, 0, 400, 400], [-400, 0, 400, 400]], np.float16)
    clipped, keep = clip_boxes(boxes, 500, 500, min_area=0.5)
    assert clipped.dtype == np.float16 and keep.tolist() == [True, True]  # half counts
    assert clip_boxes(boxes, 500, 500, min_area=0.51)[1].tolist() == [True, False]


def test_what_does_not_fit() -> None:
    image: Any = np.zeros((10, 20, 3), np.uint8)
    flip = im.FlipTransform(10, 20)
    fits = r"A part of {} x {} pixels does not fit.*{}"
    for apply, value, words in (
        (im.RandomCrop(11), image, fits.format(11, 11, "10 x 20")),
        (im.CenterCrop(11), image, fits.format(11, 11, "10 x 20")),
        (im.RandomCropRandomShape(5, 11), image, fits.format(11, 5, "10 x 20")),
        (im.CenterPaste(15), image, fits.format(10, 20, "15 x 15")),
        (im.CropTransform(-1, 0, 5, 5).apply_image, image, "must lie within an image"),
        (im.ResizeTransform(10, 20, 5, 5).apply_mask, image[:9], "an image of 10 x 20"),
        (flip.apply_image, image[:9], "an image of 10 x 20"),
        (flip.apply_mask, [[1, 2], [3, 4]], "got list"),
        (flip.apply_coords, np.zeros(4), r"must be \[n, 2\]"),
        (flip.apply_boxes, np.zeros((3, 2)), "The shape of boxes"),
        (flip.apply_keypoints, np.zeros(3), "Keypoints must have x and y"),
    ):
        with pytest.raises(ConfigError, match=words):
            apply(value)
