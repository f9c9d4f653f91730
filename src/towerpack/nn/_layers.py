"""Layers with weights: convolutions, full connections, batch normalisation.

Each is a Keras 3 layer, kept in the tower's variable store under its scoped name. Images are
[batch, height, width, channels] unless `data_format` says otherwise.
"""

from __future__ import annotations

import operator
from typing import Any, Literal, cast

import keras
import numpy as np
import tensorflow as tf

from towerpack._core.errors import LayerError
from towerpack.nn import _registry
from towerpack.nn._context import get_current_tower_context
from towerpack.nn._register import activate, register_layer
from towerpack.nn._scope import full_name
from towerpack.nn._store import run_seeded

Size = int | tuple[int, int]

_FORMATS = {
    "channels_last": "channels_last",
    "NHWC": "channels_last",
    "channels_first": "channels_first",
    "NCHW": "channels_first",
}


def data_format_of(name: str) -> str:
    """The Keras word for a data format."""
    if name not in _FORMATS:
        raise LayerError(
            f"Unknown data_format {name!r}.", expected="one of " + ", ".join(map(repr, _FORMATS))
        )
    return _FORMATS[name]


def padding_of(name: str) -> Literal["same", "valid"]:
    """The Keras word for a padding, given in any case."""
    word = name.lower() if isinstance(name, str) else name
    if word not in ("same", "valid"):
        raise LayerError(f"'{full_name()}': unknown padding {name!r}.", expected="same or valid")
    return word


def static_shape(x: tf.Tensor, rank: int | None, layer: str) -> tuple[int | None, ...]:
    """The static shape of a layer's input, checked for its rank."""
    if x.shape.rank is None or (rank is not None and x.shape.rank != rank):
        raise LayerError(
            f"{layer} '{full_name()}' got an input of the wrong rank.",
            got=f"shape {x.shape}",
            expected=f"rank {rank}, such as [batch, height, width, channels]"
            if rank == 4
            else "a known rank",
            fix="reshape the input, for example with tf.expand_dims(image, -1) for grey images",
        )
    return tuple(x.shape.as_list())


def pair(size: Size) -> tuple[int, int]:
    """One number for both directions, or one for each.

    Raises:
        LayerError: Neither one nor two whole numbers.
    """
    try:
        both: Any = (size, size) if np.ndim(size) == 0 else size
        height, width = map(operator.index, both)
    except (TypeError, ValueError):
        raise LayerError(
            f"'{full_name()}': {size!r} is no size.", expected="one whole number, or two"
        ) from None
    return height, width


def initializer_of(given: Any, role: str) -> Any:
    """A Keras initializer; without a seed of its own it is seeded by run, layer name and role.

    None is zeros for a bias, otherwise normal with variance 2 / fan_in (He et al. 2015). Initial
    values do not depend on the order in which layers are made, and an initializer that an argscope
    gives to many layers does not make them alike.
    """
    default = "zeros" if role == "bias" else None
    made = cast("Any", keras.initializers.get(default if given is None else given))
    if made is None:
        made = keras.initializers.VarianceScaling(2.0, "fan_in", "untruncated_normal")
    seed = get_current_tower_context().store.layer_seed(role)
    if not isinstance(made, keras.initializers.Initializer):
        # A function, or one of TensorFlow's own initializers.
        return lambda shape, dtype=None: run_seeded(lambda: made(shape, dtype=dtype), seed)
    config = made.get_config()
    if "seed" not in config or config["seed"] is not None:
        return made
    return type(made).from_config({**config, "seed": seed})


@register_layer
def Conv2D(
    x: tf.Tensor,
    filters: int,
    kernel_size: Size,
    strides: Size = 1,
    padding: str = "same",
    *,
    data_format: str = "channels_last",
    dilation_rate: Size = 1,
    groups: int = 1,
    activation: Any = None,
    use_bias: bool = True,
    kernel_initializer: Any = None,
    bias_initializer: Any = "zeros",
) -> tf.Tensor:
    """2-D convolution. Variables `kernel` [h, w, in / groups, filters] and `bias` [filters].

    Args:
        x: [batch, height, width, channels].
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
    layer = get_current_tower_context().store.layer(
        keras.layers.Conv2D,
        static_shape(x, 4, "Conv2D"),
        filters=int(filters),
        kernel_size=pair(kernel_size),
        strides=pair(strides),
        padding=padding_of(padding),
        data_format=data_format_of(data_format),
        dilation_rate=pair(dilation_rate),
        groups=groups,
        use_bias=use_bias,
        kernel_initializer=initializer_of(kernel_initializer, "kernel"),
        bias_initializer=initializer_of(bias_initializer, "bias"),
    )
    return activate(activation, layer(x))


@register_layer
def Conv2DTranspose(
    x: tf.Tensor,
    filters: int,
    kernel_size: Size,
    strides: Size = 1,
    padding: str = "same",
    *,
    data_format: str = "channels_last",
    activation: Any = None,
    use_bias: bool = True,
    kernel_initializer: Any = None,
    bias_initializer: Any = "zeros",
) -> tf.Tensor:
    """Transposed 2-D convolution ("deconvolution"): enlarges by `strides`.

    Arguments as in `Conv2D`. Variables `kernel` [h, w, filters, in] and `bias` [filters].
    """
    layer = get_current_tower_context().store.layer(
        keras.layers.Conv2DTranspose,
        static_shape(x, 4, "Conv2DTranspose"),
        filters=int(filters),
        kernel_size=pair(kernel_size),
        strides=pair(strides),
        padding=padding_of(padding),
        data_format=data_format_of(data_format),
        use_bias=use_bias,
        kernel_initializer=initializer_of(kernel_initializer, "kernel"),
        bias_initializer=initializer_of(bias_initializer, "bias"),
    )
    return activate(activation, layer(x))


Deconv2D = Conv2DTranspose
"""The predecessor's name of `Conv2DTranspose`: the same layer, with the same argscopes."""
_registry.add(Conv2DTranspose, "Deconv2D")


@register_layer
def FullyConnected(
    x: tf.Tensor,
    units: int,
    *,
    activation: Any = None,
    use_bias: bool = True,
    kernel_initializer: Any = None,
    bias_initializer: Any = "zeros",
) -> tf.Tensor:
    """Full connection; everything but the batch dimension is flattened first.

    Variables `kernel` [in, units] and `bias` [units].

    Args:
        x: [batch, …] with a known size per datapoint.
        units: Outputs. Old spelling: `out_dim=`.
        activation: Function, Keras name, registered layer or None. Old spelling: `nl=`.
        use_bias: Add a bias.
        kernel_initializer: Keras initializer; None for He et al. 2015, seeded by the layer's name.
        bias_initializer: Keras initializer.
    """
    shape = static_shape(x, None, "FullyConnected")
    if any(size is None for size in shape[1:]):
        raise LayerError(
            f"FullyConnected '{full_name()}' needs to know the size of its input.",
            got=f"shape {x.shape}",
            expected="known sizes but for the batch dimension",
            fix="pool over the unknown dimensions first, for example with GlobalAvgPooling",
        )
    if len(shape) != 2:
        size = 1
        for n in shape[1:]:
            size *= n or 1
        x = tf.reshape(x, [-1, size])
    layer = get_current_tower_context().store.layer(
        keras.layers.Dense,
        tuple(x.shape.as_list()),
        units=int(units),
        use_bias=use_bias,
        kernel_initializer=initializer_of(kernel_initializer, "kernel"),
        bias_initializer=initializer_of(bias_initializer, "bias"),
    )
    return activate(activation, layer(x))
