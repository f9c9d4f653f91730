"""Networks: parameters as the papers and others count them, shapes, features, gradients."""

from __future__ import annotations

import importlib
import math
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from towerpack import ConfigError
from towerpack.describe import model_summary
from towerpack.tower import TowerFunction
from towerpack.zoo import NETWORKS
from towers import numbers, spec, tower_of, variables

# Side in pixels, classes, trained parameters, channels of the features.
KNOWN = {
    "lenet": (28, 10, 836_522, 512),
    "resnet20": (32, 10, 269_722, 64),
    "resnet32": (32, 10, 464_154, 64),
    "resnet44": (32, 10, 658_586, 64),
    "resnet56": (32, 10, 853_018, 64),
    "resnet110": (32, 10, 1_727_962, 64),
    "resnet50": (224, 1000, 25_583_592, 2048),
    "inception_v4": (299, 1000, 42_679_816, 1536),
    "nasnet_A_large": (331, 1000, 88_753_150, 4032),
    "efficientnet_lite0": (224, 1000, 4_652_008, 1280),
}
# As the papers or torchvision and timm count them: strides are where they belong.
MULTIPLY_ADDS = {
    "resnet20": 40.55e6,
    "resnet32": 68.86e6,
    "resnet50": 3.86e9,
    "inception_v4": 12.28e9,
    "efficientnet_lite0": 387e6,
}
SMALL = ["lenet", "resnet20"]
CHEAP = ["lenet", "resnet20", "resnet32", "resnet50"]


def network(name: str) -> Callable[..., tf.Tensor]:
    module, _, function = NETWORKS[name].partition(":")
    return getattr(importlib.import_module(module), function)


def towered(name: str, **options: Any) -> TowerFunction:
    side, classes, *_ = KNOWN[name]
    image = spec(None, side, side, 1 if name == "lenet" else 3, name="image")
    return tower_of(lambda x: network(name)(x, classes, **options), image)


def sampled(names: Iterable[str]) -> list[Any]:
    return [n if n in CHEAP else pytest.param(n, marks=pytest.mark.slow) for n in names]


@pytest.mark.parametrize("name", sampled(NETWORKS))
def test_counts_and_shapes(name: str) -> None:
    _, classes, parameters, channels = KNOWN[name]
    tower = towered(name)
    outputs = tower.trace(is_training=True).result.outputs
    assert outputs["y"].shape.as_list() == [None, classes]
    assert outputs["features"].shape.as_list() == [None, channels]
    trained = tower.store.trainable().values()
    assert sum(math.prod(v.shape) for v in trained) == parameters


@pytest.mark.parametrize("name", sampled(MULTIPLY_ADDS))
def test_multiply_adds(name: str) -> None:
    side, classes, *_ = KNOWN[name]
    image = spec(None, side, side, 3, name="image")

    def build(image: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(network(name)(image, classes))

    found = model_summary((lambda: [image], build, lambda: None)).total.multiply_adds
    assert found == pytest.approx(MULTIPLY_ADDS[name], rel=0.01)


@pytest.mark.parametrize("name", SMALL)
def test_gradients_reach_every_variable(name: str) -> None:
    tower = towered(name)
    side, classes, *_ = KNOWN[name]
    images = numbers(8, side, side, 1 if name == "lenet" else 3)

    @tf.function(autograph=False)
    def gradients() -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            outputs = tower(images, step=tf.constant(0, tf.int64)).outputs
            labels = tf.range(8) % classes
            cost = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs["y"])
        return tape.gradient(cost, list(tower.store.trainable().values()))

    tower.trace(is_training=True)
    before = variables(tower)
    for name, gradient in zip(tower.store.trainable(), gradients(), strict=True):
        assert np.isfinite(gradient).all() and np.any(gradient), name
    moved = [name for name, value in variables(tower).items() if np.any(value != before[name])]
    assert moved == [name for name in before if "moving_" in name]


def test_a_depth_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="depth=33"):
        towered("resnet32", depth=33).trace(is_training=True)


def test_names_are_known_without_tensorflow() -> None:
    code = "import sys; sys.modules['tensorflow'] = None; import towerpack.zoo"
    subprocess.run([sys.executable, "-c", code], check=True)
