"""Object detectors SSD300 and SSD512 with a VGG-16 backbone (Liu et al. 2016)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack.nn import Conv2D, DepthwiseConv2D, argscope, scope
from towerpack.ops.anchors import AnchorLevel
from towerpack.zoo import vgg16_reduced

_FOUR, _SIX = (2.0,), (2.0, 3.0)
_STRIDES: Final = {300: (8, 16, 32, 64, 100, 300), 512: (8, 16, 32, 64, 128, 256, 512)}
_SIDES: Final = {
    300: (12, 45, 99, 153, 207, 261, 315),
    512: (20, 51, 133, 215, 296, 378, 460, 542),
}
_RATIOS: Final = {
    300: (_FOUR, _SIX, _SIX, _SIX, _FOUR, _FOUR),
    512: (_FOUR, _SIX, _SIX, _SIX, _SIX, _FOUR, _FOUR),
}
# Filters of a 1x1 and a 3x3 convolution, and its strides: 2 with a border of 1, or 1 without.
_EXTRA: Final = {
    300: ((256, 512, 2), (128, 256, 2), (128, 256, 1), (128, 256, 1)),
    512: ((256, 512, 2), (128, 256, 2), (128, 256, 2), (128, 256, 2)),
}


class Predictions(NamedTuple):
    """Output of a detector for each anchor.

    Attributes:
        logits: float32 [n, anchors, 1 + classes]. The background is class 0.
        offsets: float32 [n, anchors, 4], for `ops.boxes.decode`.
        anchors: NumPy [anchors, 4], as fractions of the image size.
    """

    logits: tf.Tensor
    offsets: tf.Tensor
    anchors: np.ndarray


def levels(size: int) -> list[AnchorLevel]:
    """Return the anchors of SSD300 or SSD512 for the COCO data set.

    Args:
        size: 300 or 512.
    """
    sides = _SIDES[size]
    rows = zip(_STRIDES[size], sides[:-1], sides[1:], _RATIOS[size], strict=True)
    return [AnchorLevel(*row) for row in rows]


def net(image: tf.Tensor, num_classes: int, *, size: int = 300) -> Predictions:
    """Detect objects with 3x3 convolutions on six or seven feature maps of different strides.

    Args:
        image: RGB images [n, size, size, 3], minus the mean color of ImageNet.
        num_classes: Number of classes without the background.
        size: 300 (8,732 anchors) or 512 (24,564 anchors).

    Raises:
        ConfigError: The image has another size.
    """
    if tuple(image.shape[1:3]) != (size, size):
        raise ConfigError(
            f"Images for ssd{size} must have {size} x {size} pixels.",
            got=f"{image.shape[1]} x {image.shape[2]}",
            fix=f"set data.size to [{size},{size}], or use ssd_lite, which supports any size",
        )
    conv4_3, x = vgg16_reduced.backbone(image)
    scale = keras.initializers.Constant(20.0)  # for normalized features (Liu et al. 2015, ParseNet)
    normal = tf.math.l2_normalize(conv4_3, axis=-1)
    normal = DepthwiseConv2D("conv4_3_norm", normal, 1, use_bias=False, depthwise_initializer=scale)
    maps = [normal, x]
    with argscope(Conv2D, activation="relu"):
        for number, (narrow, wide, strides) in enumerate(_EXTRA[size], 8):
            x = Conv2D(f"conv{number}_1", x, narrow, 1)
            # 'same' would pad differently on maps of an even size.
            x = tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]]) if strides == 2 else x
            x = Conv2D(f"conv{number}_2", x, wide, 3, strides=strides, padding="valid")
            maps.append(x)
        if size == 512:
            x = tf.pad(Conv2D("conv12_1", x, 128, 1), [[0, 0], [1, 1], [1, 1], [0, 0]])
            maps.append(Conv2D("conv12_2", x, 256, 4, padding="valid"))
    head = partial(Conv2D, kernel_initializer="glorot_uniform")
    return predictions(image, maps, levels(size), num_classes, head)


def predictions(
    image: tf.Tensor,
    maps: Sequence[tf.Tensor],
    anchors: Sequence[AnchorLevel],
    num_classes: int,
    head: Callable[..., tf.Tensor],
) -> Predictions:
    """Predict classes and box offsets with two 3x3 convolutions on each feature map.

    Args:
        image: Images [n, h, w, c] of known size.
        maps: Feature maps [n, h, w, channels].
        anchors: Anchors of each map.
        num_classes: Number of classes without the background.
        head: Convolution called with a name, a map, the number of filters and the kernel size.
    """
    outputs: list[tuple[Any, Any, np.ndarray]] = []
    size: Any = tuple(image.shape[1:3])
    for number, (x, level) in enumerate(zip(maps, anchors, strict=True)):
        shape: Any = x.shape[1:3]
        boxes = level.boxes(shape[0], shape[1], size)
        with scope(f"ssd{number}"):
            logits, offsets = (
                tf.reshape(head(name, x, level.per_cell * n, 3), [-1, len(boxes), n])
                for name, n in (("classes", 1 + num_classes), ("offsets", 4))
            )
        outputs.append((logits, offsets, boxes))
    logits, offsets, boxes = zip(*outputs, strict=True)
    return Predictions(
        tf.cast(tf.concat(logits, 1), tf.float32),
        tf.cast(tf.concat(offsets, 1), tf.float32),
        np.concatenate(boxes),
    )


ssd300, ssd512 = (partial(net, size=size) for size in (300, 512))
