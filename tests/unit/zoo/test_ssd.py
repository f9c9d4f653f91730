"""Detectors: anchors and parameters as the paper and others count them; weights by file."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from scaling import only_in_full
from towerpack import CheckpointError, ConfigError
from towerpack.nn import expose
from towerpack.tower import TowerFunction
from towerpack.zoo import efficientnet_lite, ssd, ssd_lite, vgg16_reduced
from towers import numbers, spec, tower_of, variables


def detector(net: Any, side: int, classes: int, **options: Any) -> TowerFunction:
    def build(image: tf.Tensor) -> tf.Tensor:
        found = net(image, classes, **options)
        expose("offsets", found.offsets)
        expose("anchors", tf.constant(found.anchors))
        return found.logits

    return tower_of(build, spec(None, side, side, 3, name="image"))


# Network, side, classes, anchors, trained parameters: of ssd300 as torchvision counts them
# (ssd300_vgg16 for COCO's 91 numbers, background included).
KNOWN = [
    (ssd.ssd300, 300, 90, 8_732, 35_641_826),
    pytest.param(ssd.ssd512, 512, 80, 24_564, None, marks=only_in_full),
]


def assert_shapes(outputs: Any, pictures: int | None, count: int, classes: int) -> None:
    assert outputs["y"].shape.as_list() == [pictures, count, 1 + classes]
    assert outputs["offsets"].shape.as_list() == [pictures, count, 4]
    assert outputs["anchors"].shape.as_list() == [count, 4]


@pytest.mark.parametrize(("net", "side", "classes", "count", "parameters"), KNOWN)
def test_anchors_and_parameters(
    net: Any, side: int, classes: int, count: int, parameters: int | None
) -> None:
    tower = detector(net, side, classes)
    assert_shapes(tower.trace(is_training=True).result.outputs, None, count, classes)
    found = sum(math.prod(v.shape) for v in tower.store.trainable().values())
    assert parameters in (None, found)


@pytest.mark.parametrize("size", [300, 512])
def test_anchors_are_those_of_the_reference(size: int) -> None:
    """Sides and strides as its tables say."""
    levels = ssd.levels(size)
    assert [level.per_cell for level in levels] == [4, 6, 6, 6, *[6] * (size == 512), 4, 4]
    side, rows = {300: (12, 38), 512: (20, 64)}[size]
    first = levels[0].boxes(rows, rows, (size, size)) * size
    assert first[0] == pytest.approx([4 - side / 2] * 2 + [4 + side / 2] * 2)
    assert first[-4] == pytest.approx([8 * rows - 4 - side / 2] * 2 + [8 * rows - 4 + side / 2] * 2)
    assert levels[-1].boxes(1, 1, (size, size))[0].mean() == pytest.approx(0.5)


def test_another_size_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"300 x 300(.|\n)*ssd_lite"):
        detector(ssd.ssd300, 320, 3).trace(is_training=False)


def test_the_small_one_learns_and_takes_the_packaged_weights() -> None:
    """A gradient for every variable; a name for every value but those of the classifier."""
    tower = detector(ssd_lite.net, 192, 10)
    with tf.GradientTape() as tape:
        step = tf.constant(0, tf.int64)
        outputs = tower(numbers(2, 192, 192, 3), is_training=True, step=step).outputs
        cost = tf.reduce_sum(outputs["y"] ** 2) + tf.reduce_sum(outputs["offsets"] ** 2)
    assert_shapes(outputs, 2, 4_590, 10)
    found = tower.store.trainable()
    gradients = tape.gradient(cost, list(found.values()))
    assert [n for n, g in zip(found, gradients, strict=True) if g is None] == []
    packaged = {n for n in efficientnet_lite.weights() if not n.startswith(("head/", "fc/"))}
    assert packaged <= set(variables(tower))


def layers(prefix: str, places: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Convolutions of VGG-16 as PyTorch's modules name and lay them out."""
    channels = (3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)
    found: dict[str, np.ndarray] = {}
    for place, before, after in zip(places, channels[:-1], channels[1:], strict=True):
        found[f"{prefix}{place}.weight"] = numbers(after, before, 3, 3, seed=place)
        found[f"{prefix}{place}.bias"] = numbers(after, seed=place + 1)
    return found


@cache
def reduced_shapes() -> dict[str, tuple[int, ...]]:
    tower = tower_of(lambda x: vgg16_reduced.backbone(x)[1], spec(None, 32, 32, 3))
    tower.trace(is_training=False)
    return {name: tuple(v.shape) for name, v in tower.store.named_variables().items()}


PLACES = (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28)


@pytest.mark.parametrize("kind", ["reduced", "torchvision"])
def test_weights_of_pytorch(kind: str) -> None:
    """Every variable gets its value; the first layer sees the same picture."""
    theirs = layers("" if kind == "reduced" else "features.", PLACES)
    if kind == "reduced":
        theirs |= {"31.weight": numbers(1024, 512, 3, 3), "31.bias": numbers(1024)}
        theirs |= {"33.weight": numbers(1024, 1024, 1, 1), "33.bias": numbers(1024)}
    else:  # the rows of fc6 are all alike, as a view: it has 400 MB
        row = numbers(512 * 7 * 7)
        theirs["classifier.0.weight"] = np.broadcast_to(row, (4096, len(row)))
        theirs["classifier.3.weight"] = np.broadcast_to(numbers(4096)[:, None], (4096, 4096))
        theirs |= {f"classifier.{i}.bias": numbers(4096, seed=i) for i in (0, 3)}
    ours = vgg16_reduced.from_torch(theirs)
    assert {name: value.shape for name, value in ours.items()} == reduced_shapes()
    assert sum(map(math.prod, reduced_shapes().values())) == 20_483_904
    pixels = np.random.default_rng(0).uniform(size=(1, 9, 9, 3)).astype(np.float32)
    first = next(iter(theirs.values())).transpose(2, 3, 1, 0)
    mean, std = np.array([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], np.float32)
    same, given = pixels, pixels
    if kind == "torchvision":
        same, given = (pixels - mean) / std, 255 * (pixels - mean)
        np.testing.assert_array_equal(
            ours["fc6/kernel"][:, :, 3, 5], row.reshape(512, 7, 7)[3, ::3, ::3]
        )
        assert ours["fc7/kernel"][0, 0, 9, 7] == theirs["classifier.3.weight"][28, 36]
    np.testing.assert_allclose(
        tf.nn.conv2d(given, ours["conv1_1/kernel"], 1, "SAME"),
        tf.nn.conv2d(same, first, 1, "SAME"),
        rtol=1e-3,
        atol=1e-3,
    )


def test_other_weights_are_refused() -> None:
    with pytest.raises(
        CheckpointError, match=r"must contain the weights of VGG-16(.|\n)*conv1.weight"
    ):
        vgg16_reduced.from_torch({"conv1.weight": np.zeros(3)})
