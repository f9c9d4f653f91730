from typing import Any

import keras
import numpy as np
import tensorflow as tf

from towerpack._core.errors import LayerError
from towerpack.nn._register import register_layer
from towerpack.nn.keras_layers import keras_layer, register_keras, static_shape
from towerpack.nn.scopes import full_name


def _check_state(layer: Any, initial_state: Any) -> None:
    if initial_state is None:
        return
    wanted = [[None, size] for size in tf.nest.flatten(layer.cell.state_size)]
    shapes = [tf.convert_to_tensor(s).shape for s in tf.nest.flatten(initial_state)]
    pairs = zip(shapes, wanted, strict=False)
    if len(shapes) != len(wanted) or not all(a.is_compatible_with(b) for a, b in pairs):
        raise LayerError(
            f"{type(layer).__name__} '{full_name()}': initial_state must have shapes {wanted}, "
            f"got {list(map(str, shapes))}.",
            fix="pass all but the first result of a call with return_state=True",
        )


LSTM, GRU = (
    register_keras(
        make.__name__,
        make,
        f"""{make.__name__} over time [batch, time, channels], as in Keras.

    With `return_state=True`, return a tuple of the outputs and the states, [batch, units] each.
    Pass the states to a later call as `initial_state=`.
    Variables `kernel`, `recurrent_kernel` and `bias` in `{make.__name__.lower()}_cell/`.
    """,
        rank=3,
        extra={"initial_state": None},
        check=_check_state,
        kernel_initializer="glorot_uniform",
    )
    for make in (keras.layers.LSTM, keras.layers.GRU)
)


class _Attention(keras.layers.MultiHeadAttention):
    def __init__(self, *, channels: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._channels = channels

    def build(self, query_shape: Any, value_shape: Any = None, key_shape: Any = None) -> None:
        super().build(query_shape, value_shape or (None, None, self._channels), key_shape)


def _checked_tokens(numbers: Any, x: tf.Tensor, name: str, layer: str) -> tf.Tensor:
    """Return numbers of tokens as a tensor. Raise `LayerError` if `x` has another shape."""
    numbers = tf.convert_to_tensor(numbers)
    if numbers.shape.rank != 2 or not numbers.shape.is_compatible_with(x.shape[:2]):
        raise LayerError(
            f"{layer} '{full_name()}': {name} must have the shape [batch, time] of "
            f"{x.shape}, got {numbers.shape}.",
            fix=f"pass the {name} of the packed rows",
        )
    return numbers


@register_layer
def MultiHeadAttention(
    x: tf.Tensor,
    num_heads: int,
    key_dim: int,
    *,
    value: tf.Tensor | None = None,
    attention_mask: tf.Tensor | None = None,
    segment_ids: tf.Tensor | None = None,
    use_causal_mask: bool = False,
    use_bias: bool = True,
    kernel_initializer: Any = "glorot_uniform",
    bias_initializer: Any = "zeros",
) -> tf.Tensor:
    """Multi-head attention (Vaswani et al. 2017). The result has the shape of `x`.

    Variables `kernel` and `bias` in `query/`, `key/`, `value/` and `attention_output/`.

    Args:
        x: Queries, [batch, time, channels].
        num_heads: Number of heads.
        key_dim: Size of each head.
        value: Keys and values, [batch, value time, value channels]; None for `x`.
        attention_mask: True where attention is allowed; broadcasts to [batch, time, value time].
        segment_ids: Numbers of the segments of packed rows, [batch, time], as from `PackSequences`.
            Attention is then allowed only within a segment, and padding sees only padding.
        use_causal_mask: Whether to hide later positions.
        use_bias: Whether to add biases.
        kernel_initializer, bias_initializer: Keras initializers.

    Raises:
        LayerError: `segment_ids` is combined with `value`, or is not of shape [batch, time].
    """
    if segment_ids is not None:
        ids = _checked_tokens(segment_ids, x, "segment_ids", "MultiHeadAttention")
        if value is not None:
            raise LayerError(
                f"MultiHeadAttention '{full_name()}' cannot use segment_ids= with value=.",
                fix="pass attention_mask= instead",
            )
        same = ids[:, :, None] == ids[:, None, :]
        if attention_mask is not None:
            same = same & tf.cast(attention_mask, tf.bool)
        attention_mask = same
    value = x if value is None else value
    layer = keras_layer(
        "MultiHeadAttention",
        _Attention,
        x,
        3,
        channels=static_shape(value, 3, "MultiHeadAttention")[2],
        num_heads=int(num_heads),
        key_dim=int(key_dim),
        use_bias=use_bias,
        kernel_initializer=kernel_initializer,
        bias_initializer=bias_initializer,
    )
    return layer(x, value, attention_mask=attention_mask, use_causal_mask=use_causal_mask)


@register_layer(use_scope=None)
def PositionalEncoding(
    x: tf.Tensor, max_wavelength: float = 10000.0, *, positions: tf.Tensor | None = None
) -> tf.Tensor:
    """Add sines and cosines of the position to `x` [batch, time, channels] (Vaswani et al. 2017).

    Even channels get sines and odd channels cosines, with wavelengths from 2 pi to
    `max_wavelength` * 2 pi.

    Args:
        x: Sequences.
        max_wavelength: Longest wavelength, in units of 2 pi.
        positions: Position of each token in its segment of a packed row, [batch, time], as from
            `PackSequences`; None for the position in the row.

    Raises:
        LayerError: The number of channels is unknown, or `positions` has another shape.
    """
    channels = static_shape(x, 3, "PositionalEncoding")[2]
    if channels is None:
        raise LayerError(
            f"PositionalEncoding '{full_name()}' needs a static number of channels, got {x.shape}."
        )
    number = np.arange(channels)
    rate = max_wavelength ** -(number // 2 * 2 / channels)
    numbers: Any = tf.range(tf.shape(x)[1])
    if positions is not None:
        numbers = _checked_tokens(positions, x, "positions", "PositionalEncoding")
    position = tf.cast(numbers, tf.float32)[..., None]
    # A cosine is a sine that is a quarter ahead.
    shift = tf.constant(number % 2 * np.pi / 2, tf.float32)
    angle = position * tf.constant(rate, tf.float32) + shift
    return x + tf.cast(tf.sin(angle), x.dtype)
