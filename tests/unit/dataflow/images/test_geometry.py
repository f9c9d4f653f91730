"""Geometry: image, mask, coordinates and boxes move together, to a fraction of a pixel.

Most laws use an image whose two channels are the x and the y of each pixel: wherever it was moved,
it says where it came from.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling import scaled
from towerpack._core.errors import ConfigError
from towerpack.dataflow.images import (
    Affine,
    AugmentorList,
    CenterCrop,
    CenterPaste,
    ConstantBackgroundFiller,
    CropTransform,
    Flip,
    FlipTransform,
    GaussianDeform,
    GoogleNetRandomCropAndResize,
    ImageAugmentor,
    RandomCrop,
    RandomCropRandomShape,
    RandomPaste,
    RandomResize,
    Resize,
    ResizeShortestEdge,
    ResizeTransform,
    Rotation,
    RotationAndCropValid,
    Shift,
    Transform,
    Transpose,
    WarpAffineTransform,
    clip_boxes,
)

Array = np.ndarray[Any, Any]

# All for images of at least 24 pixels a side.
GEOMETRIC: list[ImageAugmentor] = [
    Shift(0.3, 0.2),
    Rotation(180, step_deg=90),
    Rotation(50, interp="cubic"),
    Rotation(30, (0.3, 0.7), border="constant"),
    RotationAndCropValid(60),
    Affine((0.6, 1.5), (0.1, 0.2), 30, 15),
    Affine(shear=20),
    Flip(horiz=True, prob=1),
    Flip(vert=True, prob=1),
    Transpose(prob=1),
    Resize((31, 47)),
    Resize(90, interp="cubic"),
    ResizeShortestEdge(40),
    RandomResize((0.5, 1.7)),
    RandomResize((20, 70), aspect_ratio_thres=0),
    RandomCrop((20, 17)),
    CenterCrop(22),
    RandomCropRandomShape(9, 7, max_aspect_ratio=1.5),
    GoogleNetRandomCropAndResize(target_shape=32),
    CenterPaste((90, 97)),
    RandomPaste(95),
    GaussianDeform([(0.3, 0.3), (0.7, 0.6)], sigma=0.3, randrange=4),
    AugmentorList([Flip(horiz=True), Rotation(20), RandomCrop(19), Resize((40, 30)), Transpose()]),
]
each = pytest.mark.parametrize("aug", GEOMETRIC, ids=[f"{a!r:.40}" for a in GEOMETRIC])
sizes = st.tuples(st.integers(24, 80), st.integers(24, 80))
seeds = st.integers(0, 2**32)


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


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


def inner(points: Array, h: int, w: int, margin: float = 1.0) -> Array:
    """Which points lie in an image, away from its borders."""
    high = np.array((w, h)) - margin
    return ((points >= margin) & (points <= high)).all(axis=1)


@each
@settings(max_examples=scaled(400))
@given(sizes, seeds)
def test_points_lie_where_the_image_shows_them(
    aug: ImageAugmentor, size: tuple[int, int], seed: int
) -> None:
    h, w = size
    transform = aug.get_transform(places(h, w), rng(seed))
    points = rng(seed).uniform((4, 4), (w - 4, h - 4), (50, 2))
    # Coordinates first: nothing depends on the image having been seen.
    moved = transform.apply_coords(points)
    shown = transform.apply_image(places(h, w))
    seen = inner(moved, *shown.shape[:2], margin=2.0)
    assert np.abs(look(shown, moved[seen]) - points[seen]).max(initial=0) < 0.1


@each
@settings(max_examples=scaled(400))
@given(sizes, seeds)
def test_bright_dot(aug: ImageAugmentor, size: tuple[int, int], seed: int) -> None:
    h, w = size
    dot = rng(seed).uniform((8, 8), (w - 8, h - 8))
    distance = ((places(h, w) - dot) ** 2).sum(axis=-1)
    image = np.exp(-distance / (2 * 1.5**2)).astype(np.float32)
    transform = aug.get_transform(image, rng(seed))
    shown = transform.apply_image(image)
    moved, right, below = transform.apply_coords(dot + np.array([(0, 0), (1, 0), (0, 1)]))
    # Not by the sizes of the images alone: a crop may show a small part of one, enlarged.
    scales = math.sqrt(shown.size / image.size), math.dist(moved, right), math.dist(moved, below)
    scale = max(scales)
    if inner(moved[None], *shown.shape, margin=7 * max(scale, 1.6))[0]:
        centre = np.average(places(*shown.shape).reshape(-1, 2), axis=0, weights=shown.ravel())
        # A deformation bends the dot itself.
        assert np.abs(centre - moved).max() < (0.5 if isinstance(aug, GaussianDeform) else 0.1)


@each
@settings(max_examples=scaled(400))
@given(sizes, seeds, st.sampled_from(["u1", "i8", "f4", "u2"]))
def test_mask_shows_the_pixel_that_the_image_shows(
    aug: ImageAugmentor, size: tuple[int, int], seed: int, dtype: str
) -> None:
    h, w = size
    transform = aug.get_transform(places(h, w), rng(seed))
    numbers = np.arange(h * w).reshape(h, w)
    mask = transform.apply_mask(numbers)
    points = transform.apply_coords(places(h, w).reshape(-1, 2))
    for number in rng(seed).integers(h * w, size=40).tolist():
        # Where a pixel of the image has gone, the mask shows it or, between pixels, a neighbour.
        x, y = np.floor(points[number]).astype(int).tolist()
        if not (1 <= y < mask.shape[0] - 1 and 1 <= x < mask.shape[1] - 1):
            continue
        if mask[y, x] or getattr(aug, "border", "") != "constant":
            old = np.array(divmod(number, w))
            found = np.array(divmod(int(mask[y, x]), w))
            assert np.abs(found - old).max() <= reach(transform, h, w)
    # Any dtype, any channels; the same pixels.
    labels = rng(seed).integers(0, 200, (h, w, 2)).astype(dtype)
    moved = transform.apply_mask(labels)
    assert moved.dtype == labels.dtype and moved.shape == (*mask.shape, 2)
    filled = isinstance(aug, (CenterPaste, RandomPaste)) or getattr(aug, "border", "") == "constant"
    if not filled:
        assert np.array_equal(moved, labels.reshape(-1, 2)[mask])


def reach(transform: Transform, h: int, w: int) -> float:
    """How many pixels of the image may lie within one pixel of the result."""
    x, y = w / 2, h / 2
    corners = transform.apply_coords(np.array([(x, y), (x + 1, y), (x, y + 1)]))
    steps = np.linalg.svd((corners[1:] - corners[0]).T)[1]
    return 0.5 / min(steps) * math.sqrt(2) + 0.6


@each
@settings(max_examples=scaled(400))
@given(sizes, seeds)
def test_box_holds_its_pixels(aug: ImageAugmentor, size: tuple[int, int], seed: int) -> None:
    h, w = size
    draw = rng(seed)
    (x0, x1), (y0, y1) = (np.sort(draw.choice(n + 1, 2, replace=False)) for n in (w, h))
    mask = np.zeros((h, w), np.uint8)
    mask[y0:y1, x0:x1] = 1
    transform = aug.get_transform(places(h, w), rng(seed))
    (box,) = transform.apply_boxes(np.array([(x0, y0, x1, y1)], np.float32))
    # Border pixels are repeated outwards, a deformation bends the sides of a box, and in a list
    # half a pixel of one step is enlarged by the next.
    touches = min(x0, y0) == 0 or x1 == w or y1 == h
    slack = (
        5.0 if isinstance(aug, GaussianDeform) else 2.0 if isinstance(aug, AugmentorList) else 0.51
    )
    ys, xs = transform.apply_mask(mask).nonzero()
    if len(xs) and not touches:
        assert box[0] <= xs.min() + slack and xs.max() + 1 - slack <= box[2]
        assert box[1] <= ys.min() + slack and ys.max() + 1 - slack <= box[3]
    assert box.dtype == np.float32


@each
@settings(max_examples=scaled(400))
@given(sizes, seeds)
def test_points_of_masks_and_keypoints(
    aug: ImageAugmentor, size: tuple[int, int], seed: int
) -> None:
    h, w = size
    transform = aug.get_transform(places(h, w), rng(seed))
    points = rng(seed).uniform((0, 0), (w, h), (6, 2))
    moved = transform.apply_coords(points)
    persons = np.concatenate([points, np.arange(6)[:, None]], axis=1).reshape(2, 3, 3)
    keypoints = transform.apply_keypoints(persons)
    assert np.allclose(keypoints[..., :2].reshape(-1, 2), moved)
    assert keypoints[..., 2].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert transform.apply_coords(points.astype(np.float32)).dtype == np.float32
    assert transform.apply_coords(points.astype(int)).dtype == np.float64
    for nothing in (np.zeros((0, 2)), np.array([])):
        assert transform.apply_coords(nothing).shape == (0, 2)
    assert transform.apply_boxes(np.array([])).shape == (0, 4)


@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from([(), (1,), (3,), (6,)]), st.booleans())
def test_flip_twice_is_the_identity(h: int, w: int, channels: tuple[int, ...], horiz: bool) -> None:
    image = rng(h * w).integers(0, 256, (h, w, *channels), np.uint8)
    flip = FlipTransform(h, w, horiz)
    assert np.array_equal(flip.apply_image(image), image[:, ::-1] if horiz else image[::-1])
    assert np.array_equal(flip.apply_image(flip.apply_image(image)), image)
    assert np.array_equal(flip.apply_mask(image), flip.apply_image(image))
    points = rng(0).uniform(-5, 15, (4, 2))
    assert np.allclose(flip.apply_coords(flip.apply_coords(points)), points)
    expected = [w - 0.0, 0.0] if horiz else [0.0, h - 0.0]
    assert flip.apply_coords(np.zeros((1, 2))).tolist() == [expected]


def numbers() -> tuple[Array, Callable[..., list[float]]]:
    def at(transform: Transform, x: float, y: float) -> list[float]:
        return np.round(transform.apply_coords(np.array([(x, y)], np.float64))[0], 9).tolist()

    return np.zeros((10, 20, 3), np.uint8), at


def test_by_hand() -> None:
    image, at = numbers()
    assert at(ResizeTransform(10, 20, 5, 40), 20, 10) == [40, 5]
    assert at(CropTransform(2, 3, 4, 5), 3, 2) == [0, 0]
    assert at(Transpose(prob=1).get_transform(image), 20, 10) == [10, 20]
    assert at(CenterPaste((20, 31)).get_transform(image), 0, 0) == [5, 5]
    # A quarter turn, counter-clockwise: what was on the right is at the top.
    turn = Rotation(90, (0.5, 0.5), step_deg=90)
    turns = {tuple(at(turn.get_transform(image, rng(seed)), 15, 5)) for seed in range(20)}
    assert turns == {(15, 5), (10, 0), (10, 10)}
    up = WarpAffineTransform(np.array([[0.0, 1, 5], [-1, 0, 14]]), (20, 10))
    assert at(up, 15, 5) == [10, 0]
    # Twice as large, about the centre.
    assert at(Affine((2, 2)).get_transform(image), 11, 6) == [12, 7]
    # Vertical lines lean to the side, the centre stays.
    lean = Affine(shear=30).get_transform(image, rng(1))
    assert at(lean, 10, 5) == [10, 5]
    assert at(lean, 0, 5) == [0, 5] and at(lean, 10, 0)[0] != 10


def test_a_shift_is_by_whole_pixels_within_its_limits() -> None:
    image, at = numbers()
    shifts = [at(Shift(0.2, 0.1).get_transform(image, rng(seed)), 0, 0) for seed in range(200)]
    assert {x for x, _ in shifts} == {-4, -3, -2, -1, 0, 1, 2, 3, 4}
    assert {y for _, y in shifts} == {-1, 0, 1}
    # A quarter and a bit of ten pixels are two whole ones; all places are equally likely.
    odd = [
        at(Shift(0.26, 0.29).get_transform(np.zeros((100, 10)), rng(s)), 0, 0) for s in range(600)
    ]
    assert {y for _, y in odd} <= {*range(-29, 30)} and max(y for _, y in odd) == 29
    counts = [sum(x == shift for x, _ in odd) for shift in range(-2, 3)]
    assert sum(counts) == 600 and min(counts) > 80
    for shift in (Affine(translate_frac=(0.26, 0.0)), Shift(0.04)):
        assert abs(at(shift.get_transform(np.zeros((8, 10)), rng(1)), 0, 0)[0]) <= 2
    numbered = np.arange(200, dtype=np.uint8).reshape(10, 20)
    moved = Shift(0.5, border="constant", border_value=255).get_transform(image, rng(0))
    dx = round(at(moved, 0, 0)[0])
    shown = moved.apply_image(numbered)
    assert dx != 0
    assert np.array_equal(np.roll(numbered, dx, 1)[shown != 255], shown[shown != 255])


def test_values_that_do_not_fit() -> None:
    image = np.zeros((9, 9, 3), np.uint8)
    for aug in (
        Rotation(40, (0, 0), border="constant", border_value=-1),
        Rotation(40, (0, 0), border="constant", border_value=(1, 2)),
        CenterPaste(20, ConstantBackgroundFiller(256)),
        CenterPaste(20, ConstantBackgroundFiller((1, 2))),
    ):
        with pytest.raises(ConfigError, match=r"(is no colour|does not fit into uint8)"):
            aug(image)
    for aug in (
        Rotation(40, (0, 0), border="constant", mask_value=255),
        CenterPaste(20, mask_value=255),
    ):
        transform = aug.get_transform(image, rng(1))
        assert transform.apply_mask(image[..., 0]).max() == 255
        with pytest.raises(ConfigError, match="255 does not fit into int8"):
            transform.apply_mask(image[..., 0].astype(np.int8))


def test_border_values() -> None:
    image = np.full((20, 20, 3), 9, np.uint8)
    turned = Rotation(
        40, (0.5, 0.5), border="constant", border_value=(1, 2, 3), mask_value=255
    ).get_transform(image, rng(3))
    assert turned.apply_image(image)[0, 0].tolist() == [1, 2, 3]
    assert turned.apply_mask(image[..., 0])[0, 0] == 255
    assert Rotation(40).get_transform(image, rng(3)).apply_image(image).min() == 9
    for channels in (1, 4, 5, 9):
        many = np.arange(channels, dtype=np.float32) + np.ones((20, 20, 1), np.float32)
        warp = WarpAffineTransform(np.eye(2, 3), (30, 30), "cubic", border_value=range(channels))
        shown = warp.apply_image(many)
        assert shown[5, 5].tolist() == [i + 1 for i in range(channels)]
        assert shown[29, 29].tolist() == list(range(channels))


@given(st.integers(1, 60), st.integers(1, 60), st.floats(-180, 180))
def test_rotation_and_crop_shows_only_the_image(h: int, w: int, degrees: float) -> None:
    aug = RotationAndCropValid(abs(degrees))
    image = np.ones((h, w), np.uint8)
    transform: Any = aug.get_transform(image, rng(0))
    new_h, new_w = transform.apply_image(image).shape
    back = np.linalg.inv(np.vstack([transform.mat, (0, 0, 1)]))[:2]
    corners = np.array([(0, 0, 1), (new_w, 0, 1), (0, new_h, 1), (new_w, new_h, 1)], np.float64)
    corners[:, :2] -= 0.5
    old = corners @ back.T + 0.5
    if min(new_h, new_w) > 1:  # a side has at least one pixel, whether it fits or not
        assert old.min() > -1e-6 and (old <= np.array((w, h)) + 1e-6).all()
    if min(h, w) > 20:
        assert new_h * new_w >= h * w * 0.15 * min(h, w) / max(h, w)


@pytest.mark.parametrize("degrees", [45, 135, 225, 45 + 1e-12, 45 - 1e-12])
def test_rotation_and_crop_of_a_square_by_half_a_right_angle(degrees: float) -> None:
    image = np.zeros((1000, 1000), np.uint8)
    aug = RotationAndCropValid(degrees, step_deg=degrees)
    shapes = {aug.get_transform(image, rng(seed)).apply_mask(image).shape for seed in range(9)}
    assert shapes == {(1000, 1000), (707, 707)}


def test_rotation_and_crop_in_steps() -> None:
    image = np.arange(12, dtype=np.uint8).reshape(3, 4)
    shapes = set()
    for seed in range(20):
        turned = RotationAndCropValid(180, step_deg=90)(image, rng(seed))
        shapes.add(turned.shape)
        assert any(np.array_equal(turned, np.rot90(image, k)) for k in range(4))
    assert shapes == {(3, 4), (4, 3)}


def test_resizes() -> None:
    image = np.zeros((30, 60, 3), np.uint8)
    assert Resize((5, 7))(image).shape == (5, 7, 3)
    assert Resize(8)(image).shape == (8, 8, 3)
    assert ResizeShortestEdge(10)(image).shape == (10, 20, 3)
    assert ResizeShortestEdge(10)(image[:, :7]).shape == (43, 10, 3)
    assert ResizeShortestEdge(3)(np.zeros((1, 1000), np.uint8)).shape == (3, 3000)
    for seed in range(50):
        h, w = RandomResize((0.5, 2.0))(image, rng(seed)).shape[:2]
        assert 15 <= h <= 60 and 30 <= w <= 120 and 1.69 < w / h < 2.31 + 0.1
        h, w = RandomResize((20, 25), (50, 55), aspect_ratio_thres=9)(image, rng(seed)).shape[:2]
        assert 20 <= w <= 25 and 50 <= h <= 55
        h, w = RandomResize((0.1, 0.2), minimum=(50, 10), aspect_ratio_thres=0)(image).shape[:2]
        assert (h, w) == (25, 50)
    widths = {RandomResize((5, 7), aspect_ratio_thres=9)(image, rng(s)).shape[1] for s in range(60)}
    assert widths == {5, 6, 7}
    assert RandomResize((0.001, 0.001), aspect_ratio_thres=0)(image).shape == (1, 1, 3)
    assert RandomResize((9.0, 9.0), (1.0, 1.0))(image).shape == image.shape  # no draw will do
    impossible = RandomResize((9.0, 9.0), (1.0, 1.0), minimum=(90, 90))
    assert impossible(image).shape == (90, 180, 3)
    assert RandomResize((9.0, 9.0), (1.0, 1.0), minimum=(91, 7))(image).shape == (46, 91, 3)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.integers(1, 40))
def test_the_nearest_pixel_is_the_same_for_images_and_masks(h: int, w: int, y: int, x: int) -> None:
    image = np.random.default_rng(0).integers(0, 256, (h, w, 3), np.uint8)
    transform = Resize((y, x), interp="nearest").get_transform(image)
    assert np.array_equal(transform.apply_image(image), transform.apply_mask(image))
    shown = transform.apply_image(image[..., 0].astype(np.float32))
    places = np.stack(np.meshgrid(np.arange(x), np.arange(y)), axis=-1).reshape(-1, 2) + 0.5
    back = np.floor(places * (w / x, h / y) + 1e-9).astype(int)
    assert np.array_equal(shown.ravel(), image[back[:, 1], back[:, 0], 0])


def test_area_interpolation_only_when_asked() -> None:
    stripes = np.zeros((64, 64), np.uint8)
    stripes[:, ::8] = 255
    assert np.ptp(Resize(8, interp="area")(stripes)) == 0
    assert np.array_equal(Resize(8, interp=3)(stripes), Resize(8, interp="area")(stripes))
    assert Resize(8)(stripes).mean() != Resize(8, interp="area")(stripes).mean()


def test_crops_reach_every_place() -> None:
    image = np.arange(20, dtype=np.uint8).reshape(4, 5)
    corners = {RandomCrop((2, 3))(image, rng(seed))[0, 0].item() for seed in range(200)}
    assert corners == {0, 1, 2, 5, 6, 7, 10, 11, 12}
    assert CenterCrop((2, 3))(image).tolist() == [[6, 7, 8], [11, 12, 13]]
    crops = [RandomCropRandomShape(2, 1)(image, rng(seed)) for seed in range(500)]
    assert {crop.shape for crop in crops} == {(h, w) for h in range(1, 5) for w in range(2, 6)}
    assert {crop[-1, -1].item() for crop in crops if crop.shape == (3, 4)} == {13, 14, 18, 19}
    wide = np.zeros((50, 500), np.uint8)
    for seed in range(100):
        h, w = RandomCropRandomShape(10, 10, max_aspect_ratio=2)(wide, rng(seed)).shape
        assert 0.5 <= w / h <= 2
        h, w = RandomCropRandomShape(10, 10, 20, 1000)(wide, rng(seed)).shape
        assert 10 <= w <= 20 and 10 <= h <= 50


@given(st.integers(1, 200), st.integers(1, 200), seeds)
def test_random_resized_crop(h: int, w: int, seed: int) -> None:
    aug = GoogleNetRandomCropAndResize(target_shape=(10, 12))
    transform: Any = aug.get_transform(np.zeros((h, w), np.uint8), rng(seed))
    assert transform.apply_image(np.zeros((h, w), np.uint8)).shape == (10, 12)
    crop, resize = transform
    if isinstance(crop, CropTransform) and min(h, w) > 20:
        assert (resize.new_h, resize.new_w) == (10, 12)
        assert 0.07 < crop.h * crop.w / (h * w) <= 1
        assert 0.7 < crop.w / crop.h < 1.43


def test_random_resized_crop_draws_areas_and_ratios() -> None:
    image = np.zeros((300, 300), np.uint8)
    aug = GoogleNetRandomCropAndResize((0.1, 0.4), (2, 2))
    crops: list[Any] = [next(iter(aug.get_transform(image, rng(s)))) for s in range(300)]  # pyright: ignore
    areas = [crop.w * crop.h / image.size for crop in crops]
    assert 0.09 < min(areas) < 0.12 and 0.38 < max(areas) < 0.41
    assert {round(crop.w / crop.h, 1) for crop in crops} == {0.5, 2.0}


def test_pastes() -> None:
    image = np.full((2, 3, 3), 200, np.uint8)
    pasted = CenterPaste((4, 6))(image)
    assert pasted.sum() == 200 * 18 and (pasted[1:3, 1:4] == 200).all()
    coloured = CenterPaste(5, ConstantBackgroundFiller((1, 2, 3)))(image)
    assert coloured[0, 0].tolist() == [1, 2, 3] and coloured[2, 2].tolist() == [200] * 3
    places = {int(RandomPaste((3, 4))(image, rng(s))[..., 0].argmax()) for s in range(100)}
    assert places == {0, 1, 4, 5}
    transform = CenterPaste(4, mask_value=-1).get_transform(image)
    assert transform.apply_mask(np.ones((2, 3), np.int64)).tolist() == [
        [-1, -1, -1, -1],
        [1, 1, 1, -1],
        [1, 1, 1, -1],
        [-1, -1, -1, -1],
    ]


def test_a_strong_pull_is_strongest_at_its_anchor() -> None:
    image = places(100, 100)
    aug = GaussianDeform([(0.2, 0.7)], sigma=0.2, randrange=20)  # the slope reaches 0.86
    for seed in range(20):
        transform = aug.get_transform(image, rng(seed))
        shown = transform.apply_image(image)
        pulls = np.abs(shown - image)[5:-5, 5:-5].sum(axis=-1)
        y, x = np.unravel_index(pulls.argmax(), pulls.shape)
        assert abs(x + 5 - 70) < 6 and (abs(y + 5 - 20) < 6 or shown[..., 1].min() < 1)
        points = rng(seed).uniform(0, 100, (300, 2))
        moved = transform.apply_coords(points)
        seen = inner(moved, 100, 100, margin=2) & inner(points, 100, 100, margin=2)
        assert np.abs(look(shown, moved[seen]) - points[seen]).max() < 0.1


def test_a_deformation_that_almost_folds_still_moves_points() -> None:
    image = np.zeros((100, 100), np.uint8)
    for seed in range(scaled(2000)):
        draw = rng(seed)
        aug = GaussianDeform(draw.random((1, 2)), sigma=0.2, randrange=22)  # slopes up to 0.94
        transform = aug.get_transform(image, draw)
        transform.apply_coords(draw.uniform(0, 100, (100, 2)))


def test_a_deformation_that_folds_refuses_points() -> None:
    image = np.zeros((50, 50), np.uint8)
    aug = GaussianDeform([(0.5, 0.5)], (50, 50), sigma=0.02, randrange=40)
    transform = aug.get_transform(image, rng(0))
    transform.apply_image(image)
    with pytest.raises(ConfigError, match="folds the image"):
        points = np.random.default_rng(0).uniform(20, 30, (200, 2))
        transform.apply_coords(points)


@each
def test_points_that_are_missing_stay_missing(aug: ImageAugmentor) -> None:
    transform = aug.get_transform(places(40, 50), rng(0))
    points = np.array([(20.0, 20.0), (np.nan, np.nan), (30.0, 25.0)])
    moved = transform.apply_coords(points)
    assert np.isnan(moved[1]).all()
    assert np.allclose(moved[[0, 2]], transform.apply_coords(points[[0, 2]]), atol=1e-3)


@pytest.mark.parametrize("border", ["constant", "replicate", "reflect", "wrap", "reflect_101"])
def test_borders_of_images_and_masks_agree(border: str) -> None:
    numbers = np.arange(20 * 30, dtype=np.float32).reshape(20, 30)
    for aug in (
        Shift(0.5, 0.5, border=border),
        Rotation(180, (0.5, 0.5), border=border, step_deg=90),
    ):
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


def test_boxes_that_end_before_they_begin_have_no_area() -> None:
    boxes = np.array([[50.0, 50, 10, 10], [50, 10, 10, 50], [np.nan, 1, 2, 3], [1, 1, 2, 2]])
    assert clip_boxes(boxes, 100, 100)[1].tolist() == [False, False, False, True]


def test_areas_that_float16_cannot_hold() -> None:
    boxes = np.array([[0, 0, 400, 400], [-400, 0, 400, 400]], np.float16)
    clipped, keep = clip_boxes(boxes, 500, 500, min_area=0.5)
    assert clipped.dtype == np.float16 and keep.tolist() == [True, True]  # half counts
    assert clip_boxes(boxes, 500, 500, min_area=0.51)[1].tolist() == [True, False]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Resize((0, 3)),
        lambda: Resize((1, 2, 3)),  # pyright: ignore[reportArgumentType]
        lambda: Resize(3.5),  # pyright: ignore[reportArgumentType]
        lambda: Resize((3.5, 2)),  # pyright: ignore[reportArgumentType]
        lambda: Resize("ab"),  # pyright: ignore[reportArgumentType]
        lambda: Resize(4, interp="fancy"),
        lambda: Resize(4, interp=17),
        lambda: Flip(),
        lambda: Flip(horiz=True, vert=True),
        lambda: Flip(horiz=True, prob=1.5),
        lambda: Transpose(prob=-0.1),
        lambda: Rotation(3, border="none"),
        lambda: Rotation(3, step_deg=0),
        lambda: Shift(2.0),
        lambda: Affine((0, 1)),
        lambda: RandomResize((0.0, 1.0)),
        lambda: RandomResize((0.5, 1.0), (0.5, 1.0), aspect_ratio_thres=0),
        lambda: RandomCropRandomShape(5, 5, 4),
        lambda: RandomCropRandomShape(5, 5, max_aspect_ratio=0.5),
        lambda: GoogleNetRandomCropAndResize((0.0, 1.0)),
        lambda: GaussianDeform([0.5]),  # pyright: ignore[reportArgumentType]
    ],
)
def test_arguments_that_make_no_sense(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError):
        make()


def test_what_does_not_fit() -> None:
    image = np.zeros((10, 20, 3), np.uint8)
    for aug in (RandomCrop(11), CenterCrop(11), RandomCropRandomShape(5, 11)):
        with pytest.raises(
            ConfigError, match=r"A crop of 11 x (11|5) pixels does not fit.*10 x 20"
        ):
            aug(image)
    with pytest.raises(ConfigError, match=r"An image of 10 x 20 pixels does not fit.*15 x 15"):
        CenterPaste(15)(image)
    with pytest.raises(ConfigError, match="does not lie in an image"):
        CropTransform(-1, 0, 5, 5).apply_image(image)
    for transform in (ResizeTransform(10, 20, 5, 5), FlipTransform(10, 20)):
        for apply in (transform.apply_image, transform.apply_mask):
            with pytest.raises(ConfigError, match="for images of 10 x 20"):
                apply(image[:9])
    with pytest.raises(ConfigError, match=r"expected  \[n, 2\]"):
        FlipTransform(10, 20).apply_coords(np.zeros(4))
    with pytest.raises(ConfigError, match="that of boxes"):
        FlipTransform(10, 20).apply_boxes(np.zeros((3, 2)))
    with pytest.raises(ConfigError, match="Keypoints have x and y"):
        FlipTransform(10, 20).apply_keypoints(np.zeros(3))
