"""Which way: angles, shifts and factors have the sign that is documented, and both are drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from augmentors import Array, picture, rng
from towerpack.dataflow import images as im

SIZE = 41  # odd, so that a pixel lies in the centre


def dot(x: int, y: int) -> Array:
    image = np.zeros((SIZE, SIZE), np.uint8)
    image[y, x] = 255
    return image


def shown_at(aug_or_transform: Any, x: int, y: int) -> Array:
    """From the centre, x to the right and y upwards, where one pixel is shown."""
    image = dot(x, y)
    shown = aug_or_transform.apply_image(image).astype(np.float64)
    weights = shown / shown.sum()
    rows, columns = np.mgrid[:SIZE, :SIZE] - (SIZE // 2)
    return np.array([(weights * columns).sum(), -(weights * rows).sum()])


class Highest(np.random.Generator):
    """Draws the greatest number of every range."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(0))

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        return np.broadcast_to(np.float64(high), size or ()).copy()[()]

    def integers(self, low: Any, high: Any = None, size: Any = None, **options: Any) -> Any:
        low, high = (0, low) if high is None else (low, high)
        last = np.asarray(high) - (0 if options.get("endpoint") else 1)
        return np.broadcast_to(last, size or np.shape(last)).copy()[()]


@pytest.mark.parametrize(
    "aug",
    [
        im.Rotation(30, (0.5, 0.5), border="constant"),
        im.Rotation(30, (0.5, 0.5), border="constant", step_deg=15),
        im.Affine(rotate_max_deg=30, border="constant"),
        im.RandAugment(1, 10, ops=("rotate",), fill=0),
    ],
    ids=repr,
)
def test_positive_angles_are_counter_clockwise(aug: im.ImageAugmentor) -> None:
    turn = aug.get_transform(dot(0, 0), Highest())
    # From three o'clock a turn of 30 degrees goes to two o'clock.
    expected = 10 * np.array([np.cos(np.pi / 6), np.sin(np.pi / 6)])
    assert shown_at(turn, SIZE // 2 + 10, SIZE // 2) == pytest.approx(expected, abs=0.1)


def test_rotation_and_crop_turns_counter_clockwise() -> None:
    image = picture((9, 9))
    turned = im.RotationAndCropValid(90, step_deg=90)(image, Highest())
    assert np.array_equal(turned, np.rot90(image))


@pytest.mark.parametrize(
    ("aug", "expected"),
    [
        (im.Shift(0.25, 0), [10, 0]),
        (im.Shift(0, 0.25), [0, -10]),
        (im.Affine(translate_frac=(0.25, 0.125), border="constant"), [10, -5]),
        # Vertical lines lean to the right below the centre, so to the left above it.
        (im.Affine(shear=30, border="constant"), [0, 0]),
        (im.RandAugment(1, 331 * 10 / 41 / 150 * 10, 20, ops=("translate_x",), fill=0), [5, 0]),
    ],
    ids=repr,
)
def test_the_greatest_numbers_go_right_and_down(aug: Any, expected: list[float]) -> None:
    moved = aug.get_transform(dot(0, 0), Highest())
    centre = SIZE // 2
    assert shown_at(moved, centre, centre) == pytest.approx(expected, abs=0.1)


def test_a_shear_leans_to_the_right_below_the_centre() -> None:
    lean = im.Affine(shear=30, border="constant").get_transform(dot(0, 0), Highest())
    x, y = shown_at(lean, SIZE // 2, SIZE // 2 + 10)
    assert (x, y) == pytest.approx((5, -10 * np.cos(np.pi / 6)), abs=0.1)


# ------------------------------------------------------------------ both signs

POINT = np.array([[30.0, 10.0]])
GREY = np.full((SIZE, SIZE, 3), 128, np.uint8)
COLOURED = np.broadcast_to(np.array([90, 120, 150], np.uint8), (SIZE, SIZE, 3))


def x_moves(aug: im.ImageAugmentor, seed: int) -> float:
    return (aug.get_transform(GREY, rng(seed)).apply_coords(POINT) - POINT)[0, 0]


def y_moves(aug: im.ImageAugmentor, seed: int) -> float:
    return (aug.get_transform(GREY, rng(seed)).apply_coords(POINT) - POINT)[0, 1]


def grows(aug: im.ImageAugmentor, seed: int) -> float:
    return aug(GREY, rng(seed)).astype(float).mean() - 128


def reddens(aug: im.ImageAugmentor, seed: int) -> float:
    shown = aug(COLOURED, rng(seed)).astype(float)
    return (np.ptp(shown, axis=2) - np.ptp(COLOURED, axis=2)).mean()


def hue_turns(aug: im.ImageAugmentor, seed: int) -> float:
    # The middle channel grows with one direction of the circle and falls with the other.
    return aug(COLOURED, rng(seed))[0, 0, 1] - 120.0


SIGNED: list[tuple[im.ImageAugmentor, Callable[[Any, int], float]]] = [
    (im.Rotation(20, (0.5, 0.5)), x_moves),
    (im.Rotation(20, (0.5, 0.5), step_deg=20), x_moves),
    (im.RotationAndCropValid(20), lambda aug, seed: aug.get_transform(GREY, rng(seed)).mat[0, 1]),
    (im.Affine(rotate_max_deg=20), x_moves),
    (im.Affine(shear=20), x_moves),
    (im.Affine(translate_frac=(0.2, 0.2)), x_moves),
    (im.Affine(translate_frac=(0.2, 0.2)), y_moves),
    (im.Shift(0.2, 0.2), x_moves),
    (im.Shift(0.2, 0.2), y_moves),
    (im.GaussianDeform([(0.25, 0.75)]), x_moves),
    (im.GaussianDeform([(0.25, 0.75)]), y_moves),
    (im.Brightness(50), grows),
    (im.Brightness(-50), grows),
    (im.BrightnessScale((0.5, 1.5)), grows),
    (im.Saturation(0.5), reddens),
    (im.Saturation(-0.5), reddens),
    (im.Hue((-10, 10)), hue_turns),
    (im.Lighting(1, [30, 0, 0], np.full((3, 3), 1 / 3).tolist()), grows),
    (im.GaussianNoise(40), lambda aug, seed: aug(GREY, rng(seed))[3, 4, 1] - 128.0),
    (im.RandAugment(1, 5, ops=("rotate",)), x_moves),
    *((im.RandAugment(1, 5, ops=(f"{name}_x",)), x_moves) for name in ("shear", "translate")),
    *((im.RandAugment(1, 5, ops=(f"{name}_y",)), y_moves) for name in ("shear", "translate")),
    (im.RandAugment(1, 5, ops=("brightness",)), grows),
    (im.RandAugment(1, 5, ops=("color",)), reddens),
    (im.RandAugment(1, 5, ops=("contrast",)), reddens),
]


@pytest.mark.parametrize(("aug", "change"), SIGNED, ids=[repr(aug) for aug, _ in SIGNED])
def test_both_signs_are_equally_likely(aug: Any, change: Callable[[Any, int], float]) -> None:
    changes = np.array([change(aug, seed) for seed in range(200)])
    changes = changes[changes != 0]
    assert len(changes) > 100
    # Four standard deviations of a fair coin.
    assert abs((changes > 0).mean() - 0.5) < 4 * 0.5 / np.sqrt(len(changes))


@pytest.mark.parametrize(
    "aug", [im.Flip(horiz=True), im.Flip(vert=True), im.Transpose(), im.Transpose(0.25)], ids=repr
)
def test_flips_are_as_likely_as_they_say(aug: Any) -> None:
    image = picture((5, 5))
    flipped = np.mean([not np.array_equal(aug(image, rng(seed)), image) for seed in range(400)])
    assert flipped == pytest.approx(aug.prob, abs=0.1)


# ------------------------------------------------------------------ borders

BORDERS: dict[str, Callable[[Array], Array]] = {
    "constant": lambda row: np.concatenate([[9, 9, 9], row[:-3]]),
    "replicate": lambda row: np.concatenate([[row[0]] * 3, row[:-3]]),
    "reflect": lambda row: np.concatenate([row[2::-1], row[:-3]]),
    "reflect_101": lambda row: np.concatenate([row[3:0:-1], row[:-3]]),
    "wrap": lambda row: np.concatenate([row[-3:], row[:-3]]),
}


@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize(
    "make",
    [
        lambda border: im.Shift(0.25, 0, border, 9, 9),
        lambda border: im.Affine(
            translate_frac=(0.25, 0), border=border, border_value=9, mask_value=9
        ),
    ],
    ids=["shift", "affine"],
)
def test_what_a_border_shows(make: Any, border: str) -> None:
    image = picture((6, 12))
    moved = make(border).get_transform(image, Highest())
    expected = [BORDERS[border](row) for row in image]
    assert np.array_equal(moved.apply_image(image), expected)
    assert np.array_equal(moved.apply_mask(image), expected)


@pytest.mark.parametrize("border", BORDERS)
def test_a_rotation_has_its_border(border: str) -> None:
    image = picture((12, 16))
    turn = im.Rotation(90, (0.25, 0.25), border=border, border_value=9, mask_value=9, step_deg=90)
    shown = turn.get_transform(image, Highest()).apply_image(image)
    options: dict[str, Any] = {
        "constant": {"mode": "constant", "constant_values": 9},
        "replicate": {"mode": "edge"},
        "reflect": {"mode": "symmetric"},
        "reflect_101": {"mode": "reflect"},
        "wrap": {"mode": "wrap"},
    }
    padded = np.pad(image, 16, **options[border])
    # A quarter turn about (4, 3): what is shown at (x, y) from there was at (-y, x).
    y, x = np.mgrid[:12, :16] + 0.5 - np.reshape([3, 4], (2, 1, 1))
    assert np.array_equal(shown, padded[(16 + 3 + x).astype(int), (16 + 4 - y).astype(int)])
