"""Proposals, detections and losses of two-stage detectors.

Ren et al. 2017, "Faster R-CNN", and He et al. 2017, "Mask R-CNN", with the numbers of torchvision.
Boxes are in pixels.
"""

from collections.abc import Sequence
from typing import Any, Final

import tensorflow as tf

from towerpack.ops.boxes import Detections, clip, decode, encode, suppress
from towerpack.ops.cross_entropy import cross_entropy

PROPOSAL_VARIANCES: Final = (1.0, 1.0, 1.0, 1.0)
"""Divisors of the offsets of proposals."""

BOX_VARIANCES: Final = (0.1, 0.1, 0.2, 0.2)
"""Divisors of the offsets of detections: Girshick's weights (10, 10, 5, 5)."""

_MAX_GROWTH: Final = 1000.0 / 16
_BETA: Final = 1.0 / 9


def propose(
    logits: Sequence[tf.Tensor],
    offsets: Sequence[tf.Tensor],
    anchors: Sequence[tf.Tensor],
    sizes: tf.Tensor,
    *,
    before: int,
    after: int,
    iou_threshold: float,
) -> tf.Tensor:
    """Return the best boxes of each image by descending score, float32 [n, after, 4].

    Faster R-CNN, section 3.1. Boxes are suppressed within each level. Missing boxes are zeros. No
    gradient flows through the boxes.

    Args:
        logits: Scores of the anchors of each level, [n, anchors].
        offsets: Encoded boxes, [n, anchors, 4].
        anchors: [anchors, 4], largest number of anchors first.
        sizes: Height and width of each image, int32 [n, 2].
        before: Maximum number of anchors of a level before suppression.
        after: Number of boxes after suppression.
        iou_threshold: Boxes that overlap a better box of their level more than this are removed.
    """
    levels = []
    for level_logits, level_offsets, level_anchors in zip(logits, offsets, anchors, strict=True):
        number = tf.minimum(before, tf.shape(level_logits)[1])
        scores, best = tf.math.top_k(level_logits, number)
        places = tf.gather(level_anchors, best)
        moved = tf.gather(level_offsets, best, batch_dims=1)
        boxes = decode(moved, places, PROPOSAL_VARIANCES, max_growth=_MAX_GROWTH)
        boxes = clip(boxes, sizes)
        # Suppression needs positive scores, and a sigmoid would make large scores equal.
        scores = tf.where(_narrow(boxes, 1e-3), 0.0, tf.nn.softplus(scores))
        missing: Any = tf.minimum(before, tf.shape(logits[0])[1]) - number
        boxes = tf.pad(boxes, [[0, 0], [0, missing], [0, 0]])
        levels.append((boxes, tf.pad(scores, [[0, 0], [0, missing]])))
    boxes, scores = (tf.stack(parts, axis=2) for parts in zip(*levels, strict=True))
    best = suppress(
        boxes,
        scores,
        max_detections=after,
        score_threshold=0.0,
        iou_threshold=iou_threshold,
        clip_boxes=False,
    )
    return tf.stop_gradient(best.boxes)


def detections(
    logits: tf.Tensor,
    offsets: tf.Tensor,
    boxes: tf.Tensor,
    sizes: tf.Tensor,
    *,
    max_detections: int,
    score_threshold: float,
    iou_threshold: float,
) -> Detections:
    """Return the best boxes of each image after suppression within each class.

    Missing boxes are zeros with the score 0 and the class -1.

    Args:
        logits: [n, k, 1 + classes], background first.
        offsets: Encoded box of each class, [n, k, 1 + classes, 4].
        boxes: Proposals [n, k, 4].
        sizes: Height and width of each image, int32 [n, 2].
        max_detections: Maximum number of boxes per image.
        score_threshold, iou_threshold: Same as for `suppress`.
    """
    scores = tf.nn.softmax(logits)[..., 1:]
    moved = decode(
        offsets[:, :, 1:], tf.expand_dims(boxes, 2), BOX_VARIANCES, max_growth=_MAX_GROWTH
    )
    moved = clip(moved, sizes)
    best = suppress(
        moved,
        tf.where(_narrow(moved, 1e-2), 0.0, scores),
        max_detections=max_detections,
        score_threshold=score_threshold,
        iou_threshold=iou_threshold,
        clip_boxes=False,
    )
    return best._replace(class_ids=tf.where(best.scores > 0, best.class_ids, -1))


def _narrow(boxes: tf.Tensor, least: float) -> tf.Tensor:
    return tf.reduce_any(boxes[..., 2:] - boxes[..., :2] < least, axis=-1)


def encoded_targets(
    boxes: tf.Tensor,
    true_boxes: tf.Tensor,
    which: tf.Tensor,
    positive: tf.Tensor,
    variances: tuple[float, ...],
) -> tf.Tensor:
    """Return the encoded box of the object of each anchor or proposal, [n, s, 4]; else zeros.

    Args:
        boxes: Anchors or proposals, [n, s, 4].
        true_boxes: Boxes of the objects, [n, m, 4].
        which: Index of an object for each box, int64 [n, s].
        positive: Whether each box has an object, bool [n, s].
        variances: Divisors of the offsets.
    """
    # An empty box has no logarithm of its size.
    positive, any_box = positive[..., None], tf.constant([0.0, 0.0, 1.0, 1.0])
    goals = tf.where(positive, tf.gather(true_boxes, which, batch_dims=1), any_box)
    return encode(goals, tf.where(positive, boxes, any_box), variances)


def proposal_losses(
    logits: tf.Tensor, offsets: tf.Tensor, targets: tf.Tensor, class_ids: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the losses of sampled anchors: binary cross-entropy and smooth L1, scalars.

    Faster R-CNN, equation 1. Both are divided by the number of sampled anchors.

    Args:
        logits: [n, s].
        offsets: [n, s, 4].
        targets: Encoded boxes of the objects, [n, s, 4].
        class_ids: int64 [n, s]: at least 0 for objects, -1 for background, -2 if not sampled.
    """
    positive, sampled = class_ids >= 0, class_ids >= -1
    losses = tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(positive, logits.dtype), logits)
    count = _count(sampled)
    box_loss = tf.reduce_sum(tf.where(positive[..., None], _smooth_l1(offsets - targets), 0.0))
    return tf.reduce_sum(tf.where(sampled, losses, 0.0)) / count, box_loss / count


def box_losses(
    logits: tf.Tensor, offsets: tf.Tensor, targets: tf.Tensor, class_ids: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the losses of sampled proposals: cross-entropy and smooth L1 of the true class.

    Girshick 2015, "Fast R-CNN", section 2.3. Both are divided by the number of sampled proposals.

    Args:
        logits: [n, s, 1 + classes], background first.
        offsets: [n, s, 1 + classes, 4].
        targets: Encoded boxes of the objects, [n, s, 4].
        class_ids: int64 [n, s], from 0; -1 for background, -2 if not sampled.
    """
    positive, sampled = class_ids >= 0, class_ids >= -1
    labels = tf.maximum(class_ids + 1, 0)
    losses, count = cross_entropy(labels, logits), _count(sampled)
    off = _of_class(offsets, labels) - targets
    box_loss = tf.reduce_sum(tf.where(positive[..., None], _smooth_l1(off), 0.0))
    return tf.reduce_sum(tf.where(sampled, losses, 0.0)) / count, box_loss / count


def mask_loss(logits: tf.Tensor, targets: tf.Tensor, class_ids: tf.Tensor) -> tf.Tensor:
    """Return the binary cross-entropy of the masks of the true classes, a scalar.

    Mask R-CNN, section 3. The loss is the mean over objects and pixels.

    Args:
        logits: [n, s, h, w, classes], without the background.
        targets: [n, s, h, w], in [0, 1].
        class_ids: int64 [n, s], from 0; negative for proposals without an object.
    """
    positive = class_ids >= 0
    chosen = mask_of_class(logits, class_ids)
    losses = tf.nn.sigmoid_cross_entropy_with_logits(targets, chosen)
    means = tf.reduce_mean(losses, axis=[2, 3])
    return tf.reduce_sum(tf.where(positive, means, 0.0)) / _count(positive)


def mask_of_class(masks: tf.Tensor, class_ids: tf.Tensor) -> tf.Tensor:
    """Return the mask of one class for each box, [n, s, h, w]; zeros for negative class numbers.

    Args:
        masks: [n, s, h, w, classes].
        class_ids: int [n, s].
    """
    one_hot = tf.one_hot(tf.cast(class_ids, tf.int64), masks.shape[-1], dtype=masks.dtype)
    return tf.reduce_sum(masks * one_hot[:, :, None, None], axis=-1)


def _of_class(offsets: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    one_hot = tf.one_hot(labels, offsets.shape[2], dtype=offsets.dtype)
    return tf.reduce_sum(offsets * one_hot[..., None], axis=2)


def _smooth_l1(x: tf.Tensor) -> tf.Tensor:
    size = tf.abs(x)
    return tf.where(size < _BETA, 0.5 * size**2 / _BETA, size - 0.5 * _BETA)


def _count(chosen: tf.Tensor) -> tf.Tensor:
    return tf.maximum(tf.reduce_sum(tf.cast(chosen, tf.float32)), 1.0)
