"""Convolutions."""

from __future__ import annotations

import keras

from towerpack.nn._registry import add
from towerpack.nn.keras_layers import register_keras

_CONVOLUTION = """Convolution over {}. Variables `kernel` [size, in / groups, filters] and `bias`.

    Args:
        x: [batch, {}, channels].
        filters: Output channels. Old spelling: `out_channel=`.
        kernel_size: Pixels. Old spelling: `kernel_shape=`.
        strides: Pixels. Old spelling: `stride=`.
        padding: 'same' (default) or 'valid', in either case.
        data_format: 'channels_last' or 'channels_first' (NHWC, NCHW).
        dilation_rate: Distance of the kernel's taps in pixels.
        groups: Groups of channels that do not see each other. Old spelling: `split=`.
        activation: Function, Keras name, registered layer or None. Old spelling: `nl=`.
        use_bias: Add a bias.
        kernel_initializer: Keras initializer; None for He et al. 2015, seeded by the layer's name.
        bias_initializer: Keras initializer.
    """
Conv1D, Conv2D, Conv3D = (
    register_keras(
        f"Conv{rank}D",
        getattr(keras.layers, f"Conv{rank}D"),
        _CONVOLUTION.format(what, what),
        rank=rank + 2,
        by_name=["groups"],
        padding="same",
    )
    for rank, what in enumerate(("time", "height, width", "depth, height, width"), 1)
)

Conv2DTranspose = register_keras(
    "Conv2DTranspose",
    keras.layers.Conv2DTranspose,
    """Transposed convolution ("deconvolution"): enlarges by `strides`. As Keras's, but 'same'.

    Variables `kernel` [h, w, filters, in] and `bias` [filters].
    """,
    rank=4,
    fixed={"output_padding": None},
    by_name=["dilation_rate"],
    padding="same",
)
Deconv2D = Conv2DTranspose
"""The predecessor's name of `Conv2DTranspose`: the same layer, with the same argscopes."""
add(Conv2DTranspose, "Deconv2D")

DepthwiseConv2D = register_keras(
    "DepthwiseConv2D",
    keras.layers.DepthwiseConv2D,
    """Convolution of each channel by itself, to `depth_multiplier` channels.

    Variables `kernel` [h, w, in, depth_multiplier] and `bias` [in * depth_multiplier].
    """,
    rank=4,
    padding="same",
    depthwise_initializer=None,
)
SeparableConv2D = register_keras(
    "SeparableConv2D",
    keras.layers.SeparableConv2D,
    """A depthwise convolution, then one of 1x1 to `filters` channels.

    Variables `depthwise_kernel` [h, w, in, depth_multiplier], `pointwise_kernel` [1, 1, in *
    depth_multiplier, filters] and `bias` [filters].
    """,
    rank=4,
    padding="same",
    depthwise_initializer=None,
    pointwise_initializer=None,
)
