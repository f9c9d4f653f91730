"""Matching of boxes to anchors, and loss of a detector (Liu et al. 2016, "SSD", 2.2 and 2.3).

`assign` and `sample` are those of two-stage detectors (Ren et al. 2017, "Faster R-CNN", 3.1.2).
"""

from typing import Any, NamedTuple

import tensorflow as tf

from towerpack.ops.boxes import area, encode, overlap
from towerpack.ops.cross_entropy import cross_entropy


class Matches(NamedTuple):
    """Class and box of each anchor.

    Attributes:
        class_ids: int64 [n, anchors], from 0; -1 for background.
        boxes: float32 [n, anchors, 4]; zeros for background.
        ignored: bool [n, anchors]: background that does not count in the loss.
    """

    class_ids: tf.Tensor
    boxes: tf.Tensor
    ignored: tf.Tensor


def match(
    anchors: tf.Tensor,
    boxes: tf.Tensor,
    class_ids: tf.Tensor,
    crowd: tf.Tensor | None = None,
    *,
    threshold: float = 0.5,
) -> Matches:
    """Match each anchor with the box of largest overlap, if the overlap exceeds a threshold.

    Each box is also matched with its best anchor at any overlap. If an anchor is the best anchor of
    several boxes, the last box counts.

    Args:
        anchors: float32 [anchors, 4].
        boxes: float32 [n, m, 4], for n images.
        class_ids: int [n, m], from 0; -1 if there is no box.
        crowd: bool [n, m]: boxes around several objects. They match no anchors. Anchors with more
            than half of their area in such a box are ignored.
        threshold: Minimum intersection over union.
    """
    exists = class_ids >= 0
    single = exists if crowd is None else exists & tf.logical_not(crowd)
    # Anchors are the last dimension, because it is long and the number of boxes is small.
    overlaps = overlap(tf.where(tf.expand_dims(single, -1), boxes, 0.0), anchors)
    # GPUs compute with int64, but leave much of int32 to the host, which would wait for them.
    none = tf.constant(-1, tf.int64)
    grid = tf.meshgrid(*map(tf.range, tf.unstack(tf.shape(single))), indexing="ij")
    pictures, number = (tf.cast(indices, tf.int64) for indices in grid)
    best = tf.stack([pictures, tf.argmax(overlaps, axis=2)], axis=2)
    forced = tf.fill(tf.stack([tf.shape(single)[0], tf.shape(anchors)[0]]), none)
    forced = tf.tensor_scatter_nd_max(forced, best, tf.where(single, number, none))
    which = tf.where(forced < 0, tf.argmax(overlaps, axis=1), forced)
    matched = (forced >= 0) | (tf.reduce_max(overlaps, axis=1) > threshold)
    ids = tf.gather(tf.cast(class_ids, tf.int64), which, batch_dims=1)
    ignored = tf.zeros_like(matched)
    if crowd is not None:
        crowds = tf.where(tf.expand_dims(exists & crowd, -1), boxes, 0.0)
        within = overlap(anchors, crowds, of_first=True)
        ignored = tf.logical_not(matched) & tf.reduce_any(within > 0.5, axis=2)
    return Matches(
        tf.where(matched, ids, none),
        tf.where(matched[..., None], tf.gather(boxes, which, batch_dims=1), 0.0),
        ignored,
    )


def assign(
    boxes: tf.Tensor,
    true_boxes: tf.Tensor,
    true_class_ids: tf.Tensor,
    crowd: tf.Tensor,
    *,
    low: float,
    high: float,
    best: bool = False,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Assign an object or the background to each anchor or proposal.

    Boxes between the thresholds do not count, nor do boxes without area, and background boxes with
    more than half of their area in a crowd.

    Args:
        boxes: float32 [k, 4] or [n, k, 4].
        true_boxes: float32 [n, m, 4], m at least 1.
        true_class_ids: int [n, m], from 0; -1 if there is no object.
        crowd: bool [n, m]: boxes around several objects. They are not assigned.
        low, high: Overlap below which boxes are background, and from which they have an object.
        best: Whether to also assign objects to the boxes that overlap them most, at any overlap.

    Returns:
        Classes, int64 [n, k] from 0, -1 for background, -2 for boxes that do not count; and
            indices of the objects that overlap the boxes most, int64 [n, k].
    """
    exists = true_class_ids >= 0
    single = tf.expand_dims(exists & tf.logical_not(crowd), -1)
    crowds = tf.where(tf.expand_dims(exists & crowd, -1), true_boxes, 0.0)
    overlaps = overlap(tf.where(single, true_boxes, 0.0), boxes)
    largest = tf.reduce_max(overlaps, axis=1)
    positive = largest >= high
    if best:
        top = tf.reduce_max(overlaps, axis=2, keepdims=True)
        positive |= tf.reduce_any((overlaps == top) & (top > 0), axis=1)
    ignored = (largest >= low) | tf.reduce_any(overlap(boxes, crowds, of_first=True) > 0.5, axis=2)
    none, no_count = (tf.constant(value, tf.int64) for value in (-1, -2))
    which = tf.argmax(overlaps, axis=1)
    ids = tf.gather(tf.cast(true_class_ids, tf.int64), which, batch_dims=1)
    ids = tf.where(positive, ids, tf.where(ignored, no_count, none))
    return tf.where(area(boxes) > 0, ids, no_count), which


def sample(
    class_ids: tf.Tensor, noise: tf.Tensor, *, size: int, positives: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Draw boxes of each image: a share of objects, and background for the remainder.

    Args:
        class_ids, noise: Result of `assign`, int64 [n, k], and uniform random numbers, float32.
        size, positives: Number of boxes per image, and the maximum fraction of objects.

    Returns:
        Indices of the boxes, int64 [n, min(size, k)], objects first, and whether each index counts.
    """
    number = tf.shape(noise)[1]
    objects = tf.where(class_ids >= 0, noise, -1.0)
    most = tf.minimum(int(size * positives), number)
    least = tf.math.top_k(objects, most).values[:, -1:]
    # Objects that are drawn come first, then background, then boxes that do not count.
    rank = tf.where(class_ids == -1, noise, -1.0)
    rank = tf.where((objects >= 0) & (objects >= least), 1 + noise, rank)
    values, indices = tf.math.top_k(rank, tf.minimum(size, number))
    return tf.cast(indices, tf.int64), values >= 0


def hard_negatives(
    losses: tf.Tensor, positive: tf.Tensor, ignored: tf.Tensor, *, ratio: float = 3.0
) -> tf.Tensor:
    """Return a mask of the background anchors with the largest losses, bool [n, anchors].

    Args:
        losses: float [n, anchors].
        positive: bool [n, anchors]. An image without positive anchors counts as having one.
        ignored: bool [n, anchors]: anchors that are never chosen.
        ratio: Number of chosen anchors per positive anchor of an image.
    """
    candidates = tf.logical_not(positive | ignored)
    ranked = tf.argsort(tf.where(candidates, losses, -1.0), direction="DESCENDING", stable=True)
    rank = tf.cast(tf.argsort(tf.cast(ranked, tf.float32)), tf.float32)
    positives = tf.reduce_sum(tf.cast(positive, tf.float32), axis=1, keepdims=True)
    return candidates & (rank < tf.round(ratio * tf.maximum(positives, 1.0)))


def multibox_loss(
    logits: tf.Tensor,
    offsets: tf.Tensor,
    anchors: tf.Tensor,
    matches: Matches,
    *,
    negatives: float = 3.0,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the classification loss (cross-entropy) and the box loss (smooth L1): scalars.

    Both are sums over the batch, divided by the number of matched anchors.

    Args:
        logits: [n, anchors, 1 + classes], background first.
        offsets: [n, anchors, 4].
        anchors: [anchors, 4].
        matches: Result of `match`.
        negatives: Number of background anchors that count, per matched anchor of an image.
    """
    positive = matches.class_ids >= 0
    losses = cross_entropy(matches.class_ids + 1, logits)
    negative = hard_negatives(losses, positive, matches.ignored, ratio=negatives)
    # For background, encode the anchor itself, because an empty box has no logarithm of its size.
    target = encode(tf.where(tf.expand_dims(positive, -1), matches.boxes, anchors), anchors)
    off = tf.abs(target - offsets)
    smooth = _sum_of_coordinates(tf.where(off < 1, 0.5 * off**2, off - 0.5))
    count = tf.maximum(tf.reduce_sum(tf.cast(positive, tf.float32)), 1)
    class_loss = tf.reduce_sum(tf.where(positive | negative, losses, 0.0)) / count
    return class_loss, tf.reduce_sum(tf.where(positive, smooth, 0.0)) / count


@tf.custom_gradient
def _sum_of_coordinates(x: tf.Tensor) -> Any:
    # For TensorFlow's gradient, the host would wait for a shape from the GPU.
    def gradient(dy: tf.Tensor) -> tf.Tensor:
        return tf.broadcast_to(tf.expand_dims(dy, -1), tf.shape(x))

    return tf.reduce_sum(x, axis=-1), gradient
