import keras

from towerpack.nn._registry import add
from towerpack.nn.keras_layers import register_keras

_CONVOLUTION = """Convolution over {}. Variables `kernel` [size, in / groups, filters] and `bias`.

    Args:
        x: [batch, {}, channels].
        filters: Number of output channels. Old spelling: `out_channel=`.
        kernel_size: Size in pixels. Old spelling: `kernel_shape=`.
        strides: Strides in pixels. Old spelling: `stride=`.
        padding: 'same' (default) or 'valid', in any case.
        data_format: 'channels_last' or 'channels_first' (NHWC, NCHW).
        dilation_rate: Distance between kernel elements in pixels.
        groups: Number of channel groups that are convolved separately. Old spelling: `split=`.
        activation: Function, Keras name, registered layer or None. Old spelling: `nl=`.
        use_bias: Whether to add a bias.
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
    """Transposed convolution ("deconvolution"), which enlarges images by `strides`.

    Arguments are those of Keras, with `padding='same'` by default.

    Variables `kernel` [h, w, filters, in] and `bias` [filters].
    """,
    rank=4,
    fixed={"output_padding": None},
    by_name=["dilation_rate"],
    padding="same",
)
Deconv2D = Conv2DTranspose
"""Tensorpack's name of `Conv2DTranspose`: the same layer, with the same argscopes."""
add(Conv2DTranspose, "Deconv2D")

DepthwiseConv2D = register_keras(
    "DepthwiseConv2D",
    keras.layers.DepthwiseConv2D,
    """Convolution of each channel separately, to `depth_multiplier` channels each.

    Arguments as in Keras. Variables `kernel` [h, w, in, depth_multiplier] and `bias`.
    """,
    rank=4,
    padding="same",
    depthwise_initializer=None,
)
SeparableConv2D = register_keras(
    "SeparableConv2D",
    keras.layers.SeparableConv2D,
    """Depthwise convolution, followed by a 1x1 convolution to `filters` channels.

    Arguments as in Keras. Variables `depthwise_kernel` [h, w, in, depth_multiplier],
    `pointwise_kernel` [1, 1, in * depth_multiplier, filters] and `bias` [filters].
    """,
    rank=4,
    padding="same",
    depthwise_initializer=None,
    pointwise_initializer=None,
)
