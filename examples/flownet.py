"""FlowNet2-S and -C (Ilg et al. 2017): networks that tell how far each pixel moves.

The variables have the names of Tensorpack's files `flownet2-s.npz` and `flownet2-c.npz`, which
`SmartInit` loads. Images are blue, green, red from 0 to 255; their sides are multiples of 64.
[optical_flow.py](optical_flow.py) trains both.

Reached: the outputs of Tensorpack's own networks, see `tests/unit/zoo/test_tensorpack_weights.py`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import tensorflow as tf

from towerpack.nn import Conv2D, Conv2DTranspose

SCALE = 20.0
WEIGHTS = (0.32, 0.08, 0.02, 0.01, 0.005)  # of the coarsest to the finest flow (Ilg et al. 2017)
leaky = partial(tf.nn.leaky_relu, alpha=0.1)


def flownet(
    first: tf.Tensor,
    second: tf.Tensor,
    network: str = "s",
    *,
    width: float = 1.0,
    reach: int = 20,
    step: int = 2,
) -> list[tf.Tensor]:
    """Return flows [n, h, w, 2] (x, y) in pixels / 20, from 1/64 of the images' sides to 1/4.

    Args:
        first, second: Images [n, h, w, 3], float32 from 0 to 255.
        network: 's' (images side by side) or 'c' (correlation of their features).
        width: Factor of the numbers of channels.
        reach, step: Arguments of `correlation`, in pixels of features, which are 8 of images.
    """
    pair = tf.stack([first, second], 1)
    first, second = tf.unstack(
        (pair - tf.reduce_mean(pair, [1, 2, 3], keepdims=True)) / 255, axis=1
    )
    is_correlated = network == "c"
    x = tf.concat([first, second], 0 if is_correlated else -1)
    conv2 = _conv("conv2", _conv("conv1", x, 64 * width, 7), 128 * width, 5)
    x = _conv("conv3", conv2, 256 * width, 5)
    if is_correlated:
        (a, b), conv2 = tf.split(x, 2), tf.split(conv2, 2)[0]
        redirected = _conv("conv_redir", a, 32 * width, 1, 1)
        x = tf.concat([redirected, leaky(correlation(a, b, reach, step))], -1)
    skips = [conv2, _conv("conv3_1", x, 256 * width, strides=1)]
    for level, filters in ((4, 512), (5, 512), (6, 1024)):
        x = _conv(f"conv{level}", skips[-1], filters * width)
        skips.append(_conv(f"conv{level}_1", x, filters * width, strides=1))
    x, flows = skips.pop(), []
    for level, filters in ((5, 512), (4, 256), (3, 128), (2, 64)):
        flows.append(_conv(f"predict_flow{level + 1}", x, 2, strides=1, activation=None))
        name = f"upsampled_flow{level + 1}_to_{level}"
        flow = Conv2DTranspose(name, flows[-1], 2, 4, strides=2, use_bias=is_correlated)
        filters = int(filters * width)
        x = Conv2DTranspose(f"deconv{level}", x, filters, 4, strides=2, activation=leaky)
        x = tf.concat([skips.pop(), x, flow], -1)
    return [*flows, _conv("predict_flow2", x, 2, strides=1, activation=None)]


def correlation(a: tf.Tensor, b: tf.Tensor, reach: int, step: int) -> tf.Tensor:
    """Return mean products of the channels of `a` and of moved `b`: [n, h, w, offsets].

    The first offset compares (x, y) with (x - reach, y - reach), the second one `step` to the
    right. `b` is 0 outside.
    """
    (height, width), moves = a.shape[1:3], range(0, 2 * reach + 1, step)
    b = tf.pad(b, [[0, 0], [reach, reach], [reach, reach], [0, 0]])
    pieces = [b[:, i : i + height, j : j + width] for i in moves for j in moves]
    return tf.stack([tf.reduce_mean(a * piece, -1) for piece in pieces], -1)


def in_pixels(flow: tf.Tensor) -> tf.Tensor:
    """Return the finest flow in pixels, for all pixels of the images."""
    size = [4 * side for side in flow.shape[1:3]]
    return tf.raw_ops.ResizeBilinear(images=SCALE * flow, size=size, align_corners=True)


def loss(flows: list[tf.Tensor], truth: tf.Tensor) -> tf.Tensor:
    """Return the weighted sum of the end-point errors of all flows, a mean over the batch."""
    total = tf.zeros([])
    for flow, weight in zip(flows, WEIGHTS, strict=True):
        wanted = tf.image.resize(truth, flow.shape[1:3], "area") / SCALE
        # The square root has no gradient at 0.
        errors = tf.sqrt(tf.reduce_sum((flow - wanted) ** 2, -1) + 1e-6)
        total += weight * tf.reduce_mean(tf.reduce_sum(errors, [1, 2]))
    return total


def _conv(
    name: str,
    x: tf.Tensor,
    filters: float,
    size: int = 3,
    strides: int = 2,
    activation: Any = leaky,
) -> tf.Tensor:
    # Caffe pads both sides alike; 'same' with strides pads only below and right.
    x = tf.pad(x, [[0, 0], *[[size // 2] * 2] * 2, [0, 0]])
    return Conv2D(
        name, x, int(filters), size, strides=strides, padding="valid", activation=activation
    )
