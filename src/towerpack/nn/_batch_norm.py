import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras
import tensorflow as tf

from towerpack._core.errors import LayerError
from towerpack._keras.adapter import freezable_batch_norms, moving_mean_of
from towerpack.nn._context import get_current_tower_context
from towerpack.nn._register import register_layer
from towerpack.nn.keras_layers import apply_layer, channel_axis, check_groups, keras_layer
from towerpack.nn.scopes import full_name

_FUSED = (tf.float32, tf.bfloat16, tf.float16)
# Predicates of the enclosing `frozen_statistics` scopes: whether a layer is frozen.
_frozen_tests: ContextVar[tuple[Callable[[Any], bool], ...]] = ContextVar("frozen", default=())


class FusedBatchNormalization(keras.layers.BatchNormalization):
    """Keras batch normalization that uses TensorFlow's fused operation for images in training.

    Keras 3.15 uses a dozen float32 operations, which made a ResNet-20 a quarter slower on a CPU.
    """

    def __init__(self, virtual_batch_size: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.virtual_batch_size = virtual_batch_size

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> tf.Tensor:
        training = training and not is_frozen(self)
        fusable = inputs.shape.rank == 4 and inputs.dtype in _FUSED and mask is None
        plain = not (self.synchronized or self.renorm)
        if training and self.trainable and self.virtual_batch_size:
            y, mean, variance = self._in_parts(inputs, self.virtual_batch_size)
        elif training and self.trainable and fusable and plain:
            y, mean, variance = self._fused(inputs)
        else:
            output: Any = super().call(inputs, training=training, mask=mask)
            return output
        averages: Any = (self.moving_mean, mean), (self.moving_variance, variance)
        for average, value in averages:
            old = tf.cast(average, value.dtype) * self.momentum
            average.assign(old + value * (1.0 - self.momentum))
        return y

    def _fused(self, inputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        layer: Any = self
        channels = inputs.shape[self.axis]
        y, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
            x=inputs,
            scale=tf.cast(layer.gamma.value, tf.float32) if self.scale else tf.ones([channels]),
            offset=tf.cast(layer.beta.value, tf.float32) if self.center else tf.zeros([channels]),
            mean=tf.zeros([0]),
            variance=tf.zeros([0]),
            epsilon=self.epsilon,
            data_format="NCHW" if self.axis == 1 else "NHWC",
            is_training=True,
        )
        # TensorFlow's variance is unbiased, Keras's is not.
        number = tf.cast(tf.size(inputs) // channels, tf.float32)
        biased = variance * (number - 1.0) / tf.maximum(number, 1.0)
        return tf.cast(y, self.compute_dtype), mean, biased

    def _in_parts(self, inputs: tf.Tensor, size: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        layer: Any = self
        shape: Any = tf.shape(inputs)
        message = f"{self.name}: virtual_batch_size={size} must divide the batch size"
        divides: Any = tf.debugging.assert_equal(shape[0] % size, 0, message)
        # Without the dependency, a graph would prune the check. Eagerly it is None.
        with tf.control_dependencies([] if divides is None else [divides]):
            x = tf.identity(inputs)
        x = tf.cast(x, tf.float64 if x.dtype == tf.float64 else tf.float32)
        x = tf.reshape(x, tf.concat([[-1, size], shape[1:]], 0))
        channel = 2 if self.axis == 1 else inputs.shape.rank
        mean, variance = tf.nn.moments(
            x, [i for i in range(1, inputs.shape.rank + 1) if i != channel], keepdims=True
        )
        wide = [-1 if i == channel else 1 for i in range(inputs.shape.rank + 1)]
        offset: Any = tf.cast(tf.reshape(layer.beta, wide), x.dtype) if self.center else None
        scale: Any = tf.cast(tf.reshape(layer.gamma, wide), x.dtype) if self.scale else None
        y = tf.nn.batch_normalization(x, mean, variance, offset, scale, self.epsilon)
        mean, variance = (tf.reshape(tf.reduce_mean(m, 0), [-1]) for m in (mean, variance))
        return tf.cast(tf.reshape(y, shape), self.compute_dtype), mean, variance


@register_layer
def BatchNorm(
    x: tf.Tensor,
    axis: int | None = None,
    *,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    training: bool | None = None,
    center: bool = True,
    scale: bool = True,
    beta_initializer: Any = "zeros",
    gamma_initializer: Any = "ones",
    moving_mean_initializer: Any = "zeros",
    moving_variance_initializer: Any = "ones",
    sync_statistics: bool = False,
    virtual_batch_size: int | None = None,
    data_format: str = "channels_last",
) -> tf.Tensor:
    """Batch normalization (Ioffe & Szegedy 2015) over all axes except the channels.

    Trainable variables: `gamma` and `beta`. Others: `moving_mean` and `moving_variance`. Each
    replica normalizes by the statistics of its own batch. If each replica has its own copy of the
    variables, the moving averages cover all replicas, otherwise only the first one.

    Args:
        x: [batch, channels] or [batch, height, width, channels].
        axis: Axis of the channels, 1 or the last; None for that of `data_format`.
        momentum: Weight of the old moving average in each step. Old spelling: `decay=`.
        epsilon: Added to the variance.
        training: Whether to use and update batch statistics. None means the tower's `is_training`.
            False uses the moving averages and leaves them unchanged.
        center: Whether to add `beta`.
        scale: Whether to multiply by `gamma`.
        beta_initializer, gamma_initializer, moving_mean_initializer, moving_variance_initializer:
            Keras initializers. With "zeros" for `gamma`, a residual block begins as the identity.
        sync_statistics: Whether to normalize by the statistics of all replicas, with an all-reduce
            for each layer and step. Replicas must not share their variables.
        virtual_batch_size: In training, normalize groups of this many datapoints by their own
            statistics ("ghost batch norm", Hoffer et al. 2017). It must divide the batch size.
        data_format: 'channels_last' or 'channels_first'.

    Raises:
        LayerError: An argument is not valid, or the arguments cannot be combined.
    """
    rank = x.shape.rank or 0
    if isinstance(axis, bool) or axis not in (None, 1, -1, rank - 1):
        raise LayerError(
            f"BatchNorm '{full_name()}': axis must be 1 or {rank - 1} (the last) for an input of "
            f"shape {x.shape}, got {axis}."
        )
    if axis is not None:
        data_format = "channels_last" if axis in (-1, rank - 1) else "channels_first"
    context = get_current_tower_context()
    training = context.is_training if training is None else training
    if sync_statistics and virtual_batch_size is not None:
        raise LayerError(
            f"BatchNorm '{full_name()}': pass only one of sync_statistics and virtual_batch_size."
        )
    if training and sync_statistics and context.total > 1 and not context.mirrored:
        raise LayerError(
            f"BatchNorm '{full_name()}': sync_statistics=True needs replicas with separate copies "
            "of the variables, but these replicas share one copy.",
            fix="use SyncMultiGPUTrainer or MultiWorkerTrainer, or set sync_statistics=False",
        )
    if virtual_batch_size is not None:
        size = x.shape[0] or virtual_batch_size
        check_groups("BatchNorm", virtual_batch_size, size, "datapoints")
    layer = keras_layer(
        "BatchNorm",
        FusedBatchNormalization,
        x,
        axis=channel_axis(x, "BatchNorm", data_format),
        momentum=momentum,
        epsilon=epsilon,
        center=center,
        scale=scale,
        beta_initializer=beta_initializer,
        gamma_initializer=gamma_initializer,
        moving_mean_initializer=moving_mean_initializer,
        moving_variance_initializer=moving_variance_initializer,
        synchronized=sync_statistics,
        virtual_batch_size=virtual_batch_size,
    )
    return apply_layer(layer, x, training)


@register_layer
def BatchRenorm(
    x: tf.Tensor,
    rmax: float,
    dmax: float,
    *,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    center: bool = True,
    scale: bool = True,
    data_format: str = "channels_last",
) -> tf.Tensor:
    """Batch renormalization (Ioffe 2017): batch statistics, corrected towards the moving averages.

    Variables are those of `BatchNorm` and `moving_stddev`, `renorm_mean` and `renorm_stddev`.

    Args:
        x: [batch, channels] or [batch, height, width, channels].
        rmax: Limit of the scale correction, which is clipped to [1 / rmax, rmax]; at least 1.
        dmax: Limit of the mean correction, in standard deviations; at least 0.
        momentum, epsilon, center, scale, data_format: Same as in `BatchNorm`.
    """
    if rmax < 1 or dmax < 0:
        raise LayerError(
            f"BatchRenorm '{full_name()}': rmax must be at least 1 and dmax at least 0, "
            f"got {rmax=} and {dmax=}."
        )
    layer = keras_layer(
        "BatchRenorm",
        FusedBatchNormalization,
        x,
        axis=channel_axis(x, "BatchRenorm", data_format),
        momentum=momentum,
        epsilon=epsilon,
        center=center,
        scale=scale,
        renorm=True,
        renorm_clipping={"rmin": 1 / rmax, "rmax": rmax, "dmax": dmax},
    )
    return apply_layer(layer, x, get_current_tower_context().is_training)


@register_layer(use_scope=None)
def BNReLU(x: tf.Tensor, name: str | None = None) -> tf.Tensor:
    """Apply `BatchNorm`, with the name `name` or 'bn', then ReLU.

    Use this layer as an activation: `Conv2D(…, activation=BNReLU)`. Set arguments of the batch
    normalization with `argscope(BatchNorm, …)`.
    """
    return tf.nn.relu(BatchNorm(name or "bn", x))


@contextmanager
def frozen_statistics(regexes: str | Sequence[str]) -> Iterator[None]:
    """Make batch normalization layers in the block use their moving averages without updates.

    This covers `BatchNorm`, `BatchRenorm` and `keras.layers.BatchNormalization`, wherever the
    layers were created. `gamma` and `beta` are still trained, unless they are frozen as well.

    Args:
        regexes: Regular expressions for whole variable names. Layers whose `moving_mean` matches
            are frozen. `TrainConfig(frozen=…)` also does this.
    """
    name_of = get_current_tower_context().store.names_by_id()
    patterns = [regexes] if isinstance(regexes, str) else list(regexes)

    def matches(layer: Any) -> bool:
        name = name_of(moving_mean_of(layer)) or ""
        return any(re.fullmatch(pattern, name) for pattern in patterns)

    freezable_batch_norms(is_frozen)
    token = _frozen_tests.set((*_frozen_tests.get(), matches))
    try:
        yield
    finally:
        _frozen_tests.reset(token)


def is_frozen(layer: Any) -> bool:
    """Return whether an enclosing `frozen_statistics` scope freezes the layer."""
    return any(matches(layer) for matches in _frozen_tests.get())
