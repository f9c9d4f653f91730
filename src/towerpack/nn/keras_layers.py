"""Layers by name, created from Keras classes.

Each layer is a Keras 3 layer in the tower's variable store, under its scoped name. Images are
[batch, height, width, channels], unless `data_format` is 'channels_first'.
"""

import inspect
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

import keras
import numpy as np
import tensorflow as tf

from towerpack._core.errors import LayerError
from towerpack.nn._context import get_current_tower_context
from towerpack.nn._register import activate, register_layer
from towerpack.nn._registry import RegisteredLayer
from towerpack.nn.initial_values import run_seeded
from towerpack.nn.scopes import full_name

Size = int | tuple[int, ...]

_WORDS = {"padding": ("same", "valid"), "data_format": ("channels_last", "channels_first")}
_SHORT_WORDS = {"nhwc": "channels_last", "nchw": "channels_first"}
_SHAPES = {
    2: "[batch, channels]",
    3: "[batch, time, channels]",
    4: "[batch, height, width, channels]",
    5: "[batch, depth, height, width, channels]",
}


def keras_word(kind: str, value: Any) -> str:
    """Convert a 'padding' or 'data_format' in any spelling to the Keras word."""
    word = _SHORT_WORDS.get(str(value).lower(), str(value).lower())
    if word not in _WORDS[kind]:
        raise LayerError(
            f"'{full_name()}': {kind} must be one of {', '.join(_WORDS[kind])}, got {value!r}."
        )
    return word


def static_shape(
    x: tf.Tensor, rank: int | None, layer: str, least: int = 0
) -> tuple[int | None, ...]:
    """Return the static shape of a layer's input, after checking its rank."""
    if x.shape.rank is None or x.shape.rank < least or rank not in (None, x.shape.rank):
        known = f"rank {rank}, such as {_SHAPES[rank]}" if rank else f"rank {least} or more"
        raise LayerError(
            f"{layer} '{full_name()}' needs an input of {known}, got shape {x.shape}.",
            fix="change the rank, for example with tf.expand_dims(image, -1) for gray images",
        )
    return tuple(x.shape.as_list())


def sizes(size: Size, rank: int = 2) -> tuple[int, ...]:
    """Return the size in each direction as `rank` integers, from one integer or a tuple."""
    try:
        each: Any = (size,) * rank if np.ndim(size) == 0 else size
        integers = tuple(map(operator.index, each))
    except (TypeError, ValueError):
        integers = ()
    if len(integers) != rank:
        raise LayerError(
            f"'{full_name()}': a size must be one integer or {rank} integers, got {size!r}."
        )
    return integers


def initializer_of(value: Any, role: str) -> Any:
    """Return a Keras initializer. Unless it has a seed, seed it by run, layer name and role.

    None means zeros for a bias, otherwise normal with variance 2 / fan_in (He et al. 2015). Initial
    values do not depend on the order of layers, and layers that share an initializer differ.
    """
    default = "zeros" if role == "bias" else None
    initializer = cast("Any", keras.initializers.get(default if value is None else value))
    if initializer is None:
        initializer = keras.initializers.VarianceScaling(2.0, "fan_in", "untruncated_normal")
    seed = get_current_tower_context().store.layer_seed(role)
    if not isinstance(initializer, keras.initializers.Initializer):
        # A function or an initializer of TensorFlow.
        return lambda shape, dtype=None: run_seeded(lambda: initializer(shape, dtype=dtype), seed)
    config = initializer.get_config()
    if "seed" not in config or config["seed"] is not None:
        return initializer
    return type(initializer).from_config({**config, "seed": seed})


def keras_layer(
    name: str,
    make: Callable[..., keras.layers.Layer],
    x: tf.Tensor,
    rank: int | None = None,
    **config: Any,
) -> Any:
    """Return the Keras layer of the current scope for the input `x`, with seeded initializers.

    `config` has the arguments of `make`; sizes, words and initializers are checked and converted.
    `name` is the layer's type in messages, and `rank` the required rank of the input.
    """
    shape = static_shape(x, rank, name)
    if rank == 3 and "data_format" not in config:
        shape = (None, None, shape[2])  # The layer takes sequences of any length.
    if config.get("depthwise_initializer", "") is None:  # Keras would count all channels as fan-in.
        deviation = (2 / math.prod(sizes(config["kernel_size"]))) ** 0.5
        config["depthwise_initializer"] = keras.initializers.RandomNormal(stddev=deviation)
    for key, value in config.items():
        if key in _SIZES:
            config[key] = value if value is None else sizes(value, x.shape.rank - 2)
        elif key in _WORDS:
            config[key] = keras_word(key, value)
        elif key in ("filters", "units"):
            config[key] = int(value)
        elif key.endswith("_initializer"):
            config[key] = initializer_of(value, key.removesuffix("_initializer"))
    groups = config.get("groups", 1)
    first = config.get("data_format") == "channels_first" or config.get("axis") == 1
    channels = shape[1 if first else -1]
    if groups not in (1, -1):
        check_groups(name, groups, channels, "channels")
        check_groups(name, groups, config.get("filters", groups), "filters")
    if channels is None and config.keys() & _OF_CHANNELS:
        raise LayerError(
            f"{name} '{full_name()}' needs a static number of channels, got shape {x.shape}.",
            fix="set the number with tf.ensure_shape, or in the model's inputs",
        )
    return get_current_tower_context().store.layer(make, shape, **config)


def apply_layer(layer: keras.layers.Layer, x: tf.Tensor, training: bool) -> tf.Tensor:
    """Call a layer that has moving averages. If replicas share them, only the first updates."""
    context = get_current_tower_context()
    if not training or context.index == 0 or context.mirrored:
        return layer(x, training=training)
    kinds: list[Any] = [layer.trainable_variables, layer.non_trainable_variables]
    values = [[v.value for v in variables] for variables in kinds]
    result: Any = layer.stateless_call(*values, x, training=True)
    return result[0]


def check_groups(name: str, groups: int, number: int | None, what: str) -> None:
    """Raise `LayerError` unless `groups` divides `number`, the number of `what`."""
    if groups < 1 or number is None or number % groups:
        raise LayerError(
            f"{name} '{full_name()}': {groups} groups must divide the number of {what}, {number}."
        )


def register_keras(
    name: str,
    make: type[keras.layers.Layer],
    doc: str,
    *,
    rank: int | None = None,
    fixed: Mapping[str, Any] = MappingProxyType({}),
    extra: Mapping[str, Any] = MappingProxyType({}),
    prepare: Callable[[tf.Tensor], tf.Tensor] | None = None,
    check: Callable[..., None] | None = None,
    by_name: Sequence[str] = (),
    **defaults: Any,
) -> RegisteredLayer:
    """Register a Keras class as a layer by name.

    The layer takes the arguments of the class in their order, except regularizers, constraints and
    dropout, and `data_format` in place of `axis`.

    Args:
        fixed: Arguments that the layer does not have, with their values.
        extra: Keyword arguments of the class's call, with their defaults.
        prepare: Function applied to the input first.
        check: Called with the Keras layer and `extra` to check them.
        by_name: Keyword-only arguments, because Tensorpack has others in their places.
        **defaults: Defaults that differ from Keras.
    """
    _, *all_of_keras = inspect.signature(make.__init__).parameters.values()
    defaults = {"data_format": "channels_last", "kernel_initializer": None, **defaults}
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("x", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    for parameter in all_of_keras:
        name_here = "data_format" if parameter.name == "axis" else parameter.name
        omitted = name_here in fixed or name_here.endswith(_OMITTED)
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD and not omitted:
            kind = keyword if name_here in by_name else parameter.kind
            default = defaults.get(name_here, parameter.default)
            parameters.append(parameter.replace(name=name_here, default=default, kind=kind))
    parameters.sort(key=lambda parameter: parameter.kind)
    parameters += [inspect.Parameter(key, keyword, default=value) for key, value in extra.items()]
    signature = inspect.Signature(parameters)
    axis = any(parameter.name == "axis" for parameter in all_of_keras)
    recurrent = "recurrent_activation" in signature.parameters

    def layer(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        config = bound.arguments
        x = config.pop("x")
        x = prepare(x) if prepare else x
        call_arguments = {key: config.pop(key) for key in extra}
        activation = None if recurrent else config.pop("activation", None)
        if axis:
            config["axis"] = channel_axis(x, name, config.pop("data_format"))
        elif "data_format" in config:
            config["data_format"] = keras_word("data_format", config["data_format"])
        built = keras_layer(name, make, x, rank, **config, **fixed)
        if check:
            check(built, **call_arguments)
        # On a CPU, TensorFlow 2.21 adds Keras's bias along the width if the sizes are equal.
        separate_bias = "use_bias" in config and config.get("data_format") == "channels_first"
        if separate_bias:
            built.use_bias = False
        y = built(x, **call_arguments)
        if separate_bias and config["use_bias"]:
            y = tf.nn.bias_add(y, tf.cast(built.bias, y.dtype), "NC...")
        return activate(activation, y)

    described: Any = layer
    described.__name__ = described.__qualname__ = name
    described.__doc__, described.__signature__ = doc, signature
    return register_layer(described)


def channel_axis(x: tf.Tensor, name: str, data_format: str) -> int:
    first = keras_word("data_format", data_format) == "channels_first"
    return 1 if len(static_shape(x, None, name, 2)) > 2 and first else -1


_OF_CHANNELS = frozenset(("kernel_size", "units", "axis", "key_dim"))
_SIZES = ("kernel_size", "pool_size", "strides", "dilation_rate", "size")
_NEVER = ("weights", "lora_rank", "lora_alpha", "quantization_config", "mask_zero")
_OMITTED = ("regularizer", "constraint", "dropout", "seed", "stateful", "name", *_NEVER)
