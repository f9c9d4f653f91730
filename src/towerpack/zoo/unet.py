"""U-Net (Ronneberger et al. 2015) from Lambda's demo suite.

The network has 1,554,636 parameters for 12 classes.
"""

from __future__ import annotations

import tensorflow as tf

from towerpack.nn import Conv2D, expose
from towerpack.zoo.fcn import encoded, enlarged, stages


def net(
    image: tf.Tensor,
    num_classes: int,
    *,
    width: int = 32,
    batch_norm: bool = False,
    full_size: bool = False,
) -> tf.Tensor:
    """Return logits [n, h, w, num_classes] of `fcn.net` with skip connections.

    Args:
        image, num_classes, width, batch_norm: See `fcn.net`.
        full_size: Whether to add two 3x3 convolutions with `width // 2` filters at the full image
            size, for sharper edges. The demo suite does not have them.
    """
    with stages(batch_norm):
        first = Conv2D("first", image, width // 2, 3) if full_size else image
        *skipped, x = encoded(first, width)
        expose("features", x)
        for i, like in reversed(list(enumerate(skipped))):
            x = enlarged(f"up{i}", x, like, width << i)
            x = tf.concat([x, like], -1)
        if full_size:
            x = tf.concat([enlarged("up", x, first, width // 2), first], -1)
            x = Conv2D("last", x, width // 2, 3)
    if full_size:
        return Conv2D("logits", x, num_classes, 1)
    return enlarged("logits", x, image, num_classes)
