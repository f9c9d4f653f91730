"""Networks: parameters as the papers and others count them, shapes, features, gradients."""

from __future__ import annotations

import importlib
import math
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from scaling import only_in_full
from towerpack import ConfigError
from towerpack.describe._multiply_adds import multiply_adds
from towerpack.tower import TowerFunction
from towerpack.zoo import NETWORKS, lenet, resnet32
from towers import numbers, spec, tower_of, variables

# Side in pixels, classes, trained parameters, channels of the features, and multiply-adds as the
# papers or torchvision and timm count them: strides are where they belong.
KNOWN = {
    "lenet": (28, 10, 836_522, 512, None),
    "resnet20": (32, 10, 269_722, 64, 40.55e6),
    "resnet32": (32, 10, 464_154, 64, 68.86e6),
    "resnet44": (32, 10, 658_586, 64, None),
    "resnet56": (32, 10, 853_018, 64, None),
    "resnet110": (32, 10, 1_727_962, 64, None),
    "resnet50": (224, 1000, 25_583_592, 2048, 3.86e9),
    "inception_v4": (299, 1000, 42_679_816, 1536, 12.28e9),
    "nasnet_A_large": (331, 1000, 88_753_150, 4032, None),
    "efficientnet_lite0": (224, 1000, 4_652_008, 1280, 387e6),
}
SMALL = ["lenet", "resnet20"]


def network(name: str) -> Callable[..., tf.Tensor]:
    module, _, function = NETWORKS[name].partition(":")
    return getattr(importlib.import_module(module), function)


def towered(name: str, **options: Any) -> TowerFunction:
    side, classes, *_ = KNOWN[name]
    image = spec(1, side, side, 1 if name == "lenet" else 3, name="image")
    return tower_of(lambda x: network(name)(x, classes, **options), image)


@pytest.mark.parametrize(
    "name", [n if n in SMALL else pytest.param(n, marks=only_in_full) for n in NETWORKS]
)
def test_counts_and_shapes(name: str) -> None:
    _, classes, parameters, channels, known = KNOWN[name]
    tower = towered(name)
    trace = tower.trace(is_training=True)
    assert trace.result.outputs["y"].shape.as_list() == [1, classes]
    assert trace.result.outputs["features"].shape.as_list() == [1, channels]
    trained = tower.store.trainable().values()
    assert sum(math.prod(v.shape) for v in trained) == parameters
    found = sum(multiply_adds(op) or 0 for op in trace.graph.get_operations())
    assert known is None or found == pytest.approx(known, rel=0.01)


@pytest.mark.parametrize("net", [lenet.net, partial(resnet32.net, depth=8)])
def test_gradients_reach_every_variable(net: Callable[..., tf.Tensor]) -> None:
    tower = tower_of(lambda x: net(x, 10), spec(8, 28, 28, 1, name="image"))
    images = numbers(8, 28, 28, 1)

    @tf.function(autograph=False)
    def gradients() -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            outputs = tower(images, step=tf.constant(0, tf.int64)).outputs
            cost = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(8), outputs["y"])
        return tape.gradient(cost, list(tower.store.trainable().values()))

    tower.trace(is_training=True)
    before = variables(tower)
    for variable, gradient in zip(tower.store.trainable(), gradients(), strict=True):
        assert np.isfinite(gradient).all() and np.any(gradient), variable
    moved = [n for n, value in variables(tower).items() if np.any(value != before[n])]
    assert moved == [n for n in before if "moving_" in n]


def test_a_depth_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="got 33"):
        towered("resnet32", depth=33).trace(is_training=True)


def test_names_are_known_without_tensorflow() -> None:
    code = "import sys; sys.modules['tensorflow'] = None; import towerpack.zoo"
    subprocess.run([sys.executable, "-c", code], check=True)
