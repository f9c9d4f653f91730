"""Recurrence over time, with gradients computed for all time steps at once where possible."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def lstm(
    gates: tf.Tensor, kernel: tf.Tensor, c: tf.Tensor, h: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the outputs and the last cell state of an LSTM with forget gates.

    Hochreiter & Schmidhuber 1997, Gers et al. 2000. The backward loop has one matrix product and
    five vector operations per step. The gradient of `kernel` is one product over all steps. Matrix
    products use the dtype of `kernel`, such as bfloat16. Everything else is float32.

    Args:
        gates: Contribution of inputs and bias to the gates, float32 [time, n, 4 units], in Keras's
            order: input, forget, candidate, output.
        kernel: Weights of the previous output, [units, 4 units].
        c: Initial cell state, float32 [n, units].
        h: Initial output, float32 [n, units].

    Returns:
        Outputs [time, n, units], and the last cell state [n, units].
    """
    # tanh(x) = 2 sigmoid(2 x) - 1, so one sigmoid computes all four gates.
    scale = tf.repeat(tf.constant([1.0, 1.0, 2.0, 1.0]), kernel.shape[0])
    return _sequence(gates * scale, kernel * tf.cast(scale, kernel.dtype), c, h)


def cudnn_lstm(
    inputs: tf.Tensor, weights: Sequence[tf.Tensor], c: tf.Tensor, h: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the result of `lstm`, computed by NVIDIA's cuDNN on a GPU.

    Args:
        inputs: float32 [time, n, size].
        weights: Weights of the inputs [size, 4 units] and of the previous output [units, 4 units],
            and bias [4 units].
        c, h: Same as for `lstm`.
    """
    # cuDNN has the gates in Keras's order, transposed, and a second bias.
    *kernels, bias = weights
    gates = [gate for kernel in kernels for gate in tf.split(kernel, 4, 1)]
    flat = [tf.reshape(tf.transpose(gate), [-1]) for gate in gates]
    outputs, _, c_T, _, _ = tf.raw_ops.CudnnRNNV3(
        input=inputs,
        input_h=h[None],
        input_c=c[None],
        params=tf.concat([*flat, tf.zeros_like(bias), bias], 0),
        sequence_lengths=tf.fill([tf.shape(inputs)[1]], tf.shape(inputs)[0]),
        rnn_mode="lstm",
        time_major=True,
    )
    return outputs, c_T[0]


def lstm_step(
    gates: tf.Tensor, kernel: tf.Tensor, c: tf.Tensor, h: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the output and the cell state of one step of `lstm`.

    Args:
        gates: float32 [n, 4 units].
        kernel, c, h: Same as for `lstm`.
    """
    i, f, z, o = tf.split(gates + _product(h, kernel), 4, 1)
    c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(z)
    return tf.sigmoid(o) * tf.tanh(c), c


def _product(x: tf.Tensor, kernel: tf.Tensor, transpose_a: bool = False) -> tf.Tensor:
    product = tf.matmul(tf.cast(x, kernel.dtype), kernel, transpose_a=transpose_a)
    return tf.cast(product, tf.float32)


@tf.custom_gradient
def _sequence(gates: tf.Tensor, kernel: tf.Tensor, c_0: tf.Tensor, h_0: tf.Tensor) -> Any:
    units: Any = kernel.shape[0]
    steps = gates.shape[0] or tf.shape(gates)[0]
    row = gates.shape[1]

    def array(size: int) -> tf.TensorArray:
        return tf.TensorArray(tf.float32, steps, element_shape=[row, size])

    inputs = array(4 * units).unstack(gates)

    def forwards(t: Any, c: Any, h: Any, cs: Any, ss: Any) -> Any:
        s = tf.sigmoid(inputs.read(t) + _product(h, kernel))
        i, f, z, o = tf.split(s, 4, 1)
        c = f * c + i * (2 * z - 1)
        return t + 1, c, o * tf.tanh(c), cs.write(t, c), ss.write(t, s)

    first = (tf.constant(0), c_0, h_0, array(units), array(4 * units))
    # Without `maximum_iterations`, whose condition a GPU computes while the host waits.
    _, c_T, _, cs, ss = tf.while_loop(lambda t, *_: t < steps, forwards, first)
    c_t, s = cs.stack(), ss.stack()
    i, f, z, o = tf.split(s, 4, 2)
    tanh_c = tf.tanh(c_t)
    h_t = o * tanh_c

    def gradient(dh_t: tf.Tensor, dc_T: tf.Tensor) -> tuple[tf.Tensor, ...]:
        c_tm1 = tf.concat([c_0[None], c_t[:-1]], 0)
        h_tm1 = tf.concat([h_0[None], h_t[:-1]], 0)
        # Derivative with respect to each gate before its sigmoid, per gradient of c (h for output).
        by_gate = tf.concat([2 * z - 1, c_tm1, 2 * i, tanh_c], 2)
        slopes = array(4 * units).unstack(by_gate * s * (1 - s))
        through = array(units).unstack(o * (1 - tanh_c * tanh_c))
        forget, dh = array(units).unstack(f), array(units).unstack(dh_t)
        transposed = tf.transpose(kernel)

        def backwards(t: Any, dc: Any, dh_next: Any, gradients: Any) -> Any:
            dh_now = dh_next + dh.read(t)
            dc = dc + dh_now * through.read(t)
            d_gates = tf.concat([dc, dc, dc, dh_now], 1) * slopes.read(t)
            dh_next = _product(d_gates, transposed)
            return t - 1, dc * forget.read(t), dh_next, gradients.write(t, d_gates)

        last = (steps - 1, dc_T, tf.zeros_like(h_0), array(4 * units))
        _, dc_0, dh_0, gradients = tf.while_loop(lambda t, *_: t >= 0, backwards, last)
        d_gates = gradients.stack()
        flat = tf.cast(tf.reshape(d_gates, [-1, 4 * units]), kernel.dtype)
        d_kernel = _product(tf.reshape(h_tm1, [-1, units]), flat, transpose_a=True)
        return d_gates, tf.cast(d_kernel, kernel.dtype), dc_0, dh_0

    return (h_t, c_T), gradient
