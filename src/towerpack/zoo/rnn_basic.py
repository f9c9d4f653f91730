"""LSTM language model from Lambda's demo suite."""

from __future__ import annotations

from typing import Any, cast

import keras
import numpy as np
import tensorflow as tf

from towerpack._keras.adapter import has_cudnn
from towerpack.nn import Dropout, Embedding, FullyConnected, get_current_tower_context, scope
from towerpack.nn.keras_layers import keras_layer
from towerpack.ops.recurrence import cudnn_lstm, lstm, lstm_step
from towerpack.zoo.language_model import LanguageModel, State


def net(
    token: tf.Tensor,
    vocab_size: int,
    state: State,
    *,
    units: int = 256,
    layers: int = 2,
    embedding: int = 256,
    dropout: float = 0.0,
    vectors: np.ndarray | None = None,
    gates: tf.Tensor | None = None,
) -> tuple[tf.Tensor, State]:
    """Predict the next tokens with LSTMs. Dropout is only between layers (Zaremba et al. 2014).

    Args:
        token, vocab_size: Tokens int32 [n, time], and number of different tokens.
        state: `c` and `h` of each layer (`c0`, `h0`, `c1`, …), float32 [n, units].
        units, layers: Units of each layer, and number of layers.
        embedding: Length of a token's vector, if `vectors` is None.
        dropout: Dropout rate.
        vectors: Initial vectors of the tokens, float32 [vocab_size, any length].
        gates: Result of `constants`, in inference.

    Returns:
        Logits [n, time, vocab_size], and the state after these tokens.
    """
    size = embedding if vectors is None else vectors.shape[1]
    flat = tf.reshape(tf.transpose(tf.cast(token, tf.int64)), [-1])
    time = token.shape[1] or tf.shape(token)[1]
    x = _vectors_of(flat, vocab_size, size, vectors) if gates is None else tf.zeros([])
    after: dict[str, tf.Tensor] = {}
    for i in range(layers):
        x = Dropout(f"dropout{i}", x, dropout) if dropout and gates is None else x
        layer = _layer(i, size if i == 0 else units, units)
        c, h = f"c{i}", f"h{i}"
        if gates is None and layer.fits_cudnn(x):
            x, after[c], after[h] = layer.on_cudnn(x, state[c], state[h], time=time)
            continue
        known = i == 0 and gates is not None
        added = tf.gather(gates, flat) if known else layer.gates(x)
        x, after[c], after[h] = layer(added, state[c], state[h], time=time)
    x = Dropout(f"dropout{layers}", x, dropout) if dropout and gates is None else x
    if token.shape[1] != 1:
        x = tf.reshape(tf.transpose(tf.reshape(x, [time, -1, units]), [1, 0, 2]), [-1, units])
    logits = FullyConnected("logits", x, vocab_size, kernel_initializer="glorot_uniform")
    return tf.reshape(logits, [-1, time, vocab_size]), after


def zero_state(rows: Any, *, units: int = 256, layers: int = 2, **_: Any) -> State:
    """Return the state before a text: zero `c` and `h` of each layer, float32 [rows, units].

    Args:
        rows: Number of texts.
        units, layers: See `net`.
    """
    return {f"{name}{i}": tf.zeros([rows, units]) for i in range(layers) for name in ("c", "h")}


def constants(
    vocab_size: int,
    *,
    units: int = 256,
    embedding: int = 256,
    vectors: np.ndarray | None = None,
    **_: Any,
) -> dict[str, tf.Tensor]:
    """Return the contribution of each token to the first layer's gates: [vocab_size, 4 units].

    Args:
        vocab_size, units, embedding, vectors: See `net`.
    """
    size = embedding if vectors is None else vectors.shape[1]
    x = _vectors_of(tf.range(vocab_size), vocab_size, size, vectors)
    return {"gates": _layer(0, size, units).gates(x)}


NETWORK = LanguageModel(net, zero_state, constants)


def _vectors_of(
    tokens: tf.Tensor, vocab_size: int, size: int, vectors: np.ndarray | None
) -> tf.Tensor:
    constant: Any = keras.initializers.Constant
    start = "uniform" if vectors is None else constant(vectors)
    return Embedding("embedding", tokens, vocab_size, size, embeddings_initializer=start)


def _layer(i: int, size: int, units: int) -> _Layer:
    with scope(f"lstm{i}"):
        return keras_layer("LSTM", _Layer, tf.zeros([1, 1, size]), 3, units=units)


class _Layer(keras.layers.Layer):
    """Layer that calls `towerpack.ops.recurrence.lstm` with the weights of `keras.layers.LSTM`."""

    def __init__(self, *, units: int, **config: Any) -> None:
        super().__init__(autocast=False, **config)
        self.units = units

    def build(self, input_shape: Any) -> None:
        units, constant = self.units, cast("Any", keras.initializers.Constant)
        forget = np.repeat([0.0, 1.0, 0.0, 0.0], units)  # Jozefowicz et al. 2015
        self.kernel = self.add_weight(name="kernel", shape=(input_shape[-1], 4 * units))
        self.recurrent_kernel = self.add_weight(
            name="recurrent_kernel", shape=(units, 4 * units), initializer="orthogonal"
        )
        self.bias = self.add_weight(name="bias", shape=(4 * units,), initializer=constant(forget))

    def gates(self, x: tf.Tensor) -> tf.Tensor:
        """Return the contribution of inputs [n, size] and bias to the gates: [n, 4 units]."""
        kernel = self._cast(self.kernel)
        return tf.cast(tf.matmul(tf.cast(x, kernel.dtype), kernel), tf.float32) + self.bias

    def fits_cudnn(self, x: tf.Tensor) -> bool:
        """Return whether cuDNN can compute a training step. Exported models run without a GPU."""
        plain = self.compute_dtype == "float32" and get_current_tower_context().is_training
        return plain and "CPU:0" not in x.device and has_cudnn()

    def on_cudnn(
        self, x: tf.Tensor, c: tf.Tensor, h: tf.Tensor, *, time: Any
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Same as `call`, from the inputs [time * n, size] instead of their gates."""
        x = tf.reshape(x, [time, -1, x.shape[1]])
        weights = [self._cast(w) for w in (self.kernel, self.recurrent_kernel, self.bias)]
        outputs, c = cudnn_lstm(x, weights, c, h)
        return tf.reshape(outputs, [-1, self.units]), c, outputs[-1]

    def call(
        self, gates: tf.Tensor, c: tf.Tensor, h: tf.Tensor, *, time: Any
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        kernel = self._cast(self.recurrent_kernel)
        if isinstance(time, int) and time == 1:
            x, c = lstm_step(gates, kernel, c, h)
            return x, c, x
        outputs, c = lstm(tf.reshape(gates, [time, -1, 4 * self.units]), kernel, c, h)
        return tf.reshape(outputs, [-1, self.units]), c, outputs[-1]

    def _cast(self, weights: Any) -> tf.Tensor:
        return tf.cast(tf.convert_to_tensor(weights), self.compute_dtype)
