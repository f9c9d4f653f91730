"""Batch normalisation."""

from __future__ import annotations

from typing import Any, cast

import keras
import tensorflow as tf

from towerpack._core.errors import LayerError
from towerpack.nn._context import get_current_tower_context
from towerpack.nn._layers import data_format_of, static_shape
from towerpack.nn._register import register_layer
from towerpack.nn._scope import full_name

_FUSED = (tf.float32, tf.bfloat16, tf.float16)


class FusedBatchNormalization(keras.layers.BatchNormalization):
    """Keras's layer, whose work one operation of TensorFlow does where it can.

    Keras 3.15 puts it together from a dozen, in float32: a ResNet-20 took a quarter longer on a
    CPU. Inputs of rank 4 with statistics of their own batch are normalised in one.
    """

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> tf.Tensor:
        """As in Keras."""
        known = inputs.shape.rank == 4 and inputs.dtype in _FUSED and mask is None
        if not (training and self.trainable and known) or self.synchronized:
            given: Any = super().call(inputs, training=training, mask=mask)
            return given
        y, mean, variance = self.normalised(inputs)
        keep = self.momentum
        moving: list[Any] = [self.moving_mean, self.moving_variance]
        for average, value in zip(moving, (mean, variance), strict=True):
            average.assign(tf.cast(average, value.dtype) * keep + value * (1.0 - keep))
        return y

    def normalised(self, inputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Normalise by the batch's own statistics, and leave the moving averages alone.

        Returns:
            The result, and mean and variance in float32.
        """
        layer: Any = self
        channels = inputs.shape[self.axis]
        wide = inputs if inputs.shape.rank == 4 else tf.reshape(inputs, [-1, 1, 1, channels])
        y, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
            x=wide if wide.dtype in _FUSED else tf.cast(wide, tf.float32),
            scale=tf.cast(layer.gamma.value, tf.float32) if self.scale else tf.ones([channels]),
            offset=tf.cast(layer.beta.value, tf.float32) if self.center else tf.zeros([channels]),
            mean=tf.zeros([0]),
            variance=tf.zeros([0]),
            epsilon=self.epsilon,
            data_format="NCHW" if self.axis == 1 else "NHWC",
            is_training=True,
        )
        # Of the squares, TensorFlow has divided by one less than their number.
        number = tf.cast(tf.size(inputs) // channels, tf.float32)
        biased = variance * (number - 1.0) / tf.maximum(number, 1.0)
        return tf.cast(tf.reshape(y, tf.shape(inputs)), self.compute_dtype), mean, biased


@register_layer
def BatchNorm(
    x: tf.Tensor,
    *,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    training: bool | None = None,
    center: bool = True,
    scale: bool = True,
    sync_statistics: bool = False,
    data_format: str = "channels_last",
) -> tf.Tensor:
    """Batch normalisation (Ioffe & Szegedy 2015) over all but the channels.

    Variables `gamma`, `beta` (trained) and `moving_mean`, `moving_variance`. Each replica
    normalises by the statistics of its own batch. The moving averages are those of all replicas
    where each has its own copy of the variables, and those of the first where they share them.

    Args:
        x: [batch, channels] or [batch, height, width, channels].
        momentum: Share of the old average that is kept in each step. Old spelling: `decay=`.
        epsilon: Added to the variance.
        training: Use the batch's own statistics; None takes the tower's `is_training`.
        center: Have `beta`.
        scale: Have `gamma`.
        sync_statistics: Normalise by the statistics of the batches of all replicas. It takes an
            all-reduce for each layer and step.
        data_format: Where the channels are in an input of rank 4.

    Raises:
        LayerError: Replicas that share their variables cannot synchronise statistics.
    """
    shape = static_shape(x, None, "BatchNorm")
    first = len(shape) == 4 and data_format_of(data_format) == "channels_first"
    context = get_current_tower_context()
    layer = context.store.layer(
        FusedBatchNormalization,
        shape,
        axis=1 if first else -1,
        momentum=momentum,
        epsilon=epsilon,
        center=center,
        scale=scale,
        synchronized=sync_statistics,
    )
    training = context.is_training if training is None else training
    if training and sync_statistics and context.total > 1 and not context.mirrored:
        raise LayerError(
            f"BatchNorm '{full_name()}': sync_statistics=True needs replicas that each have their "
            "own copy of the variables.",
            fix="train with SyncMultiGPUTrainer or MultiWorkerTrainer, or leave it out",
        )
    if training and context.index > 0 and not context.mirrored:
        return cast("FusedBatchNormalization", layer).normalised(x)[0]
    return layer(x, training=training)


@register_layer(use_scope=None)
def BNReLU(x: tf.Tensor) -> tf.Tensor:
    """`BatchNorm` called `bn`, then ReLU: as an activation, `Conv2D(…, activation=BNReLU)`.

    `argscope(BatchNorm, …)` gives it its arguments.
    """
    return tf.nn.relu(BatchNorm("bn", x))
