"""Networks `keras:…`: they are Keras's networks, with Keras's pixels and ImageNet weights."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.utils import file_utils

from towerpack import ConfigError
from towerpack.apps.classification import ClassificationModeler
from towerpack.config import Registry
from towerpack.nn import get_current_tower_context
from towerpack.training import SmartInit
from towerpack.zoo import NETWORKS
from towerpack.zoo.keras_applications import KerasNetwork
from towers import runner, spec, tower_of

PIXELS = np.random.default_rng(0).integers(0, 256, [2, 96, 96, 3], np.uint8)


def test_all_of_keras_are_there() -> None:
    ours = {name.removeprefix("keras:") for name in NETWORKS if name.startswith("keras:")}
    functions = inspect.getmembers(keras.applications, inspect.isfunction)
    assert ours == {name for name, _ in functions}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["EfficientNetB0", "MobileNetV2"])
def test_imagenet_weights_give_keras_s_features(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make: Any = getattr(keras.applications, name)
    size = {"include_top": False, "pooling": "avg", "input_shape": (96, 96, 3)}
    rng = np.random.default_rng(0)
    downloaded = make(weights=None, **size)
    downloaded.set_weights([rng.uniform(0.05, 0.2, w.shape) for w in downloaded.get_weights()])
    file = tmp_path / "downloaded.weights.h5"
    downloaded.save_weights(file)
    monkeypatch.setattr(file_utils, "get_file", lambda *_, **__: str(file))

    theirs = make(weights="imagenet", **size)
    network = KerasNetwork(name)
    expected = theirs(network.normalize(tf.constant(PIXELS)), training=False)

    def build(image: tf.Tensor) -> tf.Tensor:
        network(network.normalize(image), 3)
        return get_current_tower_context().outputs["features"]

    tower = tower_of(build, spec(None, 96, 96, 3))
    tower.trace(is_training=False)
    loaded = SmartInit(network.imagenet_weights()).load(tower.store.named_variables())
    rest = {name for name in tower.store.named_variables() if name not in loaded}
    assert {name for name in rest if "seed_generator" not in name} == {"fc/kernel", "fc/bias"}
    actual = runner(tower, "graph")(PIXELS.astype(np.float32))["y"]
    np.testing.assert_allclose(actual, expected, rtol=1e-3)


def test_names_that_keras_lacks() -> None:
    networks: Registry[Any] = Registry("network", NETWORKS)
    assert networks.get("keras:convnext-tiny".replace("-", "")).name == "ConvNeXtTiny"
    with pytest.raises(ConfigError, match=r"no network 'keras:os'.*"):
        networks.get("keras:os")
    with pytest.raises(ConfigError, match="3 channels"):
        KerasNetwork("VGG16").normalize(tf.zeros([1, 8, 8, 1]))


def test_imagenet_is_for_these_networks_only() -> None:
    modeler: Any = object.__new__(ClassificationModeler)
    modeler.network = None
    modeler.config = type("C", (), {"model": type("M", (), {"network": "lenet"})})
    with pytest.raises(ConfigError, match="lenet has no ImageNet weights"):
        modeler.weights("imagenet")
