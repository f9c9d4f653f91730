"""The adapter: what albumentations draws is a function of the pipeline's generator."""

from __future__ import annotations

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from augmentors import rng
from towerpack.dataflow import images as im
from towerpack.dataflow.images import clip_boxes

os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # it looks for a newer version on import
A: Any = pytest.importorskip("albumentations")

IMG = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)


def lively() -> im.Albumentations:
    move = A.Affine(rotate=(-30, 30), translate_percent=(-0.1, 0.1), p=1)
    steps = [A.HorizontalFlip(), move, A.RandomCrop(30, 44), A.RandomBrightnessContrast()]
    return im.Albumentations(A.Compose(steps, seed=3))


def test_is_a_function_of_the_generator() -> None:
    aug = lively()
    results = [aug.augment(IMG, rng(seed)) for seed in range(8)]
    assert len({img.tobytes() for img in results}) == 8
    assert results[0].shape == (30, 44, 3)
    for other in (aug, lively(), pickle.loads(pickle.dumps(aug))):
        for seed in (5, 2):
            assert np.array_equal(other.augment(IMG, rng(seed)), results[seed])
    with ThreadPoolExecutor(4) as pool:
        again = list(pool.map(lambda seed: aug.augment(IMG, rng(seed)), [*range(8)] * 4))
    assert all(np.array_equal(img, results[i % 8]) for i, img in enumerate(again))


def test_all_targets_move_together() -> None:
    """A bright square, its mask, its box and its corner."""
    img = np.zeros((80, 100, 3), np.uint8)
    img[30:50, 40:60] = 255
    mask = (img[:, :, 0] > 0).astype(np.int64)
    turn = A.Affine(rotate=(-90, 90), scale=(0.6, 1.2), p=1)
    aug = im.Albumentations([A.HorizontalFlip(), A.VerticalFlip(), turn])
    for seed in range(5):
        transform = aug.get_transform(img, rng(seed))
        # Coordinates first: no order of calls may matter.
        center = transform.apply_coords(np.array([[50.0, 40.0]], np.float32))
        box = transform.apply_boxes(np.array([[40.0, 30.0, 60.0, 50.0]]))
        keypoints = transform.apply_keypoints(np.array([[50.0, 40.0, 2.0]]))
        labels, shown = transform.apply_mask(mask), transform.apply_image(img)
        assert center.dtype == np.float32 and labels.dtype == np.int64
        assert np.allclose(keypoints[:, :2], center, atol=1e-3) and keypoints[0, 2] == 2
        bright = np.argwhere(shown[:, :, 0] > 127)[:, ::-1] + 0.5
        assert np.allclose(bright.mean(axis=0), center[0], atol=0.6)
        assert (labels != (shown[:, :, 0] > 127)).mean() < 0.01
        assert np.allclose(bright.min(axis=0) - 0.5, box[0, :2], atol=1.5)
        assert np.allclose(bright.max(axis=0) + 0.5, box[0, 2:], atol=1.5)


LARGE = np.random.default_rng(0).integers(0, 256, (81, 100, 3), np.uint8)
PLACES = np.array([[50.0, 40], [-5, 20], [100, 81], [99.9, 80.9], [0, 0], [30, 30], [500, -300]])


@pytest.mark.parametrize("name", ["GridDistortion", "ElasticTransform", "OpticalDistortion"])
def test_points_that_are_lost_keep_their_rows(name: str) -> None:
    """Those inside stay with their labels; nothing else is told about the others than NaN."""
    aug = im.Albumentations(getattr(A, name)(p=1))
    lost = 0
    for seed in range(2):
        transform = aug.get_transform(LARGE, rng(seed))
        moved = transform.apply_coords(PLACES)
        assert moved.shape == PLACES.shape
        assert np.isfinite(moved[[0, 5]]).all() and np.abs(moved - PLACES)[[0, 5]].max() < 20
        assert np.array_equal(np.isnan(moved[:, 0]), np.isnan(moved[:, 1]))
        lost += int(np.isnan(moved).any(axis=1).sum())
        keypoints = np.column_stack([PLACES, np.arange(len(PLACES))])
        seen = transform.apply_keypoints(keypoints)
        assert np.array_equal(seen[:, 2], keypoints[:, 2])
        assert np.array_equal(seen[:, :2], moved, equal_nan=True)
        everywhere = np.array([[0.0, 0, 100, 81], [30, 30, 50, 50], [400, 400, 500, 500]])
        boxes = transform.apply_boxes(everywhere)
        assert boxes.shape == (3, 4) and np.isfinite(boxes[:2]).all()
        missing = transform.apply_coords(np.array([[np.nan, 3], [30, 30]]))
        assert np.isnan(missing[0]).all() and np.array_equal(missing[1], moved[5])
        assert np.abs(boxes[0] - (0, 0, 100, 81)).max() < 25
        assert np.abs(boxes[1] - (30, 30, 50, 50)).max() < 25
        assert clip_boxes(boxes, 81, 100)[1].tolist() == [True, True, False]
    assert lost


def test_reflections_are_no_points() -> None:
    """At a border that mirrors, albumentations makes several points of one."""
    for border in (2, 3, 4):
        pad = A.PadIfNeeded(120, 130, border_mode=border, p=1)
        for transform in (pad, A.Compose([A.OneOf([pad], p=1)])):
            drawn = im.Albumentations(transform).get_transform(LARGE, rng())
            assert drawn.apply_image(LARGE).shape == (120, 130, 3)
            assert np.allclose(drawn.apply_coords(PLACES), PLACES + np.array((15, 19)))
            assert drawn.apply_coords(np.zeros((0, 2))).shape == (0, 2)


def test_masks_of_any_dtype() -> None:
    for dtype in (bool, np.int64, np.uint8, np.float32):
        mask = (LARGE[:, :, 0] > 127).astype(dtype)
        for transform in (A.GridDistortion(p=1), A.HorizontalFlip(p=1)):
            moved = im.Albumentations(transform).get_transform(LARGE, rng()).apply_mask(mask)
            assert moved.dtype == dtype and 0.2 < moved.mean() < 0.8
