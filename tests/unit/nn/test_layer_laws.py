"""Laws over all layers with weights, and what they compute against NumPy, derivatives included."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

import towerpack.nn as nn
from towerpack import LayerError
from towerpack.dataflow import DataFromList, PackSequences
from towerpack.nn import LinearWrap, RegisteredLayer, argscope, reuse_scope
from towerpack.tower import TowerFunction
from towers import fill, numbers, runner, spec, tower_of, variables

IMAGE, SEQUENCE, ROW = (4, 6, 5, 4), (4, 5, 6), (4, 6)
Weights = dict[str, np.ndarray]


# ------------------------------------------------------------------ NumPy's side


def conv(x: np.ndarray, kernel: np.ndarray, groups: int = 1) -> np.ndarray:
    """Over any number of dimensions, 'same', one pixel a step."""
    size = kernel.shape[:-2]
    pads = [(0, 0), *(((k - 1) // 2, k // 2) for k in size), (0, 0)]
    axes = tuple(range(1, 1 + len(size)))
    seen = np.lib.stride_tricks.sliding_window_view(np.pad(x, pads), size, axis=axes)
    letters = "uvw"[: len(size)]
    pairs = zip(np.split(seen, groups, len(size) + 1), np.split(kernel, groups, -1), strict=True)
    return np.concatenate(
        [np.einsum(f"...c{letters},{letters}co->...o", s, k) for s, k in pairs], -1
    )


def depthwise(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    channels, times = kernel.shape[-2:]
    return conv(x, kernel.reshape(*kernel.shape[:2], 1, channels * times), channels)


def standard(x: np.ndarray, axes: tuple[int, ...], w: Weights) -> np.ndarray:
    y = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)
    return y * w["gamma"] + w["beta"]


def in_groups(x: np.ndarray, groups: int, w: Weights) -> np.ndarray:
    parts = [
        (p - p.mean((1, 2, 3), keepdims=True)) / np.sqrt(p.var((1, 2, 3), keepdims=True) + 1e-5)
        for p in np.split(x, groups, -1)
    ]
    return np.concatenate(parts, -1) * w["gamma"] + w["beta"]


def moved(x: np.ndarray, w: Weights) -> np.ndarray:
    y = (x - w["moving_mean"]) / np.sqrt(w["moving_variance"] + 1e-5)
    return y * w["gamma"] + w["beta"]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def lstm(x: np.ndarray, w: Weights) -> np.ndarray:
    h = c = np.zeros((len(x), w["lstm_cell/recurrent_kernel"].shape[0]))
    for t in range(x.shape[1]):
        z = x[:, t] @ w["lstm_cell/kernel"] + h @ w["lstm_cell/recurrent_kernel"]
        i, f, g, o = np.split(z + w["lstm_cell/bias"], 4, -1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
    return h


def gru(x: np.ndarray, w: Weights) -> np.ndarray:
    h = np.zeros((len(x), w["gru_cell/recurrent_kernel"].shape[0]))
    bias = w["gru_cell/bias"]
    for t in range(x.shape[1]):
        a = np.split(x[:, t] @ w["gru_cell/kernel"] + bias[0], 3, -1)
        b = np.split(h @ w["gru_cell/recurrent_kernel"] + bias[1], 3, -1)
        z, r = sigmoid(a[0] + b[0]), sigmoid(a[1] + b[1])
        h = z * h + (1 - z) * np.tanh(a[2] + r * b[2])
    return h


def attention(x: np.ndarray, w: Weights) -> np.ndarray:
    q, k, v = (
        np.einsum("btc,chd->bhtd", x, w[f"{part}/kernel"]) + w[f"{part}/bias"][:, None]
        for part in ("query", "key", "value")
    )
    scores = np.exp(q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1]))
    scores = scores * np.tri(x.shape[1])  # causal
    y = scores / scores.sum(-1, keepdims=True) @ v
    kernel, bias = w["attention_output/kernel"], w["attention_output/bias"]
    return np.einsum("bhtd,hdc->btc", y, kernel) + bias


def spectral(x: np.ndarray, w: Weights) -> np.ndarray:
    """Its singular vectors count as constants, which they do not in a difference of values."""
    flat = x.reshape(-1, x.shape[-1])
    v = flat @ w["u"] / np.linalg.norm(flat @ w["u"])
    return x / np.linalg.norm(flat.T @ v)


# ------------------------------------------------------------------ the table


class Case(NamedTuple):
    """A layer: how it is built, on what, what NumPy makes of it (in inference)."""

    build: Callable[..., Any]
    shape: tuple[int, ...]
    numpy: Callable[[np.ndarray, Weights], np.ndarray]
    moves: bool = False  # variables that training moves
    alike: bool = True  # whether training computes what inference does


def images(layer: Any, *args: Any, **kwargs: Any) -> Callable[..., Any]:
    return lambda x, **more: layer("a", x, *args, **kwargs, **more)


CASES = {
    "Conv1D": Case(
        images(nn.Conv1D, 4, 3), SEQUENCE, lambda x, w: conv(x, w["kernel"]) + w["bias"]
    ),
    "Conv2D": Case(
        images(nn.Conv2D, 8, 3, groups=2),
        IMAGE,
        lambda x, w: conv(x, w["kernel"], 2) + w["bias"],
    ),
    "Conv3D": Case(
        images(nn.Conv3D, 3, (1, 2, 3)),
        (4, 3, 4, 5, 2),
        lambda x, w: conv(x, w["kernel"]) + w["bias"],
    ),
    "Conv2DTranspose": Case(
        images(nn.Conv2DTranspose, 3, 3),
        IMAGE,
        lambda x, w: conv(x, np.swapaxes(w["kernel"][::-1, ::-1], 2, 3)) + w["bias"],
    ),
    "DepthwiseConv2D": Case(
        images(nn.DepthwiseConv2D, 3, depth_multiplier=2),
        IMAGE,
        lambda x, w: depthwise(x, w["kernel"]) + w["bias"],
    ),
    "SeparableConv2D": Case(
        images(nn.SeparableConv2D, 5, 3),
        IMAGE,
        lambda x, w: conv(depthwise(x, w["depthwise_kernel"]), w["pointwise_kernel"]) + w["bias"],
    ),
    "FullyConnected": Case(
        images(nn.FullyConnected, 3, activation="tanh"),
        ROW,
        lambda x, w: np.tanh(x @ w["kernel"] + w["bias"]),
    ),
    "PReLU": Case(
        images(nn.PReLU, 0.2, channel_wise=True),
        IMAGE,
        lambda x, w: np.where(x > 0, x, x * w["alpha"]),
    ),
    "BatchNorm": Case(images(nn.BatchNorm), IMAGE, moved, moves=True, alike=False),
    "BatchNorm in parts": Case(
        images(nn.BatchNorm, virtual_batch_size=2), IMAGE, moved, moves=True, alike=False
    ),
    "BatchRenorm": Case(images(nn.BatchRenorm, 1.5, 0.5), IMAGE, moved, moves=True, alike=False),
    "LayerNorm": Case(images(nn.LayerNorm), IMAGE, lambda x, w: standard(x, (1, 2, 3), w)),
    "LayerNorm of sequences": Case(
        images(nn.LayerNorm), SEQUENCE, lambda x, w: standard(x, (2,), w)
    ),
    "InstanceNorm": Case(images(nn.InstanceNorm), IMAGE, lambda x, w: standard(x, (1, 2), w)),
    "GroupNorm": Case(images(nn.GroupNorm, 2), IMAGE, lambda x, w: in_groups(x, 2, w)),
    "SpectralNorm": Case(images(nn.SpectralNorm), (6, 4), spectral, moves=True),
    "LSTM": Case(images(nn.LSTM, 3), SEQUENCE, lstm),
    "GRU": Case(images(nn.GRU, 3), SEQUENCE, gru),
    "MultiHeadAttention": Case(
        images(nn.MultiHeadAttention, 2, 3, use_causal_mask=True), SEQUENCE, attention
    ),
    "Embedding": Case(
        lambda x: nn.Embedding("a", tf.cast(tf.abs(x) * 3, tf.int32), 12, 4),
        ROW,
        lambda x, w: w["embeddings"][np.abs(x * 3).astype(int)],
    ),
}
WITHOUT_WEIGHTS = {
    "AvgPooling", "BNReLU", "ConcatWith", "Dropout", "FixedUnPooling", "GELU", "GlobalAvgPooling",
    "LeakyReLU", "MaxPooling", "Maxout", "PositionalEncoding", "ReLU", "SiLU", "Sigmoid", "Tanh",
    "UpSampling",
}  # fmt: skip


def test_the_table_has_all_layers() -> None:
    known = {layer.name for layer in vars(nn).values() if isinstance(layer, RegisteredLayer)}
    assert known == {name.split()[0] for name in CASES} | WITHOUT_WEIGHTS


@cache
def built(name: str, seed: int = 0, policy: str | None = None) -> TowerFunction:
    """Each once for all laws, which fill it as they need it."""
    case = CASES[name]
    batch = case.shape[0] if name == "SpectralNorm" else None
    tower = tower_of(case.build, spec(batch, *case.shape[1:]), seed=seed, policy=policy)
    tower.trace(is_training=True)
    return tower


def run(tower: Any, x: np.ndarray, *, is_training: bool = False, mode: str = "graph") -> np.ndarray:
    return np.asarray(tf.cast(runner(tower, mode, is_training=is_training)(x)["y"], tf.float32))


def give(tower: Any, values: Weights) -> None:
    known = tower.store.named_variables()
    assert list(known) == list(values)
    for name, value in values.items():
        known[name].assign(value)


def near(found: Any, wanted: Any, tolerance: float = 1e-4) -> None:
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", CASES)
def test_values_and_derivatives_are_numpys(name: str) -> None:
    """In a random direction: the reference's difference quotient, and the gradient's product."""
    case, tower = CASES[name], built(name)
    weights = fill(tower)
    x = numbers(*case.shape)
    trained = tower.store.trainable()
    with tf.GradientTape() as tape:
        image = tf.constant(x)
        tape.watch(image)
        y = tower(image, is_training=False).outputs["y"]
        weighted = tf.reduce_sum(y * numbers(*y.shape, seed=99))
    gradients = tape.gradient(weighted, [image, *trained.values()])

    def reference(step: float) -> tuple[np.ndarray, list[np.ndarray]]:
        shapes = [x.shape, *(v.shape for v in trained.values())]
        ways = [numbers(*s, seed=7 + i).astype(float) for i, s in enumerate(shapes)]
        if name == "Embedding":
            ways[0] *= 0
        values = {n.removeprefix("a/"): w.astype(float) for n, w in weights.items()}
        for key, way in zip(trained, ways[1:], strict=True):
            values[key.removeprefix("a/")] += step * way
        return case.numpy(x + step * ways[0], values), ways

    wanted, ways = reference(0)
    near(y, wanted, 2e-4)
    if name == "SpectralNorm":  # Its singular vectors count as constants.
        return
    up, down = (np.sum(reference(s)[0] * numbers(*y.shape, seed=99)) for s in (1e-5, -1e-5))
    product = sum(
        np.sum(tf.convert_to_tensor(g).numpy() * way)
        for g, way in zip(gradients, ways, strict=True)
        if g is not None
    )
    np.testing.assert_allclose(product, (up - down) / 2e-5, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("name", CASES)
def test_shared_restored_and_in_training(name: str) -> None:
    case = CASES[name]
    x = numbers(*case.shape)

    def twice(x: tf.Tensor) -> tf.Tensor:
        one = case.build(x)
        with reuse_scope():
            return tf.stack([one, case.build(x)])

    first, second = built(name), built(name, seed=1)
    values = fill(first)
    if name != "SpectralNorm":
        shared = tower_of(twice, spec(None, *case.shape[1:]))
        shared.trace(is_training=True)
        give(shared, values)
        one, other = run(shared, x, mode="eager")
        np.testing.assert_array_equal(one, other)
    give(second, values)
    wanted = run(first, x)
    train = runner(first, "graph", is_training=True)
    assert (np.abs(train(x)["y"] - wanted).max() < 1e-4) == case.alike
    after = variables(first)
    changed = [n for n in values if (values[n] != after[n]).any()]
    assert bool(changed) == case.moves
    assert not set(changed) & set(first.store.trainable())
    near(run(second, x, mode="eager"), wanted)
    give(first, values)
    if not case.moves:
        return
    # A replica that shares the variables normalises alike, and moves nothing.
    later = second(x, is_training=True, index=1, total=2, step=tf.constant(0, tf.int64))
    near(later.outputs["y"], train(x)["y"])
    assert all((variables(second)[n] == values[n]).all() for n in values)


@pytest.mark.parametrize("name", ["BatchNorm", "Conv2D", "GRU", "LSTM"])
def test_only_assignments_move(name: str) -> None:
    """Not loops and inner functions that read a variable, or replicas would undo its training."""
    assert bool(built(name).trace(is_training=True).moved) == CASES[name].moves


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_finite_and_bfloat16_is_near(name: str) -> None:
    x = numbers(*CASES[name].shape)
    tower, half = built(name), built(name, policy="mixed_bfloat16")
    give(half, fill(tower))
    with tf.GradientTape() as tape:
        y = tower(x, is_training=True, step=tf.constant(0, tf.int64)).outputs["y"]
        cost = tf.reduce_sum(y * numbers(*y.shape, seed=5))
    trained = tower.store.trainable()
    for key, gradient in zip(trained, tape.gradient(cost, list(trained.values())), strict=True):
        values = tf.convert_to_tensor(gradient).numpy()
        assert np.isfinite(values).all() and values.any(), key
    short = half(x, is_training=True, step=tf.constant(0, tf.int64)).outputs["y"]
    assert short.dtype == tf.bfloat16
    assert {v.dtype for v in half.store.trainable().values()} <= {tf.float32}
    wide = float(np.abs(y).max())
    np.testing.assert_allclose(tf.cast(short, tf.float32), y, atol=0.05 * wide)


@pytest.mark.parametrize("layer", [nn.Conv2D, nn.Conv2DTranspose, nn.SeparableConv2D])
def test_a_bias_goes_to_the_channels_where_the_width_is_as_long(layer: Any) -> None:
    def conv(x: tf.Tensor, data_format: str = "NHWC") -> tf.Tensor:
        return layer("a", x, 5, 3, data_format=data_format, bias_initializer="normal")

    x, turned = numbers(2, 6, 5, 4), numbers(2, 6, 5, 4).transpose(0, 3, 1, 2)
    last = tower_of(conv, spec(None, 6, 5, 4))
    first = tower_of(lambda x: conv(x, "NCHW"), spec(None, 4, 6, 5))
    for mode in ("eager", "graph"):
        near(run(first, turned, mode=mode), run(last, x).transpose(0, 3, 1, 2))


# ------------------------------------------------------------------ what has no weights


WIDE = (2, 3, 4, 6)
PURE = {
    "unpool": (
        lambda x: nn.FixedUnPooling("a", x, (2, 3), np.arange(6.0).reshape(2, 3)),
        lambda x: np.kron(x, np.arange(6.0).reshape(1, 2, 3, 1)),
    ),
    "unpool in a corner": (
        lambda x: nn.FixedUnPooling("a", x, shape=2),
        lambda x: np.kron(x, np.array([1.0, 0, 0, 0]).reshape(1, 2, 2, 1)),
    ),
    "larger": (
        lambda x: nn.UpSampling("a", x, (1, 2)),
        lambda x: np.repeat(x, 2, 2),
    ),
    "maxout": (
        lambda x: nn.Maxout("a", x, 3),
        lambda x: x.reshape(2, 3, 4, 2, 3).max(-1),
    ),
    "concat": (
        lambda x: nn.ConcatWith("b", nn.ConcatWith(x, [x, x]), tf.tile(x, [1, 1, 1, 3]), 1),
        lambda x: np.tile(x, (1, 2, 1, 3)),
    ),
    "gelu": (
        lambda x: nn.GELU(x),
        lambda x: x * np.vectorize(lambda v: (1 + math.erf(v / 2**0.5)) / 2)(x),
    ),
    "silu": (lambda x: nn.SiLU("a", x), lambda x: x * sigmoid(x)),
    "positions": (
        lambda x: nn.PositionalEncoding(x[:, :, 0]),
        lambda x: (
            x[:, :, 0]
            + [
                [(np.sin, np.cos)[c % 2](t / 10000 ** (c // 2 * 2 / 6)) for c in range(6)]
                for t in range(3)
            ]
        ),
    ),
}


# [batch, time, channels] always, or no channels at all.
WITHOUT_FORMAT = (
    "Embedding", "FullyConnected", "GRU", "LSTM", "MultiHeadAttention", "SpectralNorm", "concat",
    "positions",
)  # fmt: skip
VOLUME = (4, 3, 4, 5, 2)


def turned() -> dict[str, tuple[Callable[..., Any], tuple[int, ...]]]:
    known = {name: (case.build, case.shape) for name, case in CASES.items()}
    known |= {kind: (layer, WIDE) for kind, (layer, _) in PURE.items()}
    for word, shape in {"sequences": SEQUENCE, "volumes": VOLUME}.items():
        known[f"BatchNorm of {word}"] = images(nn.BatchNorm), shape
        known[f"GroupNorm of {word}"] = images(nn.GroupNorm, 2), shape
        known[f"LayerNorm of {word}"] = images(nn.LayerNorm), shape
        known[f"Maxout of {word}"] = images(nn.Maxout, 2), shape
        known[f"PReLU of {word}"] = images(nn.PReLU, 0.2, channel_wise=True), shape
    known["LayerNorm of channels"] = images(nn.LayerNorm, axis=-1), IMAGE
    for layer, *size in (nn.MaxPooling, 2), (nn.AvgPooling, 2), (nn.GlobalAvgPooling,):
        known[layer.name] = images(layer, *size), IMAGE
    return {name: case for name, case in known.items() if name.split()[0] not in WITHOUT_FORMAT}


@pytest.mark.parametrize("name", turned())
def test_channels_first_is_channels_last_turned(name: str) -> None:
    build, shape = turned()[name]

    def first(x: tf.Tensor) -> tf.Tensor:
        with argscope([nn, keras.layers], data_format="channels_first"):
            return build(x)

    last = tower_of(build, spec(None, *shape[1:]))
    turn = tower_of(first, spec(None, shape[-1], *shape[1:-1]))
    x = numbers(*shape)
    other = np.moveaxis(x, -1, 1)
    for tower, given in ((last, x), (turn, other)):  # So that they have their variables.
        run(tower, given, mode="eager")
    values, known = fill(last), turn.store.named_variables()
    give(turn, {n: np.reshape(v, known[n].shape) for n, v in values.items()})
    for is_training, mode in ((False, "eager"), (True, "graph")):
        y = run(turn, other, is_training=is_training, mode=mode)
        near(np.moveaxis(y, 1, -1), run(last, x, is_training=is_training, mode="eager"))


@pytest.mark.parametrize("kind", PURE)
def test_layers_without_weights(kind: str) -> None:
    layer, reference = PURE[kind]
    x = numbers(*WIDE)
    tower = tower_of(layer, spec(None, *WIDE[1:]))
    given = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(given)
        y = tower(given, is_training=False).outputs["y"]
        near(y, reference(x))
        weights = numbers(*y.shape, seed=1)
        total = tf.reduce_sum(y * weights)
    towards = 1e-4 * numbers(*WIDE, seed=2).astype(np.float64)
    change = (reference(x + towards) - reference(x - towards)) / 2
    slope = np.sum(tf.convert_to_tensor(tape.gradient(total, given)).numpy() * towards)
    assert slope == pytest.approx(np.sum(change * weights), rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c.shape == IMAGE])
def test_shared_by_images_of_other_sizes(name: str) -> None:
    case = CASES[name]
    x = numbers(*case.shape)

    def part(x: tf.Tensor) -> tf.Tensor:
        return case.build(x[:, :4, :4])

    def both(x: tf.Tensor) -> tf.Tensor:
        case.build(x)
        with reuse_scope():
            return part(x)

    towers = [tower_of(f, spec(None, *case.shape[1:])) for f in (part, case.build, both)]
    sizes = [
        {n: v.shape for n, v in (t.trace(is_training=False), variables(t))[1].items()}
        for t in towers[:2]
    ]
    if sizes[0] != sizes[1]:
        with pytest.raises(LayerError, match="already exists with other arguments"):
            towers[2].trace(is_training=False)
        return
    towers[2].trace(is_training=False)
    give(towers[2], fill(towers[0]))
    near(run(towers[2], x, mode="eager"), run(towers[0], x, mode="eager"))


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_a_sequence_in_two_parts_is_one(kind: str) -> None:
    layer = getattr(nn, kind)

    def parts(x: tf.Tensor) -> tf.Tensor:
        whole = layer("a", x, 3, return_state=True)
        with reuse_scope():
            first = layer("a", x[:, :2], 3, return_state=True)
            return whole[0] - layer("a", x[:, 2:], 3, initial_state=first[1:], return_state=True)[0]

    tower = tower_of(parts, spec(None, *SEQUENCE[1:]))
    near(run(tower, numbers(*SEQUENCE), mode="eager"), 0)
    assert "a/output" in tower.trace(is_training=False).result.outputs


def test_attention_to_other_sequences() -> None:
    def build(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        mask = tf.reshape(tf.range(3) < 2, [1, 1, 3])
        return nn.MultiHeadAttention("a", x, 2, 3, value=y, attention_mask=mask)

    tower = tower_of(build, spec(None, 5, 6), spec(None, 3, 8, name="y"))
    x, y = numbers(2, 5, 6), numbers(2, 3, 8)
    other = np.concatenate([y[:, :2], y[:, :1]], 1)
    found = runner(tower, "graph")(x, y)["y"]
    near(runner(tower, "graph")(x, other)["y"], found)
    assert found.shape == (2, 5, 6)


@pytest.mark.parametrize("causal", [True, False])
def test_packed_sequences_have_the_logits_of_single_ones(causal: bool) -> None:
    def build(ids: tf.Tensor, segments: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        x = nn.Embedding("words", ids, 20, 6)
        x = nn.PositionalEncoding(x, positions=positions)
        for name in ("a", "b"):
            mask = tf.ones([1, 1, 1], tf.bool) if name == "b" else None
            x += nn.MultiHeadAttention(
                name, x, 2, 3, segment_ids=segments, attention_mask=mask, use_causal_mask=causal
            )
        return nn.Conv1D("logits", x, 5, 1)

    inputs = [spec(None, None, name=n, dtype=tf.int32) for n in ("ids", "segments", "positions")]
    call = runner(tower_of(build, *inputs), "graph")

    def logits_of(*row: np.ndarray) -> np.ndarray:
        return np.asarray(call(*(tf.constant(part[None], tf.int32) for part in row))["y"])[0]

    rng = np.random.default_rng(0)
    texts = [rng.integers(1, 20, n) for n in (5, 2, 3, 7, 4, 1)]
    logits = {}
    for row in PackSequences(DataFromList([(text,) for text in texts]), 9):
        packed = logits_of(*row)
        assert np.isfinite(packed).all()
        for segment in range(1, row[1].max() + 1):
            inside = row[1] == segment
            logits[tuple(row[0][inside].tolist())] = packed[inside]
    assert len(logits) == len(texts)
    for text in texts:
        alone = logits_of(text, np.ones(len(text)), np.arange(len(text)))
        near(logits[tuple(text.tolist())], alone, 1e-5)


def test_packed_rows_must_fit() -> None:
    ids, like = tf.zeros([2, 3]), spec(None, 4, 6)
    for build, message in (
        (lambda x: nn.MultiHeadAttention("a", x, 2, 3, segment_ids=ids), "segment_ids must have"),
        (lambda x: nn.MultiHeadAttention("a", x, 2, 3, value=x, segment_ids=x[..., 0]), "value="),
        (lambda x: nn.PositionalEncoding(x, positions=ids), "positions must have the shape"),
    ):
        with pytest.raises(LayerError, match=message):
            tower_of(build, like).trace(is_training=False)


def test_parts_of_a_batch_have_statistics_of_their_own() -> None:
    x = numbers(4, 3)
    tower = tower_of(lambda x: nn.BatchNorm("a", x, virtual_batch_size=2), spec(None, 3))
    y = run(tower, x, is_training=True)
    pairs = x.reshape(2, 2, 3)
    wanted = (pairs - pairs.mean(1, keepdims=True)) / np.sqrt(pairs.var(1, keepdims=True) + 1e-5)
    near(y, wanted.reshape(4, 3))
    near(variables(tower)["a/moving_variance"], 0.9 + 0.1 * pairs.var(1).mean(0))


def test_parts_that_do_not_divide_the_batch() -> None:
    tower = tower_of(lambda x: nn.BatchNorm("a/b", x, virtual_batch_size=4), spec(None, 2))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"a.b: virtual_batch_size=4"):
        tower.trace(is_training=True).function(["y"])[0](numbers(6, 2))


def test_spectral_norm_finds_the_greatest_singular_value() -> None:
    x = numbers(6, 4)
    tower = tower_of(lambda x: nn.SpectralNorm("a", x, 50), spec(6, 4))
    run(tower, x, is_training=True, mode="eager")
    near(run(tower, x, mode="eager"), x / np.linalg.norm(x, 2))


def test_batch_renorm_begins_as_keras_and_is_batch_norm_without_corrections() -> None:
    x = numbers(*IMAGE) * 2 + 1
    plain = tower_of(lambda x: nn.BatchNorm("a", x), spec(None, *IMAGE[1:]))
    bound = tower_of(lambda x: nn.BatchRenorm("a", x, rmax=1, dmax=0), spec(None, *IMAGE[1:]))
    near(run(bound, x, is_training=True), run(plain, x, is_training=True))
    # Within the bounds it is normalised by the moving averages, which begin at 0 and 1.
    free = tower_of(lambda x: nn.BatchRenorm("a", x, 100, 100), spec(None, *IMAGE[1:]))
    near(run(free, x, is_training=True), x, 1e-3)


def test_statistics_and_parameters_begin_as_they_are_told() -> None:
    tower = tower_of(
        lambda x: nn.BatchNorm(
            "a", x, training=False, gamma_initializer="zeros", moving_mean_initializer="ones"
        )
    )
    run(tower, numbers(4, 6), is_training=True)
    values = variables(tower)
    assert not values["a/gamma"].any()
    np.testing.assert_array_equal(values["a/moving_mean"], np.ones(6))  # Frozen, too.


def test_chains_and_argscopes_take_keras_layers_and_modules() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        with argscope([keras.layers, nn], use_bias=False, units=5):
            return LinearWrap(x).Dense(name="one").FullyConnected("two").Softmax(axis=1)()

    tower = tower_of(build)
    near(run(tower, numbers(4, 6)).sum(1), np.ones(4))
    shapes = {name: v.shape.as_list() for name, v in tower.store.named_variables().items()}
    assert shapes == {"one/kernel": [6, 5], "two/kernel": [5, 5]}
    with pytest.raises(LayerError, match="has an argument 'unitz'"), argscope(nn, unitz=3):
        pass


MISTAKES = {
    r"Conv2D 'a': 3 groups must divide the number of channels, 4": lambda x: nn.Conv2D(
        "a", x, 6, 3, groups=3
    ),
    r"Conv2D 'a': 2 groups must divide the number of filters, 5": lambda x: nn.Conv2D(
        "a", x, 5, 3, groups=2
    ),
    r"GroupNorm 'a': 32 groups must divide the number of channels, 4": lambda x: nn.GroupNorm(
        "a", x
    ),
    r"Maxout 'a': 3 groups must divide the number of channels, 4": lambda x: nn.Maxout("a", x, 3),
    r"LSTM 'a' needs an input of rank": lambda x: nn.LSTM("a", x, 3),
    r"Conv1D 'a' needs an input of rank": lambda x: nn.Conv1D("a", x, 3, 3),
    r"'a': activation must be .*, got 'rleu'": lambda x: nn.Conv2D("a", x, 3, 3, activation="rleu"),
    r"'a': activation must be .*, got 3": lambda x: nn.FullyConnected("a", x, 3, activation=3),
    r"GRU 'a' cannot be built: .*foo": lambda x: nn.GRU("a", x[:, 0], 3, activation="foo"),
    r"LSTM 'a' cannot be built: .*units.*positive": lambda x: nn.LSTM("a", x[:, 0], -1),
    r"Embedding 'a' needs integers": lambda x: nn.Embedding("a", x, 3, 3),
    r"FixedUnPooling 'a': the matrix": lambda x: nn.FixedUnPooling("a", x, 2, np.ones((2, 3))),
    r"BatchNorm 'a': pass only one of sync_statistics": lambda x: nn.BatchNorm(
        "a", x, sync_statistics=True, virtual_batch_size=2
    ),
    r"SpectralNorm 'a': power_iterations must be positive, got 0": lambda x: nn.SpectralNorm(
        "a", x[0, 0], 0
    ),
    r"SpectralNorm 'a' needs an input of rank": lambda x: nn.SpectralNorm("a", x[0, 0, 0]),
    r"GroupNorm 'a' needs an input of rank": lambda x: nn.GroupNorm("a", x[0, 0, 0], 2),
    r"BatchRenorm 'a': rmax must be .*rmax=0": lambda x: nn.BatchRenorm("a", x, 0, 1),
    r"LSTM 'a': initial_state": lambda x: nn.LSTM("a", x[0], 3, initial_state=tf.zeros([6, 3])),
    r"GRU 'a': initial_state": lambda x: nn.GRU("a", x[0], 3, initial_state=tf.zeros([6, 4])),
    r"MaxPooling 'a' cannot .*Negative(.|\n)*shape \(None, 6, 5, 4\)": lambda x: nn.MaxPooling(
        "a", x, 9
    ),
    r"UpSampling 'a' cannot .*interpolation": lambda x: nn.UpSampling("a", x, interpolation="foo"),
    r"ConcatWith '' cannot .*[Dd]imension": lambda x: nn.ConcatWith(x, x[:, :2]),
    r"Conv2D 'a' cannot .*hee": lambda x: nn.Conv2D("a", x, 3, 3, kernel_initializer="hee"),
    r"Conv2D 'a' .* number of channels": lambda x: nn.Conv2D(
        "a", tf.compat.v1.placeholder_with_default(x, [None] * 4), 3, 3
    ),
    r"LinearWrap.Dense cannot .*": lambda x: LinearWrap(x).Dense("fc", 3)(),
    r"both use 'a/kernel'": lambda x: keras.layers.Dense(3, name="a")(nn.FullyConnected("a", x, 3)),
    r"both use 'b/kernel'": lambda x: nn.FullyConnected("b", keras.layers.Dense(3, name="b")(x), 3),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_name_layer_shape_and_what_was_expected(message: str) -> None:
    with pytest.raises(LayerError, match=message):
        tower_of(MISTAKES[message], spec(None, *IMAGE[1:])).trace(is_training=True)


def test_a_depthwise_kernel_begins_by_its_own_inputs() -> None:
    tower = tower_of(lambda x: nn.DepthwiseConv2D("a", x, 3), spec(None, 8, 8, 512))
    tower.trace(is_training=True)
    assert variables(tower)["a/kernel"].std() == pytest.approx((2 / 9) ** 0.5, rel=0.05)


def test_dropout_takes_a_tensor_as_its_rate() -> None:
    x, rate = np.ones([200, 100], np.float32), np.float32(0.2)

    def dropped(x: tf.Tensor, rate: tf.Tensor) -> tf.Tensor:
        kinds = tf.float32, tf.bfloat16, tf.float64
        return tf.stack([tf.cast(nn.Dropout(tf.cast(x, d), rate), tf.float32) for d in kinds])

    tower = tower_of(dropped, spec(None, 100), spec(name="rate"))
    y = runner(tower, "graph", is_training=True)(x, rate)["y"]
    assert all(0.18 < share < 0.22 for share in np.mean(y == 0, (1, 2)))
