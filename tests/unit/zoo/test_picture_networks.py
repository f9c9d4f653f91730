"""Networks that give pictures or maps: parameters, sizes, and every pixel in its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from scaling import only_in_full
from towerpack.apps.style_transfer import FeatureNetwork, ModelConfig
from towerpack.training import SmartInit
from towerpack.zoo import deeplab, efficientnet_lite, fcn, fns, unet
from towers import spec, tower_of

CONV = 4 * 4
DOWN = [CONV * a * b + b for a, b in ((3, 32), (32, 64), (64, 128), (128, 256))]
UP = [CONV * a * b + b for a, b in ((256, 128), (128, 64), (64, 32), (32, 12))]
JOINED = [CONV * a * b + b for a, b in ((256, 128), (256, 64), (128, 32), (64, 12))]
KNOWN = {
    "fcn": (lambda x: fcn.net(x, 12), sum(DOWN + UP), 1_384_652),
    "unet": (lambda x: unet.net(x, 12), sum(DOWN + JOINED), 1_554_636),
    "deeplab": (lambda x: deeplab.net(x, 12), None, None),
    "fns": (fns.net, None, 1_817_731),
}


@pytest.mark.parametrize("name", KNOWN)
def test_parameters_and_odd_sizes(name: str) -> None:
    net, counted, known = KNOWN[name]
    tower = tower_of(net, spec(None, None, None, 3))
    output = tower(tf.zeros([1, 37, 51, 3]), is_training=False).outputs["y"]
    assert output.shape == (1, 37, 51, 3 if name == "fns" else 12)
    total = sum(int(np.prod(v.shape)) for v in tower.store.trainable().values())
    assert counted in (None, known)
    assert known in (None, total)
    if name == "deeplab":
        backbone = {n for n in efficientnet_lite.weights() if not n.startswith(("head/", "fc/"))}
        assert backbone < set(tower.store.named_variables())


@pytest.mark.parametrize("net", [fcn.net, unet.net])
def test_what_is_cut_away_is_at_the_end(net: Any) -> None:
    """The first pixels do not see so far that the size of the picture could matter."""
    tower = tower_of(lambda x: net(x, 2, width=2), spec(None, None, None, 1))
    compute, _ = tower.trace(is_training=False).function(["y"])
    image = np.random.default_rng(0).normal(size=(1, 96, 96, 1)).astype(np.float32)
    [wanted] = compute(image)
    for size in (80, 81, 87, 95):
        [found] = compute(image[:, :size, :size])
        assert found.shape == (1, size, size, 2)
        np.testing.assert_allclose(found[:, :4, :4], wanted[:, :4, :4], rtol=1e-4, atol=1e-5)


STAGES = [(2, 2), (2, 4), (4, 4), (4, 6), (4, 6)]


def vgg(named: str) -> dict[str, np.ndarray]:
    """Weights of a narrow VGG-19, the same ones as a library would name and lay them out."""
    rng, channels, place, found = np.random.default_rng(0), 3, 0, {}
    for stage, (count, width) in enumerate(STAGES, 1):
        for i in range(1, count + 1):
            kernel = rng.normal(size=(3, 3, channels, width)).astype(np.float32)
            bias = rng.normal(size=width).astype(np.float32)
            layer = {
                "keras": f"block{stage}_conv{i}/",
                "slim": f"vgg_19/conv{stage}/conv{stage}_{i}/",
                "torch": f"features.{place}.",
            }[named]
            is_torch = named == "torch"
            kinds = ("weight", "bias") if is_torch else ("kernel", "bias")
            found[layer + kinds[0]] = kernel.transpose(3, 2, 0, 1) if is_torch else kernel
            found[layer + kinds[1]] = bias
            channels, place = width, place + 2
        place += 1
    return dict(sorted(found.items()))  # features.10 comes before features.2


MEAN = np.array([123.68, 116.779, 103.939])
PIXELS = {
    "slim": lambda x: x - MEAN,
    "keras": lambda x: (x - MEAN)[..., ::-1],
    "torch": lambda x: (x / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225],
}


@pytest.mark.parametrize("named", PIXELS)
def test_weights_of_vgg_by_file(tmp_path: Path, named: str) -> None:
    weights = vgg(named)
    np.savez(tmp_path / "vgg.npz", **weights)  # type: ignore[arg-type]
    layers = ["conv1_1", "conv5_4"]
    config = ModelConfig(features=str(tmp_path / "vgg.npz"), style_layers=layers)
    image = np.random.default_rng(1).uniform(0, 255, (1, 32, 32, 3)).astype(np.float32)
    features = FeatureNetwork(config)
    tower = tower_of(lambda x: features(x)["conv5_4"], spec(None, 32, 32, 3))
    tower.trace(is_training=True)
    assert tower.store.named_variables() == {}
    found = features(tf.constant(image))
    assert set(found) == {"conv1_1", "conv4_2", "conv5_4"}
    assert found["conv5_4"].shape == (1, 2, 2, 6)
    x = PIXELS[named](image).astype(np.float32)
    plain = iter(vgg("slim").values())
    for stage, (count, _) in enumerate(STAGES):
        x = tf.nn.max_pool2d(x, 2, 2, "VALID") if stage else x
        for i in range(count):
            bias, kernel = next(plain), next(plain)
            x = tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "SAME") + bias)
            if (stage, i) == (0, 0):
                np.testing.assert_allclose(found["conv1_1"], x, rtol=1e-3, atol=1e-2)
    scale = np.abs(x).max()
    np.testing.assert_allclose(found["conv5_4"] / scale, x / scale, rtol=1e-3, atol=1e-3)


@only_in_full
def test_features_of_the_packaged_weights() -> None:
    features = FeatureNetwork(ModelConfig(style_layers=["stride4"], content_layers=["stride4"]))
    image = tf.constant(np.random.default_rng(0).uniform(0, 255, (1, 32, 32, 3)), tf.float32)
    found = features(image)["stride4"]
    plain = tower_of(lambda x: efficientnet_lite.backbone(x)[1], spec(None, 32, 32, 3))
    plain.trace(is_training=False)
    SmartInit("efficientnet-lite0").load(plain.store.named_variables())
    wanted = plain((image - 127) / 128, is_training=False).outputs["y"]
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)
