"""Fast single-shot object detector with an EfficientNet-Lite0 backbone.

Combines the anchors and loss of SSD (Liu et al. 2016) with a feature pyramid (Lin et al. 2017) and
separable convolutions (Sandler et al. 2018, section 6.2). Variables of the backbone have the names
of the packaged weights: `transfer.pretrained: efficientnet-lite0`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack.nn import Conv2D, SeparableConv2D, argscope, scope
from towerpack.ops.anchors import AnchorLevel
from towerpack.zoo.efficientnet_lite import backbone, bn_relu6
from towerpack.zoo.ssd import Predictions, predictions


def net(
    image: tf.Tensor,
    num_classes: int,
    *,
    channels: int = 96,
    anchor_scale: float = 3.0,
    ratios: tuple[float, ...] = (2.0, 3.0),
) -> Predictions:
    """Detect objects with separable convolutions on a feature pyramid of strides 8, 16, 32 and 64.

    Args:
        image: RGB images [n, h, w, 3] of known size, (pixels - 127) / 128.
        num_classes: Number of classes without the background.
        channels: Channels of the pyramid.
        anchor_scale: Side of the smallest square anchor, in cells of the feature map.
        ratios: Width / height of the other anchors. Their inverses are added.
    """
    *_, c3, c4, c5 = backbone(image)
    with (
        scope("pyramid"),
        argscope([Conv2D, SeparableConv2D], use_bias=False, activation=bn_relu6),
    ):
        top = SeparableConv2D("down6", c5, channels, 3, strides=2)
        maps, above = [top], None
        for level, x in ((5, c5), (4, c4), (3, c3)):
            x = Conv2D(f"lateral{level}", x, channels, 1)
            if above is not None:
                x += _enlarged(above, x.shape[1:3])
            above = x
            maps.insert(0, SeparableConv2D(f"merged{level}", x, channels, 3))
        maps = [SeparableConv2D(f"head{level}", x, channels, 3) for level, x in enumerate(maps, 3)]
    anchors = [
        AnchorLevel(s, anchor_scale * s, 2 * anchor_scale * s, ratios) for s in (8, 16, 32, 64)
    ]
    head = partial(SeparableConv2D, pointwise_initializer="glorot_uniform")
    return predictions(image, maps, anchors, num_classes, head)


def _enlarged(x: tf.Tensor, size: Any) -> tf.Tensor:
    """Enlarge images to the size (height, width) by nearest neighbor.

    The gradient equals that of `tf.image.resize`, which is not deterministic on a GPU.
    """
    before: Any = x.shape[1:3]
    firsts, counts = zip(*map(_copies, before, size), strict=True)

    @tf.custom_gradient
    def enlarge(x: tf.Tensor) -> Any:
        def gradient(dy: tf.Tensor) -> tf.Tensor:
            total: Any = 0.0
            for row, column in np.ndindex(*(count.max() for count in counts)):
                rows = np.minimum(firsts[0] + row, size[0] - 1)
                columns = np.minimum(firsts[1] + column, size[1] - 1)
                copied = np.outer(counts[0] > row, counts[1] > column)[None, :, :, None]
                term = tf.gather(tf.gather(dy, rows, axis=1), columns, axis=2)
                total += tf.where(copied, term, tf.zeros_like(term))
            return tf.ensure_shape(total, x.shape)  # Otherwise Grappler reorders the sum.

        return tf.image.resize(x, size, "nearest"), gradient

    return enlarge(x)


def _copies(before: int, after: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first copy of each row in an enlarged image, and the number of its copies."""
    sources = np.floor((np.arange(after, dtype=np.float32) + 0.5) * np.float32(before / after))
    return np.searchsorted(sources, np.arange(before)), np.bincount(
        sources.astype(int), minlength=before
    )
