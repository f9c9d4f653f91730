"""Laws of every augmentor: of images and generators, and of all that moves with an image.

Those of geometry use an image whose two channels are the x and the y of each pixel: wherever it was
moved, it says where it came from.
"""

from __future__ import annotations

import math
import pickle
from typing import Any

import cloudpickle
import numpy as np
import pytest

import augmentors as table
from augmentors import Array, inner, look, named, picture, places, rng
from scaling import scaled
from towerpack._core.errors import ConfigError
from towerpack.dataflow import images as im
from towerpack.dataflow import imgaug

each_that_moves = pytest.mark.parametrize(**named([*table.GEOMETRIC, *table.LARGE]))
CHANNELS: list[tuple[int, ...]] = [(3,), (), (1,), (2,), (4,), (6,)]


def small(seed: int) -> list[int]:
    return rng(seed).integers(1, 51, 2).tolist() if seed > 2 else [[1, 1], [50, 1], [1, 50]][seed]


def large(seed: int) -> list[int]:
    return rng(seed).integers(24, 81, 2).tolist()


@pytest.mark.parametrize(**named(table.EVERY))
@pytest.mark.parametrize("dtype", ["u1", "f4"])
def test_laws(aug: im.ImageAugmentor, dtype: str) -> None:
    randaug = isinstance(aug, im.RandAugment)
    kinds = 1 if aug in table.COLOUR or aug in table.CONVERTING else 3 if randaug else len(CHANNELS)
    for seed in range(0 if randaug and dtype == "f4" else scaled(200)):
        size = large(seed) if aug in table.LARGE else small(seed)
        follows_its_laws(aug, picture((*size, *CHANNELS[seed % kinds]), dtype, seed), seed)


def follows_its_laws(aug: im.ImageAugmentor, image: Array, seed: int) -> None:
    before = image.copy()
    out, transform = aug.augment_with_transform(image, rng(seed))
    assert np.array_equal(out, aug(image, rng(seed)), equal_nan=True)
    drawn = aug.get_transform(image, rng(seed))
    for same in (transform, drawn, pickle.loads(pickle.dumps(drawn))):
        assert np.array_equal(out, same.apply_image(image), equal_nan=True)
    assert np.array_equal(image, before), "the input was changed"
    copy = cloudpickle.loads(cloudpickle.dumps(aug))
    assert np.array_equal(out, copy(image, rng(seed))) and repr(copy) == repr(aug)
    if aug not in table.CONVERTING:
        assert out.dtype == image.dtype and out.shape[2:] == image.shape[2:]
    if not isinstance(aug, im.MapImage):
        mask = transform.apply_mask(np.zeros(image.shape[:2], np.int64))
        assert mask.shape == out.shape[:2] and mask.dtype == np.int64
        moved = transform.apply_coords(np.zeros((3, 2)))
        assert moved.shape == (3, 2) and np.isfinite(moved).all()


def test_pixels_alone_change() -> None:
    mask, points, boxes = picture((9, 8), "i8"), rng().random((4, 2)), np.array([[1, 2, 3, 4.5]])
    for aug in (*table.PHOTOMETRIC, *table.COLOUR):
        transform = aug.get_transform(picture((9, 8, 3)), rng())
        assert np.array_equal(transform.apply_mask(mask), mask)
        assert np.array_equal(transform.apply_coords(points), points)
        assert np.array_equal(transform.apply_boxes(boxes), boxes)
        with pytest.raises(ConfigError, match="got float64"):
            transform.apply_image(picture((4, 4, 3), "f8"))


def test_what_is_no_image() -> None:
    values: list[Any] = [picture((4, 4, 3), dtype) for dtype in ("f8", "u2", "?")]
    values += [np.zeros(shape, np.uint8) for shape in ((0, 4, 3), (4,), (2, 4, 4, 3))]
    for aug in table.EVERY:
        for value in (*values, [[1, 2], [3, 4]], None):
            with pytest.raises(ConfigError, match=r"image|Images"):
                aug(value)


def test_the_predecessors_module_has_our_names() -> None:
    names = [name for name in dir(imgaug) if name[0].isupper()]
    assert len(names) > 50 and all(getattr(imgaug, n) is getattr(im, n) for n in names)


# Geometry


@each_that_moves
def test_points_lie_where_the_image_shows_them(aug: im.ImageAugmentor) -> None:
    for seed in range(scaled(400)):
        h, w = large(seed)
        transform = aug.get_transform(places(h, w), rng(seed))
        points = rng(seed).uniform((4, 4), (w - 4, h - 4), (50, 2))
        # Coordinates first: nothing depends on the image having been seen.
        moved = transform.apply_coords(points)
        shown = transform.apply_image(places(h, w))
        seen = inner(moved, *shown.shape[:2])
        assert np.abs(look(shown, moved[seen]) - points[seen]).max(initial=0) < 0.1, seed


@each_that_moves
def test_mask_shows_the_pixel_that_the_image_shows(aug: im.ImageAugmentor) -> None:
    for seed in range(scaled(400)):
        mask_shows_the_pixel(aug, seed, dtype=("u1", "i8", "f4", "u2")[seed % 4])


def mask_shows_the_pixel(aug: im.ImageAugmentor, seed: int, dtype: str) -> None:
    h, w = large(seed)
    transform = aug.get_transform(places(h, w), rng(seed))
    mask = transform.apply_mask(np.arange(h * w).reshape(h, w))
    points = transform.apply_coords(places(h, w).reshape(-1, 2))
    filled = isinstance(aug, im.CenterPaste) or getattr(aug, "border", "") == "constant"
    # How many pixels of the image may lie within one pixel of the result.
    corners = transform.apply_coords(np.eye(3, 2, -1) + np.array((w / 2, h / 2)))
    reach = 0.5 / min(np.linalg.svd((corners[1:] - corners[0]).T)[1]) * math.sqrt(2) + 0.6
    for number in rng(seed).integers(h * w, size=40).tolist():
        # Where a pixel of the image has gone, the mask shows it or, between pixels, a neighbour.
        x, y = np.floor(points[number]).astype(int).tolist()
        if not (1 <= y < mask.shape[0] - 1 and 1 <= x < mask.shape[1] - 1):
            continue
        if mask[y, x] or not filled:
            old, found = np.array(divmod(number, w)), np.array(divmod(int(mask[y, x]), w))
            assert np.abs(found - old).max() <= reach
    # Any dtype, any channels; the same pixels.
    labels = rng(seed).integers(0, 200, (h, w, 2)).astype(dtype)
    moved = transform.apply_mask(labels)
    assert moved.dtype == labels.dtype and moved.shape == (*mask.shape, 2)
    assert filled or np.array_equal(moved, labels.reshape(-1, 2)[mask])


@each_that_moves
def test_box_holds_its_pixels(aug: im.ImageAugmentor) -> None:
    for seed in range(scaled(400)):
        box_holds_its_pixels(aug, seed)


def box_holds_its_pixels(aug: im.ImageAugmentor, seed: int) -> None:
    h, w = large(seed)
    draw = rng(seed)
    (x0, x1), (y0, y1) = (np.sort(draw.choice(n + 1, 2, replace=False)) for n in (w, h))
    mask = np.zeros((h, w), np.uint8)
    mask[y0:y1, x0:x1] = 1
    transform = aug.get_transform(places(h, w), rng(seed))
    (box,) = transform.apply_boxes(np.array([(x0, y0, x1, y1)], np.float32))
    assert box.dtype == np.float32
    # Border pixels are repeated outwards, a deformation bends the sides of a box, and in a list
    # half a pixel of one step is enlarged by the next.
    touches = min(x0, y0) == 0 or x1 == w or y1 == h
    loose = {im.GaussianDeform: 5.0, im.AugmentorList: 2.0}.get(type(aug), 0.51)
    ys, xs = transform.apply_mask(mask).nonzero()
    if len(xs) and not touches:
        assert box[0] <= xs.min() + loose and xs.max() + 1 - loose <= box[2]
        assert box[1] <= ys.min() + loose and ys.max() + 1 - loose <= box[3]


@each_that_moves
def test_points_boxes_and_keypoints(aug: im.ImageAugmentor) -> None:
    transform = aug.get_transform(places(40, 50), rng())
    points = rng().uniform((0, 0), (50, 40), (6, 2))
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
    points[1] = np.nan  # points that are missing stay missing
    with_missing = transform.apply_coords(points)
    assert np.isnan(with_missing[1]).all()
    assert np.allclose(with_missing[[0, 2]], moved[[0, 2]], atol=1e-3)
