"""Numbers of layers are those that can be worked out by hand, and TensorFlow's profiler's."""

from __future__ import annotations

import shutil
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack.describe import ModelSummary, model_summary
from towerpack.nn import (
    LSTM,
    BatchNorm,
    Conv2D,
    Conv2DTranspose,
    Dropout,
    FullyConnected,
    MaxPooling,
    MultiHeadAttention,
    reuse_scope,
    scope,
)
from towers import spec, tower_of

IMAGE = (None, 8, 8, 4)


def summary_of(net: Callable[..., tf.Tensor], shape: Any = IMAGE, **how: Any) -> ModelSummary:
    return model_summary(([spec(*shape)], lambda x: tf.reduce_mean(net(x))), **how)


def twice(x: tf.Tensor) -> tf.Tensor:
    y = FullyConnected("f", x, 3)
    with reuse_scope():
        return y + FullyConnected("f", x, 3)


def attention(x: tf.Tensor) -> tf.Tensor:
    with scope("scores"):
        return tf.matmul(x, x, transpose_a=True)


CASES: dict[str, tuple[Callable[..., tf.Tensor], Any, tuple[str, list[int], int, int | None]]] = {
    "groups": (
        lambda x: Conv2D("a/c", x, 8, 3, groups=2, activation=tf.nn.relu),
        IMAGE,
        ("a/c", [1, 8, 8, 8], 152, 8 * 8 * 8 * 18),
    ),
    "depthwise": (
        keras.layers.DepthwiseConv2D(3, name="d"),
        IMAGE,
        ("net", [1, 6, 6, 4], 40, 6 * 6 * 4 * 9),
    ),
    "transposed": (
        lambda x: Conv2DTranspose("t", x, 5, 3, 2),
        IMAGE,
        ("t", [1, 16, 16, 5], 185, 8 * 8 * 4 * 45),
    ),
    "dense": (lambda x: FullyConnected("f", x, 10), IMAGE, ("f", [1, 10], 2570, 2560)),
    "shared": (twice, IMAGE, ("f", [1, 3], 771, 2 * 768)),
    "einsum": (
        lambda x: tf.einsum("bhwc,cd->bhwd", x, tf.Variable(tf.zeros([4, 6]), name="w")),
        IMAGE,
        ("w", [1, 8, 8, 6], 24, 8 * 8 * 4 * 6),
    ),
    "product": (attention, (None, 5, 4), ("scores/MatMul", [1, 4, 4], 0, 4 * 4 * 5)),
    "loop": (
        lambda x: keras.layers.LSTM(3, name="l")(x),
        (None, 5, 4),
        ("l", [1, 3], 96, None),
    ),
    "recurrent": (
        lambda x: LSTM("a/l", x, 3, return_sequences=True, return_state=True)[0],
        (None, 5, 4),
        ("a/l", [1, 5, 3], 96, None),
    ),
    "sequence": (
        lambda x: tf.nn.relu(keras.layers.GRU(3, name="l", return_sequences=True)(x)),
        (None, 5, 4),
        ("l", [1, 5, 3], 81, None),
    ),
    "attention": (
        lambda x: MultiHeadAttention("m", x, 2, 3),
        (None, 5, 4),
        ("m", [1, 5, 4], 118, 4 * 5 * 4 * 6 + 2 * 2 * 5 * 5 * 3),
    ),
    "random": (
        lambda x: keras.layers.Dropout(0.5)(FullyConnected("f", x, 3)),
        IMAGE,
        ("f", [1, 3], 771, 768),
    ),
    "open": (
        lambda x: Conv2D("c", x, 2, 1),
        (None, None, None, 4),
        ("c", [1, None, None, 2], 10, None),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_layers(case: str) -> None:
    net, shape, expected = CASES[case]
    summary = summary_of(net, shape)
    rows = [(x.name, x.output, x.parameters, x.multiply_adds) for x in summary.layers]
    assert rows == [expected]
    assert all(part.kind != "layer" or part.sources for part in summary.parts)
    text = str(summary)
    assert text.startswith("Inputs: x [1, ")
    assert ("not counted" in text) == (expected[-1] is None)


def residual(x: tf.Tensor) -> tf.Tensor:
    x = Conv2D("stem", x, 6, 3)
    with scope("block"):
        y = tf.nn.relu(BatchNorm("bn", Conv2D("conv", x, 6, 3)))
        x = Dropout("drop", x + y, 0.5)
    return FullyConnected("head", MaxPooling("pool", x, 2), 2)


@pytest.mark.parametrize("is_training", [False, True])
def test_flow_and_totals(is_training: bool) -> None:
    summary = summary_of(residual, is_training=is_training)
    parts = {part.name: part for part in summary.parts}
    (join,) = [part for part in summary.parts if part.kind == "join"]
    assert [x.name for x in summary.layers] == [
        *("stem", "block/conv", "block/bn", "block/drop", "pool", "head")
    ]
    assert (join.sign, join.sources) == ("+", ["stem", "block/bn"])
    assert parts["stem"].sources == ["x"]
    assert parts["block/drop"].sources == [join.name]

    tower = tower_of(residual, spec(1, 8, 8, 4))
    trace = tower.trace(is_training=is_training)
    options = tf.compat.v1.profiler.ProfileOptionBuilder.float_operation()
    options["output"] = "none"
    node: Any = tf.compat.v1.profiler.profile(trace.graph, cmd="op", options=options)
    flops = 0
    while node.children:
        (node,) = node.children
        flops += node.float_ops if node.name in ("Conv2D", "MatMul") else 0
    assert 2 * (summary.total.multiply_adds or 0) == flops > 0
    assert summary.total.parameters == sum(
        v.shape.num_elements() for v in tower.store.named_variables().values()
    )


def test_keras_model() -> None:
    layers = [keras.Input([8, 8, 4]), keras.layers.Conv2D(2, 3, name="c"), keras.layers.Flatten()]
    summary = model_summary(keras.Sequential([*layers, keras.layers.Dense(1, name="d")]))
    assert [(x.name, x.multiply_adds) for x in summary.layers] == [("c", 72 * 36), ("d", 72)]
    with pytest.raises(ConfigError, match="inputs"):
        model_summary(keras.Sequential([keras.layers.Dense(1)]))


def test_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = summary_of(residual)
    monkeypatch.setenv("PATH", str(tmp_path))
    summary.save_picture(tmp_path / "net.svg")
    tree = ElementTree.parse(tmp_path / "net.svg").getroot()
    found = [element.tag.rpartition("}")[2] for element in tree.iter()]
    assert found.count("rect") == len(summary.parts) == 8
    assert "stem" in "".join(tree.itertext())
    assert found.count("path") - 1 == sum(len(part.sources) for part in summary.parts)
    with pytest.raises(ConfigError, match="Graphviz"):
        summary.save_picture(tmp_path / "net.png")
    dot = tmp_path / "dot"
    dot.write_text('#!/bin/sh\nwhile read -r line; do echo "$line"; done > "$3"\n')
    dot.chmod(0o755)
    summary.save_picture(tmp_path / "net.png")
    assert '"stem" -> "block/conv"' in (tmp_path / "net.png").read_text()
    dot.write_text("#!/bin/sh\necho no such format >&2\nexit 1\n")
    with pytest.raises(ConfigError, match="no such format"):
        summary.save_picture(tmp_path / "net.odd")


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_graphviz(tmp_path: Path) -> None:
    summary_of(residual).save_picture(tmp_path / "net.png")
    assert (tmp_path / "net.png").read_bytes().startswith(b"\x89PNG")
