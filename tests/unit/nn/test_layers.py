"""Layers by name: their numbers against NumPy, their names, their initial values."""

from __future__ import annotations

import itertools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from towerpack import LayerError
from towerpack.nn import (
    LSTM,
    AvgPooling,
    BatchNorm,
    Conv2D,
    Conv2DTranspose,
    Deconv2D,
    Dropout,
    FullyConnected,
    GlobalAvgPooling,
    LeakyReLU,
    MaxPooling,
    ReLU,
    SeparableConv2D,
    Sigmoid,
    Tanh,
    argscope,
    register_layer,
)
from towerpack.nn._batch_norm import FusedBatchNormalization
from towers import MODES, fill, numbers, runner, spec, tower_of, traced, variables

IMAGE = (2, 6, 5, 4)


# ------------------------------------------------------------------ NumPy's side


def padded(
    x: np.ndarray, size: tuple[int, int], stride: tuple[int, int], same: bool, fill_with=0.0
):
    if not same:
        return x
    pads = []
    for n, k, s in zip(x.shape[1:3], size, stride, strict=True):
        total = max((-(-n // s) - 1) * s + k - n, 0)
        pads.append((total // 2, total - total // 2))
    return np.pad(x, [(0, 0), *pads, (0, 0)], constant_values=fill_with)


def windows(x: np.ndarray, size: tuple[int, int], stride: tuple[int, int]) -> np.ndarray:
    """[batch, out height, out width, h, w, channels]."""
    view = np.lib.stride_tricks.sliding_window_view(x, size, axis=(1, 2))
    return np.moveaxis(view[:, :: stride[0], :: stride[1]], 3, 5)


def conv(x, kernel, bias, stride=(1, 1), same=True, dilation=1, groups=1):
    if dilation > 1:
        h, w = ((k - 1) * dilation + 1 for k in kernel.shape[:2])
        wide = np.zeros((h, w, *kernel.shape[2:]), kernel.dtype)
        wide[::dilation, ::dilation] = kernel
        kernel = wide
    size = kernel.shape[:2]
    parts = []
    for xs, ks in zip(np.split(x, groups, -1), np.split(kernel, groups, -1), strict=True):
        seen = windows(padded(xs, size, stride, same), size, stride)
        parts.append(np.einsum("nabhwc,hwco->nabo", seen, ks))
    return np.concatenate(parts, -1) + bias


def conv_transpose(x, kernel, bias, stride):
    """'same': every pixel paints the kernel around it; the edge is cut to stride x size."""
    n, height, width, _ = x.shape
    kh, kw, out, _ = kernel.shape
    full = np.zeros((n, (height - 1) * stride + kh, (width - 1) * stride + kw, out), x.dtype)
    for i, j in itertools.product(range(height), range(width)):
        full[:, i * stride : i * stride + kh, j * stride : j * stride + kw] += np.einsum(
            "nc,hwoc->nhwo", x[:, i, j], kernel
        )
    top, left = (max(k - stride, 0) // 2 for k in (kh, kw))
    return full[:, top : top + height * stride, left : left + width * stride] + bias


def pool(x, size, stride, same, reduce):
    edge = -np.inf if reduce is np.max else np.nan
    seen = windows(padded(x, size, stride, same, edge), size, stride)
    return (np.max if reduce is np.max else np.nanmean)(seen, axis=(3, 4))


def relu(x):
    return np.maximum(x, 0)


CASES = {
    "conv": (
        lambda x: Conv2D("a", x, 3, 3),
        lambda x, w: conv(x, w["a/kernel"], w["a/bias"]),
    ),
    "conv old names": (
        lambda x: Conv2D(
            "a", x, out_channel=3, kernel_shape=3, stride=2, padding="VALID", nl=tf.nn.relu
        ),
        lambda x, w: relu(conv(x, w["a/kernel"], w["a/bias"], (2, 2), same=False)),
    ),
    "conv oblong": (
        lambda x: Conv2D("a", x, 3, (3, 2), strides=[2, 1], activation="relu", use_bias=False),
        lambda x, w: relu(conv(x, w["a/kernel"], 0, (2, 1))),
    ),
    "conv dilated": (
        lambda x: Conv2D("a", x, 3, np.int64(2), dilation_rate=2),
        lambda x, w: conv(x, w["a/kernel"], w["a/bias"], dilation=2),
    ),
    "conv split": (
        lambda x: Conv2D("a", x, 6, 3, split=2),
        lambda x, w: conv(x, w["a/kernel"], w["a/bias"], groups=2),
    ),
    "deconv": (
        lambda x: Deconv2D("a", x, 3, 4, stride=2, nl=ReLU),
        lambda x, w: relu(conv_transpose(x, w["a/kernel"], w["a/bias"], 2)),
    ),
    "deconv odd": (
        lambda x: Conv2DTranspose("a", x, 3, 3, 2),
        lambda x, w: conv_transpose(x, w["a/kernel"], w["a/bias"], 2),
    ),
    "full": (
        lambda x: FullyConnected("a", x, out_dim=7, nl=tf.tanh),
        lambda x, w: np.tanh(x.reshape(2, -1) @ w["a/kernel"] + w["a/bias"]),
    ),
    "norm": (
        lambda x: BatchNorm("a", x, epsilon=1e-3),
        lambda x, w: (
            (x - w["a/moving_mean"]) / np.sqrt(w["a/moving_variance"] + 1e-3) * w["a/gamma"]
            + w["a/beta"]
        ),
    ),
    "norm bare": (
        lambda x: BatchNorm("a", x, center=False, scale=False),
        lambda x, w: (x - w["a/moving_mean"]) / np.sqrt(w["a/moving_variance"] + 1e-5),
    ),
    "norm of the batch": (
        lambda x: BatchNorm("a", x, training=True, scale=False, center=False),
        lambda x, w: (x - x.mean((0, 1, 2))) / np.sqrt(x.var((0, 1, 2)) + 1e-5),
    ),
    "max": (lambda x: MaxPooling("a", x, 2), lambda x, w: pool(x, (2, 2), (2, 2), False, np.max)),
    "max old names": (
        lambda x: MaxPooling("a", x, shape=3, stride=(2, 1), padding="SAME"),
        lambda x, w: pool(x, (3, 3), (2, 1), True, np.max),
    ),
    "average": (
        lambda x: AvgPooling("a", x, (2, 3), 1, "same"),
        lambda x, w: pool(x, (2, 3), (1, 1), True, np.mean),
    ),
    "global average": (
        lambda x: GlobalAvgPooling("a", x),
        lambda x, w: x.mean((1, 2)),
    ),
    "dropout in inference": (lambda x: Dropout("a", x, 0.9), lambda x, w: x),
    "relu": (lambda x: ReLU("a", x), lambda x, w: relu(x)),
    "leaky": (lambda x: LeakyReLU(x, 0.1), lambda x, w: np.where(x > 0, x, 0.1 * x)),
    "tanh": (lambda x: Tanh(x), lambda x, w: np.tanh(x)),
    "sigmoid": (lambda x: Sigmoid("a", x), lambda x, w: 1 / (1 + np.exp(-x))),
}


@pytest.mark.parametrize("case", CASES)
def test_numbers(case: str) -> None:
    layer, reference = CASES[case]
    tower = tower_of(layer, spec(None, *IMAGE[1:]))
    tower.trace(is_training=False)
    weights = fill(tower)
    x = numbers(*IMAGE)
    for mode in MODES:
        y = runner(tower, mode)(x)["y"]
        np.testing.assert_allclose(y, reference(x, weights), rtol=1e-4, atol=1e-4, err_msg=mode)


def test_layers_are_compiled() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        x = MaxPooling("max", BatchNorm("bn", Conv2D("conv", x, 4, 3)), 2)
        return FullyConnected("full", Dropout("drop", x), 3)

    tower = tower_of(build, spec(None, *IMAGE[1:]))
    tower.trace(is_training=True)
    x, before = numbers(*IMAGE), fill(tower)
    trained = runner(tower, "xla", is_training=True)(x)["y"]
    after = variables(tower)
    moved = ["bn/moving_mean", "bn/moving_variance"]
    assert [name for name in before if (before[name] != after[name]).any()] == moved
    predicted = runner(tower, "eager")(x)["y"]
    np.testing.assert_allclose(runner(tower, "xla")(x)["y"], predicted, rtol=1e-3, atol=1e-4)
    assert not np.allclose(trained, predicted, atol=1e-2)


# ------------------------------------------------------------------ dropout


@pytest.mark.parametrize("mode", MODES)
def test_dropout_drops_the_share_it_is_given(mode: str) -> None:
    tower = tower_of(lambda x: Dropout("d", x, 0.2), spec(None, 100))
    y = runner(tower, mode, is_training=True)(np.ones([200, 100], np.float32))["y"].numpy()
    assert set(np.unique(y)) == {np.float32(0), np.float32(1.25)}
    assert 0.18 < np.mean(y == 0) < 0.22


def test_dropout_is_a_function_of_seed_name_replica_and_step() -> None:
    def mask(name="d", seed=0, step=3, index=0) -> bytes:
        tower = tower_of(lambda x: Dropout(name, x, 0.5), spec(None, 64), seed=seed)
        result = tower(np.ones([8, 64], np.float32), index=index, total=2, step=tf.constant(step))
        return result.outputs["y"].numpy().tobytes()

    assert mask() == mask()
    assert len({mask(), mask(name="e"), mask(seed=1), mask(step=4), mask(index=1)}) == 5


def test_the_same_dropout_twice_draws_two_masks() -> None:
    from towerpack.nn import reuse_scope

    def twice(x: tf.Tensor) -> tf.Tensor:
        one = Dropout("d", x)
        with reuse_scope():
            return tf.stack([one, Dropout("d", x)])

    one, two = tower_of(twice, spec(None, 64))(np.ones([8, 64], np.float32)).outputs["y"].numpy()
    assert (one != two).any()


@pytest.mark.parametrize("rate", [-0.1, 1, 1.5])
def test_dropout_of_a_senseless_share(rate: float) -> None:
    with pytest.raises(LayerError, match=rf"Dropout 'd': rate must be in \[0, 1\), got {rate}"):
        tower_of(lambda x: Dropout("d", x, rate)).trace(is_training=True)


@pytest.mark.parametrize("rate", [0.5, np.float32(0.5), tf.constant(0.5), np.array(0.5)])
def test_dropout_takes_any_number(rate: Any) -> None:
    tower = tower_of(lambda x: Dropout("d", x, rate), spec(None, 100))
    y = runner(tower, "graph", is_training=True)(tf.ones([4, 100]))["y"].numpy()
    assert set(np.unique(y)) == {0, 2}


# ------------------------------------------------------------------ batch normalisation


@pytest.mark.parametrize("mode", MODES)
def test_batch_norm_moves_its_averages_in_training_only(mode: str) -> None:
    tower = tower_of(lambda x: BatchNorm("bn", x, decay=0.75))
    x = numbers(32, 6) + 3
    runner(tower, mode)(x)
    assert not variables(tower)["bn/moving_mean"].any()
    runner(tower, mode, is_training=True)(x)
    moved = variables(tower)
    np.testing.assert_allclose(moved["bn/moving_mean"], 0.25 * x.mean(0), rtol=1e-4)
    np.testing.assert_allclose(moved["bn/moving_variance"], 0.75 + 0.25 * x.var(0), rtol=1e-4)
    assert list(tower.store.trainable()) == ["bn/gamma", "bn/beta"]


# ------------------------------------------------------------------ initial values


def test_initial_values_follow_he_et_al() -> None:
    tower = tower_of(lambda x: FullyConnected("fc", x, 200), spec(None, 200))
    tower.trace(is_training=True)
    kernel = variables(tower)["fc/kernel"]
    assert kernel.std() == pytest.approx((2 / 200) ** 0.5, rel=0.02)
    assert np.abs(kernel).max() > 3 * kernel.std()  # not truncated
    assert not variables(tower)["fc/bias"].any()


INITIALIZERS = {
    "ours": None,
    "by name": "glorot_uniform",
    "Keras": keras.initializers.HeNormal(),
    "TensorFlow": tf.random_normal_initializer(stddev=0.1),
    "TensorFlow 1": tf.compat.v1.truncated_normal_initializer(stddev=0.1),
    "function": lambda shape, dtype=None: tf.random.uniform(shape, dtype=dtype),
}


@pytest.mark.parametrize("kind", INITIALIZERS)
def test_initial_values_are_a_function_of_seed_and_name(kind: str) -> None:
    def made(names: str, seed: int = 0) -> dict[str, np.ndarray]:
        def build(x: tf.Tensor) -> tf.Tensor:
            with argscope([FullyConnected, Conv2D], W_init=INITIALIZERS[kind]):
                for name in names:
                    x = FullyConnected(name, x, 6)
            return x

        tower = tower_of(build, seed=seed)
        tower.trace(is_training=True)
        return variables(tower)

    first, again, other = made("ab"), made("xba"), made("ab", seed=1)
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
    assert (first["a/kernel"] != first["b/kernel"]).any()
    assert (first["a/kernel"] != other["a/kernel"]).any()


def test_an_initializer_with_a_seed_keeps_it() -> None:
    given = keras.initializers.GlorotNormal(seed=5)
    tower = tower_of(lambda x: FullyConnected("a", x, 4, W_init=given, b_init="ones"))
    tower.trace(is_training=True)
    found = variables(tower)
    np.testing.assert_array_equal(found["a/kernel"], given((6, 4)))
    np.testing.assert_array_equal(found["a/bias"], np.ones(4))


def test_initial_values_as_an_array() -> None:
    weights = numbers(6, 4)
    tower = tower_of(lambda x: FullyConnected("a", x, 4, W_init=weights))
    tower.trace(is_training=True)
    np.testing.assert_array_equal(variables(tower)["a/kernel"], weights)


def test_no_initializer_for_a_bias_is_zeros() -> None:
    tower = tower_of(lambda x: FullyConnected("a", x, 4, bias_initializer=None))
    tower.trace(is_training=True)
    assert not variables(tower)["a/bias"].any()


# ------------------------------------------------------------------ names, activations, precision


def test_variable_names() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        h = BatchNorm("bn", Conv2D("group0/conv", x, 2, 3))
        return FullyConnected("fc", Deconv2D("up", h, 2, 3, use_bias=False), 3)

    assert traced(tower_of(build, spec(None, *IMAGE[1:]))) == [
        "group0/conv/kernel",
        "group0/conv/bias",
        "bn/gamma",
        "bn/beta",
        "bn/moving_mean",
        "bn/moving_variance",
        "up/kernel",
        "fc/kernel",
        "fc/bias",
    ]


def test_every_output_has_a_name() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        return Sigmoid(ReLU("r", FullyConnected("fc", x, 3)))

    trace = tower_of(build).trace(is_training=True)
    assert list(trace.result.outputs) == ["fc/output", "r/output", "y", "cost"]


@register_layer
def NormAndReLU(x: tf.Tensor) -> tf.Tensor:
    return ReLU(BatchNorm("bn", x))


def test_a_layer_as_activation_lives_in_the_scope_of_its_layer() -> None:
    names = traced(tower_of(lambda x: FullyConnected("fc", x, 3, nl=NormAndReLU, use_bias=False)))
    assert names[:2] == ["fc/kernel", "fc/normandrelu/bn/gamma"]


def test_mixed_precision_computes_in_bfloat16_and_keeps_float32() -> None:
    tower = tower_of(lambda x: FullyConnected("fc", x, 3), policy="mixed_bfloat16")
    assert tower.trace(is_training=True).result.outputs["fc/output"].dtype == tf.bfloat16
    assert variables(tower)["fc/kernel"].dtype == np.float32


# ------------------------------------------------------------------ mistakes


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (lambda x: Conv2D("c", x, 3, 3), "Conv2D 'c' needs an input of rank 4"),
        (lambda x: MaxPooling("c", x, 2), "MaxPooling 'c' needs an input of rank 4"),
        (lambda x: GlobalAvgPooling("c", x), "GlobalAvgPooling 'c' needs an input of rank 4"),
        (lambda x: Conv2D("c", x[:, None, None], 3, (3, 3, 3)), r"2 integers, got \(3, 3, 3\)"),
        (lambda x: Conv2D("c", x[:, None, None], 3, 2.5), "2 integers, got 2.5"),
        (
            lambda x: Conv2D("c", x[:, None, None], 3, 2, 1, "full"),
            "padding must be one of same, valid, got 'full'",
        ),
        (
            lambda x: MaxPooling("c", x[:, None, None], 2, padding=1),
            "padding must be one of same, valid, got 1",
        ),
        (lambda x: AvgPooling("c", x[:, None, None], 2, data_format="CHWN"), "'CHWN'"),
    ],
)
def test_mistakes_are_named(layer, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tower_of(layer).trace(is_training=True)


def test_full_connection_of_unknown_size() -> None:
    with pytest.raises(LayerError, match="needs a static input size") as caught:
        tower_of(lambda x: FullyConnected("fc", x, 3), spec(None, None, 6)).trace(is_training=True)
    assert "GlobalAvgPooling" in str(caught.value)


def test_layers_need_a_tower() -> None:
    with pytest.raises(LayerError, match="must be called inside a tower function"):
        FullyConnected("fc", tf.zeros([1, 2]), 3)


def test_full_connection_takes_rank_two_and_more() -> None:
    for shape in [(4,), (2, 3), (2, 3, 4)]:
        tower = tower_of(lambda x: FullyConnected("fc", x, 3), spec(None, *shape))
        tower.trace(is_training=True)
        assert variables(tower)["fc/kernel"].shape == (np.prod(shape), 3)


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
@pytest.mark.parametrize("parts", [{}, {"center": False}, {"scale": False}])
def test_batch_norm_of_a_later_replica_normalises_alike_and_moves_nothing(
    data_format: str, parts: dict[str, bool]
) -> None:
    x = np.random.default_rng(0).normal(2, 3, (8, 4, 5, 6)).astype(np.float32)
    tower = tower_of(
        lambda x: BatchNorm("bn", x, data_format=data_format, **parts), spec(None, 4, 5, 6)
    )
    first = tower(tf.constant(x), index=0, total=2).outputs["bn/output"].numpy()
    variables = tower.store.named_variables()
    before = {name: v.numpy() for name, v in variables.items()}
    second = tower(tf.constant(x), index=1, total=2).outputs["bn/output"].numpy()
    np.testing.assert_allclose(second, first, rtol=1e-4, atol=1e-5)
    for name, value in before.items():
        np.testing.assert_array_equal(variables[name].numpy(), value)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("shape", [(4, 3, 2, 5), (4, 5), (1, 1, 1, 5)])
@pytest.mark.parametrize("axis", [-1, 1])
def test_batch_norm_in_one_operation_is_that_of_keras(
    dtype: str, shape: tuple[int, ...], axis: int
) -> None:
    """Results, gradients and moving averages."""
    images = tf.cast(tf.random.stateless_normal(shape, (1, 2)) * 3 + 1, dtype)
    weights = tf.cast(tf.random.stateless_normal(shape, (3, 4)), dtype)

    def trained(kind: type[keras.layers.BatchNormalization]) -> list[np.ndarray]:
        layer: Any = kind(axis=axis, momentum=0.7, epsilon=1e-3, dtype=dtype)
        layer.build(shape)
        layer.gamma.assign(np.linspace(-1, 2, layer.gamma.shape[0]))
        with tf.GradientTape() as tape:
            tape.watch(images)
            y = layer(images, training=True)
            cost = tf.reduce_sum(y * weights)
        wanted = [images, *(v.value for v in layer.trainable_variables)]
        found = [y, *tape.gradient(cost, wanted), *(v.value for v in layer.variables)]
        return [tf.cast(value, tf.float32).numpy() for value in found]

    near = 0.05 if dtype == "bfloat16" else 1e-4
    pairs = zip(
        trained(FusedBatchNormalization), trained(keras.layers.BatchNormalization), strict=True
    )
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs, rtol=near, atol=near)


def test_roles_of_one_layer_draw_differently() -> None:
    """Of equal sizes and initializers, so that nothing but their seeds differs."""

    def layers(x: tf.Tensor) -> tf.Tensor:
        some = {"kernel_initializer": "random_normal", "bias_initializer": "random_normal"}
        FullyConnected("fc", x[:, :1], 4, **some)
        Conv2D("conv", x[:, None, None, :1], 4, 1, **some)
        LSTM("lstm", x[:, None, :4], 4, recurrent_initializer="glorot_uniform")
        SeparableConv2D("separable", x[:, None, None, :1], 1, 1)
        BatchNorm("bn", x, gamma_initializer="random_normal", beta_initializer="random_normal")
        return x

    tower = tower_of(layers)
    tower.trace(is_training=True)
    drawn = {n: v for n, v in variables(tower).items() if len(np.unique(v)) > 1 or v.size == 1}
    for layer, roles in (("fc", 2), ("conv", 2), ("lstm", 2), ("separable", 2), ("bn", 2)):
        values = [v.tobytes() for name, v in drawn.items() if name.startswith(f"{layer}/")]
        values = [v for v in values if any(v)]  # without the biases of zeros
        assert len(values) >= roles, layer
        assert len({*values}) == len(values), layer
