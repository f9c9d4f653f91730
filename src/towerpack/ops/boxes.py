"""Boxes (x1, y1, x2, y2): overlap, encoding, clipping, non-maximum suppression.

All functions take any number of leading dimensions. Boxes without area overlap with no box.
"""

import math
from typing import Final, NamedTuple

import tensorflow as tf

VARIANCES: Final = (0.1, 0.1, 0.2, 0.2)
"""Divisors of the encoded center and size, from the code of Liu et al. 2016."""


class Detections(NamedTuple):
    """Boxes of each image by descending score, padded with zeros.

    Attributes:
        boxes: float32 [n, k, 4].
        scores: float32 [n, k].
        class_ids: int32 [n, k], from 0.
    """

    boxes: tf.Tensor
    scores: tf.Tensor
    class_ids: tf.Tensor


def area(boxes: tf.Tensor) -> tf.Tensor:
    """Return the areas [...] of boxes. Boxes that end before they begin have the area 0.

    Args:
        boxes: [..., 4].
    """
    x1, y1, x2, y2 = tf.unstack(boxes, axis=-1)
    return tf.maximum(x2 - x1, 0) * tf.maximum(y2 - y1, 0)


def overlap(a: tf.Tensor, b: tf.Tensor, *, of_first: bool = False) -> tf.Tensor:
    """Return the intersection over union of each pair of boxes, [..., n, m].

    Args:
        a, b: Boxes, [..., n, 4] and [..., m, 4].
        of_first: Whether to divide by the area of the box in `a` instead, as COCO does for crowds.
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
    """Encode boxes relative to anchors, [..., 4]: offsets of the center, log ratios of the size.

    Girshick et al. 2014, appendix C.

    Args:
        boxes: Boxes with an area, [..., 4].
        anchors: Anchors, which broadcast to the boxes.
        variances: Divisors of the offsets.
    """
    center, size = _center_and_size(boxes)
    anchor_center, anchor_size = _center_and_size(anchors)
    shift, growth = (center - anchor_center) / anchor_size, tf.math.log(size / anchor_size)
    return tf.concat([shift, growth], axis=-1) / variances


def decode(
    offsets: tf.Tensor,
    anchors: tf.Tensor,
    variances: tuple[float, ...] = VARIANCES,
    *,
    max_growth: float | None = None,
) -> tf.Tensor:
    """Decode the result of `encode` to boxes, [..., 4].

    Args:
        offsets: Result of `encode`, [..., 4].
        anchors, variances: Same as for `encode`.
        max_growth: Maximum ratio of the box's size to the anchor's size; None for any ratio.
    """
    shift, growth = tf.split(offsets * variances, 2, axis=-1)
    if max_growth is not None:
        growth = tf.minimum(growth, math.log(max_growth))
    anchor_center, anchor_size = _center_and_size(anchors)
    center = anchor_center + shift * anchor_size
    half = tf.exp(growth) * anchor_size / 2
    return tf.concat([center - half, center + half], axis=-1)


def corner_scale(sizes: tf.Tensor) -> tf.Tensor:
    """Return the factors from fractions of images to pixels for boxes, float32 [n, 1, 4].

    Args:
        sizes: Height and width of each image, [n, 2].
    """
    return tf.cast(tf.gather(sizes, [1, 0, 1, 0], axis=1), tf.float32)[:, None]


def clip(boxes: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
    """Clip boxes in pixels to their images.

    Args:
        boxes: [n, ..., 4].
        sizes: Height and width of each image, [n, 2].
    """
    ends = tf.reshape(corner_scale(sizes), [-1, *[1] * (boxes.shape.rank - 2), 4])
    return tf.clip_by_value(boxes, 0.0, ends)


def suppress(
    boxes: tf.Tensor,
    scores: tf.Tensor,
    *,
    max_detections: int = 200,
    score_threshold: float = 0.01,
    iou_threshold: float = 0.45,
    clip_boxes: bool = True,
) -> Detections:
    """Return the best boxes of each image after non-maximum suppression within each class.

    Args:
        boxes: [n, anchors, 4], or [n, anchors, classes, 4] if each class has its own boxes.
        scores: [n, anchors, classes], without the background.
        max_detections: Maximum number of boxes per class, and per image.
        score_threshold: Minimum score.
        iou_threshold: Boxes that overlap a better box of their class more than this are removed.
        clip_boxes: Whether to clip the result to [0, 1].
    """
    kept_boxes = tf.image.combined_non_max_suppression(
        boxes[:, :, None] if len(boxes.shape) == 3 else boxes,
        scores,
        max_output_size_per_class=max_detections,
        max_total_size=max_detections,
        iou_threshold=iou_threshold,
        score_threshold=score_threshold,
        clip_boxes=clip_boxes,
    )
    boxes, scores, class_ids, _ = kept_boxes
    return Detections(boxes, scores, tf.cast(class_ids, tf.int32))


def _center_and_size(boxes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    low, high = tf.split(boxes, 2, axis=-1)
    return (low + high) / 2, high - low
