"""Networks in `examples/` load Tensorpack's weights by name and give Tensorpack's outputs."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from scaling import sample
from tensorpack_networks import STORED, digest, images, seeded
from towerpack.tower import TowerFunction
from towerpack.training import SmartInit
from towers import spec, tower_of

EXAMPLES = Path(__file__).parents[3] / "examples"
# Last parts of the names of variables, here and in Tensorpack.
NAMES = {"kernel": "W", "bias": "b", "moving_mean": "mean/EMA", "moving_variance": "variance/EMA"}
NETWORKS = {
    **{name: f"resnet:{name}" for name in ("resnet18", "resnet50", "caffe_resnet50", "resnext50")},
    **{name: f"resnet:{name}" for name in ("preact_resnet18", "preact_resnet50", "se_resnet50")},
    **{name: f"{name}:net" for name in ("alexnet", "vgg16", "inception_bn")},
    **{f"shufflenet_{name}": f"shufflenet:{name}" for name in ("v1_half", "v1", "v2_half", "v2")},
}


@pytest.fixture(autouse=True)
def _examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)


def network(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(f"imagenet.{module}"), name)


def check(name: str, tower: TowerFunction, arrays: list[np.ndarray], folder: Path) -> None:
    """Save weights under Tensorpack's names, load them, and compare with Tensorpack's outputs."""
    record = json.loads(STORED.read_text())[name]
    tower.trace(is_training=False)
    ours = tower.store.named_variables()
    theirs = {variable: variable for variable in ours}
    if not name.startswith("flownet"):  # which has TensorFlow's layers there, too
        parts = "|".join(NAMES)
        theirs = {n: re.sub(rf"(?<=/)({parts})$", lambda m: NAMES[m[1]], n) for n in ours}
    shapes = {theirs[n]: variable.shape for n, variable in ours.items()}
    assert len(shapes) == record["variables"]
    assert digest(shapes) == record["digest"], "other names or shapes than Tensorpack's"
    values: Any = {n: seeded(n, shape) for n, shape in shapes.items()}
    np.savez(folder / "weights.npz", **values)
    assert SmartInit(folder / "weights.npz").load(ours) == ours.keys()
    output = np.asarray(tower(*arrays, is_training=False).outputs["y"])
    assert np.abs(output).max() == pytest.approx(record["scale"], rel=1e-3)
    shown = output.reshape(2, -1)[:, 3::97].ravel()[:40]
    np.testing.assert_allclose(shown, record["output"], rtol=1e-4, atol=1e-5 * record["scale"])


@pytest.mark.parametrize("name", sample(list(NETWORKS), at_least=2))
def test_weights_of_tensorpack_give_its_logits(name: str, tmp_path: Path) -> None:
    net = network(NETWORKS[name])
    tower = tower_of(lambda x: net(x, 1000), spec(None, 64, 96, 3))
    check(name, tower, [images(name)], tmp_path)


@pytest.mark.parametrize("network", sample(["s", "c"]))
def test_weights_of_flownet_give_its_flow(network: str, tmp_path: Path) -> None:
    flownet = importlib.import_module("flownet")

    def flow(pair: tf.Tensor) -> tf.Tensor:
        flows = flownet.flownet(pair[:1], pair[1:], network)
        return tf.tile(flownet.in_pixels(flows[-1]), [2, 1, 1, 1])

    name = f"flownet2_{network}"
    check(name, tower_of(flow, spec(2, 64, 128, 3)), [images(name)], tmp_path)


def test_correlation_equals_a_loop() -> None:
    a, b = np.random.default_rng(0).normal(size=(2, 2, 5, 7, 3)).astype(np.float32)
    found = importlib.import_module("flownet").correlation(tf.constant(a), tf.constant(b), 4, 2)
    wanted = np.zeros((2, 5, 7, 25), np.float32)
    for y, x, offset in np.ndindex(5, 7, 25):
        row, column = y + 2 * (offset // 5) - 4, x + 2 * (offset % 5) - 4
        if 0 <= row < 5 and 0 <= column < 7:
            wanted[:, y, x, offset] = (a[:, y, x] * b[:, row, column]).mean(-1)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def step(path: str) -> dict[str, tf.Tensor]:
    """Gradients of all trained variables of a network after one pass over two images."""
    net = network(path)

    def build(image: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(label, net(net.normalize(image), 5))
        return tf.reduce_mean(loss)

    specs = [spec(None, 64, 64, 3, name="image", dtype=tf.uint8), spec(None, dtype=tf.int64)]
    tower = TowerFunction(build, specs, seed=0)
    tower.trace(is_training=True)
    pixels = np.random.default_rng(0).integers(0, 255, (2, 64, 64, 3), np.uint8)
    labels = tf.constant([1, 3], tf.int64)

    @tf.function(autograph=False)
    def gradients() -> dict[str, tf.Tensor]:
        trained = tower.store.trainable()
        with tf.GradientTape() as tape:
            cost = tower(pixels, labels, is_training=True, step=tf.constant(0, tf.int64)).cost
        return dict(zip(trained, tape.gradient(cost, list(trained.values())), strict=True))

    return gradients()


@pytest.mark.parametrize("name", sample(list(NETWORKS)))
def test_a_training_step_has_finite_gradients(name: str) -> None:
    found = step(NETWORKS[name])
    assert all(np.isfinite(gradient).all() for gradient in found.values())
    assert any(np.abs(gradient).max() > 0 for gradient in found.values())
