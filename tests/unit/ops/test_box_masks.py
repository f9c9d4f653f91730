"""Masks inside boxes: what is cut out and pasted back is what was there."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from towerpack.ops.box_masks import crop_masks, paste_mask


def ellipse(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    mask = np.zeros((100, 140), np.uint8)
    center, axes = rng.integers([20, 20], [120, 80]), rng.integers(4, [50, 40])
    cv2.ellipse(mask, center.tolist(), axes.tolist(), rng.uniform(0, 180), 0, 360, 1, -1)
    x, y, w, h = cv2.boundingRect(mask)
    return mask, np.array([x, y, x + w, y + h], np.float64)


@pytest.mark.parametrize("seed", range(5))
def test_a_mask_pasted_back_is_the_mask(seed: int) -> None:
    mask, box = ellipse(np.random.default_rng(seed))
    [inside] = crop_masks([mask], box[None], 112)
    assert set(np.unique(inside)) <= {0, 255}
    np.testing.assert_array_equal(paste_mask(inside, box, (100, 140)), mask > 0)
    # In a picture of twice the size, every pixel is within one of the scaled mask.
    pasted = paste_mask(inside, 2 * box, (200, 280)).astype(np.uint8)
    large = cv2.resize(mask, (280, 200), interpolation=cv2.INTER_NEAREST)
    kernel = np.ones((3, 3), np.uint8)
    assert (pasted <= cv2.dilate(large, kernel)).all()
    assert (pasted >= cv2.erode(large, kernel)).all()


def test_boxes_may_reach_outside_and_be_tiny_or_empty() -> None:
    full = np.ones((28, 28), np.float32)
    for box in (
        [-5, -5, 3.4, 2.6],
        [7.6, 8, 30, 30],
        [2, 2, 2.9, 2.9],
        [4, 4, 4, 9],
        [20, 20, 30, 30],
    ):
        pasted = paste_mask(full, box, (10, 10))
        ys, xs = np.mgrid[:10, :10] + 0.5
        inside = (box[0] <= xs) & (xs <= box[2]) & (box[1] <= ys) & (ys <= box[3])
        np.testing.assert_array_equal(pasted, inside & (box[0] < box[2]))
    empty = np.zeros((10, 10), np.uint8)
    assert crop_masks([empty], np.array([[1.0, 1, 2, 2]]), 4).min() == 255
