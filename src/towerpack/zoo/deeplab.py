"""DeepLabv3+ (Chen et al. 2018) with EfficientNet-Lite0 as the backbone instead of Xception."""

from __future__ import annotations

from typing import Any, Final

import tensorflow as tf

from towerpack.nn import BNReLU, Conv2D, SeparableConv2D, argscope, expose, scope
from towerpack.zoo.efficientnet_lite import backbone

_RATES: Final = (1, 6, 12, 18)


def net(
    image: tf.Tensor, num_classes: int, *, width: int = 128, rates: tuple[int, ...] = _RATES[1:]
) -> tf.Tensor:
    """Return logits [n, h, w, num_classes] of atrous spatial pyramid pooling and a decoder.

    Variables of the backbone have the names of the packaged weights. Other variables begin with
    `aspp/`, `decoder/` and `logits/`. Unlike in the paper, the backbone is not dilated. Its last
    stage is resized to stride 16.

    Args:
        image: RGB images [n, h, w, 3] of any size, (pixels - 127) / 128.
        num_classes: Number of classes.
        width: Number of filters in the head (256 in the paper).
        rates: Dilation rates of the atrous spatial pyramid pooling.
    """
    _, fine, _, deep, deepest = backbone(image)
    with argscope([Conv2D, SeparableConv2D], use_bias=False, activation=BNReLU):
        with scope("aspp"):
            x = tf.concat([deep, _resized(deepest, deep)], -1)
            seen = [Conv2D("point", x, width, 1)]
            for rate in rates:
                seen.append(SeparableConv2D(f"around{rate}", x, width, 3, dilation_rate=rate))
            whole = Conv2D("whole", tf.reduce_mean(x, [1, 2], keepdims=True), width, 1)
            seen.append(whole + tf.zeros_like(seen[0]))
            x = Conv2D("joined", tf.concat(seen, -1), width, 1)
        expose("features", x)
        with scope("decoder"):
            fine = Conv2D("fine", fine, max(width // 5, 1), 1)
            x = tf.concat([_resized(x, fine), fine], -1)
            for i in range(2):
                x = SeparableConv2D(f"refined{i}", x, width, 3)
    return _resized(Conv2D("logits", x, num_classes, 1), image)


def _resized(x: tf.Tensor, like: tf.Tensor) -> Any:
    return tf.cast(tf.image.resize(x, tf.shape(like)[1:3]), x.dtype)
