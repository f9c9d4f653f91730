"""Fast single-shot object detector with an EfficientNet-Lite0 backbone.

Combines the anchors and loss of SSD (Liu et al. 2016) with a feature pyramid (Lin et al. 2017) and
separable convolutions (Sandler et al. 2018, section 6.2). Variables of the backbone have the names
of the packaged weights: `transfer.pretrained: efficientnet-lite0`.
"""

from __future__ import annotations

from functools import partial

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
                x += tf.image.resize(above, tf.shape(x)[1:3], "nearest")
            above = x
            maps.insert(0, SeparableConv2D(f"merged{level}", x, channels, 3))
        maps = [SeparableConv2D(f"head{level}", x, channels, 3) for level, x in enumerate(maps, 3)]
    anchors = [
        AnchorLevel(s, anchor_scale * s, 2 * anchor_scale * s, ratios) for s in (8, 16, 32, 64)
    ]
    head = partial(SeparableConv2D, pointwise_initializer="glorot_uniform")
    return predictions(image, maps, anchors, num_classes, head)
