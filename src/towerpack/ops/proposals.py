"""Proposals, detections and losses of two-stage detectors.

Ren et al. 2017, "Faster R-CNN", and He et al. 2017, "Mask R-CNN", with the numbers of torchvision.
Boxes are in pixels.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
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
        logits, offsets, anchors: Scores [n, anchors], encoded boxes [n, anchors, 4] and anchors
            [anchors, 4] of each level, largest level first.
        sizes: Height and width of each image, int32 [n, 2].
        before, after: Maximum number of boxes of a level before suppression, and number of boxes
            of an image after suppression.
        iou_threshold: Same as for `suppress`.
    """
    levels = []
    for level_logits, level_offsets, level_anchors in zip(logits, offsets, anchors, strict=True):
        number = tf.minimum(before, tf.shape(level_logits)[1])
        scores, best = tf.math.top_k(level_logits, number)
        places = tf.gather(level_anchors, best)
        moved = tf.gather(level_offsets, best, batch_dims=1)
        boxes = clip(decode(moved, places, PROPOSAL_VARIANCES, max_growth=_MAX_GROWTH), sizes)
        # Suppression needs positive scores, and a sigmoid would make large scores equal.
        scores = tf.where(_narrow(boxes, 1e-3), 0.0, tf.nn.softplus(scores))
        missing: Any = tf.minimum(before, tf.shape(logits[0])[1]) - number
        boxes = tf.pad(boxes, [[0, 0], [0, missing], [0, 0]])
        levels.append((boxes, tf.pad(scores, [[0, 0], [0, missing]])))
    boxes, scores = (tf.stack(parts, axis=2) for parts in zip(*levels, strict=True))
    limits: Any = {"score_threshold": 0.0, "iou_threshold": iou_threshold, "clip_boxes": False}
    return tf.stop_gradient(suppress(boxes, scores, max_detections=after, **limits).boxes)


def detections(
    logits: tf.Tensor,
    offsets: tf.Tensor,
    boxes: tf.Tensor,
    sizes: tf.Tensor,
    **limits: Any,
) -> Detections:
    """Return the best boxes of each image after suppression within each class.

    Missing boxes are zeros with the score 0 and the class -1.

    Args:
        logits, offsets: [n, k, 1 + classes] and [n, k, 1 + classes, 4], background first.
        boxes: Proposals [n, k, 4].
        sizes: Height and width of each image, int32 [n, 2].
        **limits: Numbers for `suppress`.
    """
    scores = tf.nn.softmax(logits)[:, :, 1:]
    places = tf.expand_dims(boxes, 2)
    moved = decode(offsets[:, :, 1:], places, BOX_VARIANCES, max_growth=_MAX_GROWTH)
    moved = clip(moved, sizes)
    scores = tf.where(_narrow(moved, 1e-2), 0.0, scores)
    best = suppress(moved, scores, clip_boxes=False, **limits)
    return best._replace(class_ids=tf.where(best.scores > 0, best.class_ids, -1))


def _narrow(boxes: tf.Tensor, least: float) -> tf.Tensor:
    low, high = tf.split(boxes, 2, axis=-1)
    return tf.reduce_any(high - low < least, axis=-1)


def encoded_targets(
    boxes: tf.Tensor,
    true_boxes: tf.Tensor,
    which: tf.Tensor,
    positive: tf.Tensor,
    variances: tuple[float, ...],
) -> tf.Tensor:
    """Return the encoded box of the object of each anchor or proposal, [n, s, 4]; else zeros.

    Args:
        boxes, true_boxes: Anchors or proposals [n, s, 4], and objects [n, m, 4].
        which, positive: Index of an object for each box, int64 [n, s], and whether it has one.
        variances: Divisors of the offsets.
    """
    # An empty box has no logarithm of its size.
    positive, any_box = tf.expand_dims(positive, -1), tf.constant([0.0, 0.0, 1.0, 1.0])
    goals = tf.where(positive, tf.gather(true_boxes, which, batch_dims=1), any_box)
    return encode(goals, tf.where(positive, boxes, any_box), variances)


def proposal_losses(
    logits: tf.Tensor, offsets: tf.Tensor, targets: tf.Tensor, class_ids: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the losses of sampled anchors: binary cross-entropy and smooth L1, scalars.

    Faster R-CNN, equation 1. Both are divided by the number of sampled anchors.

    Args:
        logits, offsets, targets: [n, s], [n, s, 4], and encoded boxes of the objects [n, s, 4].
        class_ids: int64 [n, s]: at least 0 for objects, -1 for background, -2 if not sampled.
    """
    positive, sampled = class_ids >= 0, class_ids >= -1
    losses = tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(positive, logits.dtype), logits)
    count = _count(sampled)
    box_loss = _smooth_l1(offsets - targets, positive)
    return tf.reduce_sum(tf.where(sampled, losses, 0.0)) / count, box_loss / count


def box_losses(
    logits: tf.Tensor, offsets: tf.Tensor, targets: tf.Tensor, class_ids: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the losses of sampled proposals: cross-entropy and smooth L1 of the true class.

    Girshick 2015, "Fast R-CNN", section 2.3. Both are divided by the number of sampled proposals.

    Args:
        logits, offsets: [n, s, 1 + classes] and [n, s, 1 + classes, 4], background first.
        targets: Encoded boxes of the objects, [n, s, 4].
        class_ids: int64 [n, s], from 0; -1 for background, -2 if not sampled.
    """
    positive, sampled = class_ids >= 0, class_ids >= -1
    labels = tf.maximum(class_ids + 1, 0)
    losses, count = cross_entropy(labels, logits), _count(sampled)
    one_hot = tf.one_hot(labels, offsets.shape[2], dtype=offsets.dtype)
    box_loss = _smooth_l1(tf.einsum("nscd,nsc->nsd", offsets, one_hot) - targets, positive)
    return tf.reduce_sum(tf.where(sampled, losses, 0.0)) / count, box_loss / count


def mask_loss(logits: tf.Tensor, targets: tf.Tensor, class_ids: tf.Tensor) -> tf.Tensor:
    """Return the binary cross-entropy of the masks of the true classes, a scalar.

    Mask R-CNN, section 3. The loss is the mean over objects and pixels.

    Args:
        logits, targets: [n, s, h, w, classes] without the background, and [n, s, h, w].
        class_ids: int64 [n, s], from 0; negative for proposals without an object.
    """
    positive = class_ids >= 0
    chosen = mask_of_class(logits, class_ids)
    losses = tf.nn.sigmoid_cross_entropy_with_logits(targets, chosen)
    counted = tf.where(positive[:, :, None, None], losses, 0.0)
    pixels: Any = targets.shape[2:]
    return tf.reduce_sum(counted) / (_count(positive) * float(np.prod(pixels)))


def mask_of_class(masks: tf.Tensor, class_ids: tf.Tensor) -> tf.Tensor:
    """Return the mask of one class for each box, [n, s, h, w]; zeros for negative class numbers.

    Args:
        masks, class_ids: [n, s, h, w, classes], and int [n, s].
    """
    one_hot = tf.one_hot(tf.cast(class_ids, tf.int64), masks.shape[-1], dtype=masks.dtype)
    return tf.einsum("nshwc,nsc->nshw", masks, one_hot)


def _smooth_l1(x: tf.Tensor, positive: tf.Tensor) -> Any:
    size = tf.abs(x)
    losses = tf.where(size < _BETA, 0.5 * size**2 / _BETA, size - 0.5 * _BETA)
    return tf.reduce_sum(tf.where(tf.expand_dims(positive, -1), losses, 0.0))


def _count(chosen: tf.Tensor) -> tf.Tensor:
    return tf.maximum(tf.reduce_sum(tf.cast(chosen, tf.float32)), 1.0)
