"""Boxes, anchors, matching and suppression, against pycocotools and slow versions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from pycocotools import mask as coco

from towerpack.ops import anchors, boxes, matching


def some_boxes(*shape: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    low, size = rng.uniform(-0.1, 0.9, (*shape, 2)), rng.uniform(0.02, 0.5, (*shape, 2))
    return np.concatenate([low, low + size], -1).astype(np.float32)


def of_coco(a: np.ndarray, b: np.ndarray, crowd: bool) -> Any:
    """The overlap by pycocotools: x, y, width, height."""
    flat = [np.concatenate([x[:, :2], x[:, 2:] - x[:, :2]], 1).astype(np.float64) for x in (a, b)]
    return coco.iou(*flat, [crowd] * len(b))


@pytest.mark.parametrize("crowd", [False, True])
def test_overlap_is_that_of_coco(crowd: bool) -> None:
    a, b = some_boxes(40), some_boxes(30, seed=1)
    found = boxes.overlap(a, b, of_first=crowd).numpy()
    np.testing.assert_allclose(found, of_coco(a, b, crowd), atol=1e-5)
    empty = tf.constant([[0.5, 0.5, 0.5, 0.5], [0.4, 0.4, 0.2, 0.2]])
    assert not boxes.overlap(empty, a).numpy().any()


def test_what_was_encoded_is_decoded() -> None:
    found, around = some_boxes(2, 50), some_boxes(50, seed=1)
    offsets = boxes.encode(found, around)
    np.testing.assert_allclose(boxes.decode(offsets, around), found, atol=1e-6)
    # A box as wide as its anchor, twice as high, half a width to the right.
    anchor = tf.constant([0.2, 0.2, 0.4, 0.4])
    moved = boxes.encode(tf.constant([0.3, 0.1, 0.5, 0.5]), anchor)
    np.testing.assert_allclose(moved, [0.5 / 0.1, 0, 0, np.log(2) / 0.2], atol=1e-5)


def slowly_matched(around: np.ndarray, found: np.ndarray) -> np.ndarray:
    """The number of the box of each anchor of one picture, or -1."""
    overlap = of_coco(around, found, False)
    which = np.where(overlap.max(1) > 0.5, overlap.argmax(1), -1)
    for number in range(len(found)):
        which[overlap[:, number].argmax()] = number
    return which


@pytest.mark.parametrize("compiled", [False, True])
def test_matching_by_pictures(compiled: bool) -> None:
    """Padding matches nothing; each box has an anchor; a crowd's anchors are ignored."""
    around = some_boxes(400)
    found, ids = some_boxes(3, 6, seed=1), np.array([[4] * 6, [2, 0, 5, -1, -1, -1], [-1] * 6])
    ids[0] = np.arange(6)
    crowd = np.zeros((3, 6), np.bool_)
    call = tf.function(matching.match, autograph=False, jit_compile=compiled)
    matches = call(around, found, ids.astype(np.int32), crowd)
    for picture, count in enumerate((6, 3, 0)):
        which = slowly_matched(around, found[picture, :count]) if count else np.full(400, -1)
        expected = np.where(which < 0, -1, ids[picture][which])
        np.testing.assert_array_equal(matches.class_ids[picture], expected)
        there = which >= 0
        np.testing.assert_array_equal(
            matches.boxes[picture].numpy()[there], found[picture][which[there]]
        )
        assert set(ids[picture][:count]) <= set(matches.class_ids[picture].numpy())
    assert not matches.ignored.numpy().any()
    crowd[1, 1] = True
    matches = call(around, found, ids.astype(np.int32), crowd)
    within = of_coco(around, found[1, 1:2], True)[:, 0] > 0.5
    assert within.any()
    assert 0 not in matches.class_ids[1].numpy()
    background = matches.class_ids[1].numpy() < 0
    np.testing.assert_array_equal(matches.ignored[1], within & background)


def test_hard_negatives_are_counted_in_each_picture() -> None:
    losses = np.random.default_rng(0).uniform(size=(3, 50)).astype(np.float32)
    losses[2] = 1  # all alike: still so many and no more
    positive, ignored = np.zeros((2, 3, 50), np.bool_)
    positive[0, :4] = positive[2, 7:9] = True
    ignored[0, 10:20] = True
    chosen = matching.hard_negatives(losses, positive, ignored).numpy()
    assert chosen.sum(1).tolist() == [12, 3, 6]
    assert not (chosen & (positive | ignored)).any()
    allowed = ~(positive | ignored)[0]
    assert losses[0][chosen[0]].min() >= np.sort(losses[0][allowed])[-12]


def slowly_suppressed(found: np.ndarray, scores: np.ndarray) -> list[tuple[float, int]]:
    """(score, class) of what is left of one picture."""
    kept: list[tuple[float, int]] = []
    for k in range(scores.shape[1]):
        left: list[np.ndarray] = []
        for i in np.argsort(-scores[:, k], kind="stable"):
            alone = all(of_coco(found[i : i + 1], one[None], False)[0, 0] <= 0.45 for one in left)
            if scores[i, k] > 0.1 and alone:
                left.append(found[i])
                kept.append((float(scores[i, k]), k))
    return sorted(kept, reverse=True)


def test_suppression_in_each_class() -> None:
    found = np.clip(some_boxes(2, 60), 0, 1)
    scores = np.random.default_rng(1).uniform(size=(2, 60, 3)).astype(np.float32) ** 3
    given = boxes.suppress(found, scores, max_detections=100, score_threshold=0.1)
    for picture in range(2):
        expected = slowly_suppressed(found[picture], scores[picture])
        n = len(expected)
        assert 10 < n < 100
        assert not given.scores[picture, n:].numpy().any()
        pairs = np.stack([given.scores[picture], given.class_ids[picture]], 1)[:n]
        np.testing.assert_allclose(pairs, expected, rtol=1e-6)


def test_anchors_of_a_map() -> None:
    """Rows first; squares, then each ratio and its inverse, of one area."""
    level = anchors.AnchorLevel(stride=16, least=30, greatest=60, ratios=(2,))
    found = level.boxes(2, 3, (32, 48)).reshape(2, 3, 4, 4) * [48, 32, 48, 32]
    np.testing.assert_allclose((found[..., :2] + found[..., 2:])[1, 2] / 2, [[40, 24]] * 4)
    sides = (found[..., 2:] - found[..., :2])[1, 2]
    root = np.sqrt(2)
    expected = [[30, 30], [30 * root] * 2, [30 * root, 30 / root], [30 / root, 30 * root]]
    np.testing.assert_allclose(sides, expected, rtol=1e-4)
