"""RoIAlign (He et al. 2017, "Mask R-CNN", section 3): features and masks inside of boxes."""

from collections.abc import Sequence
from typing import Any, Final

import tensorflow as tf

from towerpack.ops.boxes import area

_CANONICAL: Final = 224.0
_SAMPLES: Final = 2


def roi_align(
    maps: Sequence[tf.Tensor], boxes: tf.Tensor, size: int, *, stride: int = 4
) -> tf.Tensor:
    """Return the features in each box, float32 [n, k, size, size, channels].

    A cell of the result is the mean of 2 x 2 bilinear samples. Boxes of 224 pixels take their
    features from the map of stride 16, boxes half as large from stride 8, and so on (Lin et al.
    2017, "Feature Pyramid Networks", equation 1). As in torchvision's detectors, the center of a
    map's first cell has the coordinate 0, and boxes have at least the size of a cell. Samples
    beyond the image are 0. No gradient flows into the boxes.

    Args:
        maps: Feature maps [n, h, w, channels]. Each map has twice the stride of the one before.
        boxes: In pixels, inside of the image, float32 [n, k, 4].
        size: Height and width of the result.
        stride: Stride of the first map.
    """
    # One image with all maps below each other takes one call of TensorFlow for all levels.
    sizes: list[Any] = [tf.shape(x)[1:3] + 2 for x in maps]
    canvas = tf.concat([_bordered(x, sizes[0][1]) for x in maps], axis=1)
    tops = tf.cast(tf.cumsum([size[0] for size in sizes], exclusive=True), tf.float32)
    boxes = tf.stop_gradient(boxes)
    level = 4 + tf.experimental.numpy.log2(tf.sqrt(area(boxes)) / _CANONICAL) + 1e-6
    first = stride.bit_length() - 1
    level = tf.clip_by_value(tf.floor(level), first, first + len(maps) - 1) - first
    cell = stride * tf.pow(2.0, tf.expand_dims(level, -1))
    low, high = tf.split(boxes / cell, 2, axis=-1)
    side, which = tf.maximum(high - low, 1.0), tf.cast(level, tf.int64)
    ends = tf.cast(tf.gather(tf.stack(sizes)[:, ::-1] - 2, which), tf.float32)
    inside = tf.expand_dims(_inside(low, side, ends, size), -1)
    x, y = tf.unstack(inside, axis=3)
    low += tf.stack([tf.zeros_like(level), tf.gather(tops, which)], axis=-1)
    cells = _cells(canvas, _images(boxes), low, side, size)
    return cells * (tf.expand_dims(y, 3) * tf.expand_dims(x, 2))


def mask_targets(
    masks: tf.Tensor, true_boxes: tf.Tensor, which: tf.Tensor, boxes: tf.Tensor, size: int
) -> tf.Tensor:
    """Return the part of an object's mask in each box, float32 [n, k, size, size] in [0, 1].

    Args:
        masks: Masks of objects, 0 or 255, uint8 [n, m, s, s]. They fill the objects' boxes.
        true_boxes: Boxes of the objects, float32 [n, m, 4].
        which: Index of an object for each box, int64 [n, k].
        boxes: float32 [n, k, 4].
        size: Height and width of the result.
    """
    shape: Any = tf.shape(masks)
    pixels = tf.pad(
        tf.reshape(masks, [-1, shape[2], shape[3], 1]), [[0, 0], [1, 1], [1, 1], [0, 0]]
    )
    start, end = tf.split(tf.gather(true_boxes, which, batch_dims=1), 2, axis=-1)
    low, high = tf.split(boxes, 2, axis=-1)
    scale = tf.cast(shape[2:], tf.float32)[::-1] / tf.maximum(end - start, 1e-3)
    images = _images(boxes) * shape[1] + tf.cast(which, tf.int32)
    # Pixel centers are at halves, and the border of zeros adds 1.
    return (
        _cells(pixels, images, (low - start) * scale + 0.5, (high - low) * scale, size)[..., 0]
        / 255
    )


def _inside(low: tf.Tensor, side: tf.Tensor, ends: tf.Tensor, size: int) -> tf.Tensor:
    """Return the fraction of samples in each row and column that lie in the image, [n, k, size, 2].

    Within a cell at the edge, all samples have the same value, so that this fraction is exact.
    """
    places = (tf.range(_SAMPLES * size, dtype=tf.float32) + 0.5) / (_SAMPLES * size)
    samples = low[:, :, None] + places[:, None] * side[:, :, None]
    inside = tf.cast(samples <= ends[:, :, None], tf.float32)
    shape = tf.concat([tf.shape(low)[:2], [size, _SAMPLES, 2]], 0)
    return tf.reduce_mean(tf.reshape(inside, shape), axis=3)


def _bordered(x: tf.Tensor, width: tf.Tensor) -> tf.Tensor:
    """Repeat the last row and column twice, and pad with zeros to a width."""
    x = tf.concat([x, x[:, -1:], x[:, -1:]], axis=1)
    x = tf.concat([x, x[:, :, -1:], x[:, :, -1:]], axis=2)
    missing: Any = width - tf.shape(x)[2]
    return tf.pad(x, [[0, 0], [0, 0], [0, missing], [0, 0]])


def _images(boxes: tf.Tensor) -> tf.Tensor:
    """Return the image of each box, int32 [n, k]."""
    shape = tf.shape(boxes)[:2]
    return tf.broadcast_to(tf.range(shape[0])[:, None], shape)


def _cells(images: tf.Tensor, which: tf.Tensor, low: tf.Tensor, side: tf.Tensor, size: int) -> Any:
    """Return the means of the samples in size x size cells of boxes (x, y) in image coordinates."""
    step = side / (_SAMPLES * size)
    first, last = low + step / 2, low + side - step / 2
    ends = tf.cast(tf.shape(images)[1:3] - 1, tf.float32)
    corners = tf.concat([tf.reverse(xy, [-1]) / ends for xy in (first, last)], axis=-1)
    wide = [_SAMPLES * size] * 2
    samples = tf.image.crop_and_resize(
        images, tf.reshape(corners, [-1, 4]), tf.reshape(which, [-1]), wide
    )
    cells = tf.nn.avg_pool2d(samples, _SAMPLES, _SAMPLES, "VALID")
    rows, columns = tf.unstack(tf.shape(which))
    return tf.reshape(cells, [rows, columns, size, size, images.shape[-1]])
