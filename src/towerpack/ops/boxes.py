"""Boxes (x1, y1, x2, y2) as shares 0..1 of a picture: overlap, coding by anchors, suppression.

All functions take any number of leading dimensions. A box of no area overlaps nothing.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import tensorflow as tf

VARIANCES: Final = (0.1, 0.1, 0.2, 0.2)
"""Divisors of the offsets of center and size (Liu et al. 2016, the authors' program)."""


class Detections(NamedTuple):
    """Boxes of each picture by falling score; after the last one all is 0.

    Attributes:
        boxes: float32 [n, k, 4].
        scores: float32 [n, k].
        class_ids: int32 [n, k], from 0.
    """

    boxes: tf.Tensor
    scores: tf.Tensor
    class_ids: tf.Tensor


def area(boxes: tf.Tensor) -> tf.Tensor:
    """Return areas [...] of boxes [..., 4]; 0 for boxes that end before they begin."""
    x1, y1, x2, y2 = tf.unstack(boxes, axis=-1)
    return tf.maximum(x2 - x1, 0) * tf.maximum(y2 - y1, 0)


def overlap(a: tf.Tensor, b: tf.Tensor, *, of_first: bool = False) -> tf.Tensor:
    """Return the intersection over union of boxes [..., n, 4] and [..., m, 4]: [..., n, m].

    With `of_first`, divide by the area of the first instead, as COCO does for crowds.
    """
    ax1, ay1, ax2, ay2 = tf.unstack(tf.expand_dims(a, -2), axis=-1)
    bx1, by1, bx2, by2 = tf.unstack(tf.expand_dims(b, -3), axis=-1)
    w = tf.maximum(tf.minimum(ax2, bx2) - tf.maximum(ax1, bx1), 0)
    h = tf.maximum(tf.minimum(ay2, by2) - tf.maximum(ay1, by1), 0)
    both, first = w * h, tf.expand_dims(area(a), -1)
    return tf.math.divide_no_nan(
        both, first if of_first else first + tf.expand_dims(area(b), -2) - both
    )


def encode(
    boxes: tf.Tensor, anchors: tf.Tensor, variances: tuple[float, ...] = VARIANCES
) -> tf.Tensor:
    """Return offsets [..., 4] of boxes from anchors, for `decode`: of the center, and logarithms.

    Girshick et al. 2014, appendix C. Boxes [..., 4] must have an area; anchors broadcast.
    """
    center, size = _center_and_size(boxes)
    anchor_center, anchor_size = _center_and_size(anchors)
    shift, growth = (center - anchor_center) / anchor_size, tf.math.log(size / anchor_size)
    return tf.concat([shift, growth], axis=-1) / variances


def decode(
    offsets: tf.Tensor, anchors: tf.Tensor, variances: tuple[float, ...] = VARIANCES
) -> tf.Tensor:
    """Return boxes [..., 4] of offsets from anchors; the inverse of `encode`."""
    shift, growth = tf.split(offsets * variances, 2, axis=-1)
    anchor_center, anchor_size = _center_and_size(anchors)
    center = anchor_center + shift * anchor_size
    half = tf.exp(growth) * anchor_size / 2
    return tf.concat([center - half, center + half], axis=-1)


def suppress(
    boxes: tf.Tensor,
    scores: tf.Tensor,
    *,
    max_detections: int = 200,
    score_threshold: float = 0.01,
    iou_threshold: float = 0.45,
) -> Detections:
    """Return the best boxes of each picture, after non-maximum suppression within each class.

    Args:
        boxes: [n, anchors, 4]; they are clipped to the picture.
        scores: [n, anchors, classes], without the background.
        max_detections: Boxes of a class, and of all classes of a picture.
        score_threshold: Boxes of lower scores are left out.
        iou_threshold: Boxes that overlap a better one of their class more are left out.
    """
    found = tf.image.combined_non_max_suppression(
        boxes[:, :, None],
        scores,
        max_output_size_per_class=max_detections,
        max_total_size=max_detections,
        iou_threshold=iou_threshold,
        score_threshold=score_threshold,
    )
    return Detections(found.nmsed_boxes, found.nmsed_scores, tf.cast(found.nmsed_classes, tf.int32))


def _center_and_size(boxes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    low, high = tf.split(boxes, 2, axis=-1)
    return (low + high) / 2, high - low
