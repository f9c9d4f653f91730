"""Mask R-CNN as torchvision computes it, with its weights."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import torchvision_reference as reference
from towerpack import CheckpointError, ConfigError
from towerpack.nn import expose
from towerpack.tower import TowerFunction
from towerpack.training import SmartInit
from towerpack.zoo.mask_rcnn import MaskRCNN, from_torch
from towers import numbers, spec

EXPECTED = np.load(reference.FILE)
LOSSES = ["rpn_class", "rpn_box", "box_class", "box", "mask"]
NETWORK = MaskRCNN(
    num_classes=reference.CLASSES,
    proposals=(100, 60),
    anchors_before=(300, 200),
    anchor_samples=(100_000, 0.5),
    box_samples=(100_000, 1e-4),  # all, and masks of at most 10
    detections_per_image=20,
    score=0.2,
)
SMALL = MaskRCNN(
    num_classes=2,
    backbone="efficientnet-lite0",
    proposals=(20, 10),
    anchors_before=(50, 40),
    box_samples=(16, 0.25),
    channels=16,
    units=32,
)
SPECS = [
    spec(None, None, None, 3, name="image"),
    spec(None, None, 4, name="true_boxes"),
    spec(None, None, name="true_class_ids", dtype=tf.int32),
    spec(None, None, name="crowd", dtype=tf.bool),
    spec(None, None, 112, 112, name="true_masks", dtype=tf.uint8),
    spec(None, 2, name="sizes", dtype=tf.int32),
]
TRUTH = [
    reference.TRUE_BOXES,
    reference.TRUE_CLASSES,
    np.zeros([2, 3], bool),
    reference.ellipses(),
]
SIZES = np.array(reference.SIZES, np.int32)


def tower_of(network: MaskRCNN) -> TowerFunction:
    def build(image: tf.Tensor, *truth: tf.Tensor) -> tf.Tensor:
        losses = network.losses(image, *truth[:-1])
        for name, value in {**losses, **network.detect(image, truth[-1])}.items():
            expose({"boxes": "detected"}.get(name, name), value)
        return tf.add_n([losses[name] for name in LOSSES if name in losses and name != "mask"])

    return TowerFunction(build, SPECS, seed=3)


@cache
def torch_weights() -> dict[str, np.ndarray]:
    rows = [str(row).split(" ") for row in EXPECTED["names"]]
    return reference.weights({name: [int(n) for n in shape if n] for name, *shape in rows})


def call(tower: TowerFunction, *inputs: Any) -> Any:
    return tower(*inputs, is_training=True, step=tf.constant(0, tf.int64))


@pytest.fixture(scope="module")
def results() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Outputs of our network with torchvision's weights, and gradients by torchvision's names."""
    tower = tower_of(NETWORK)
    tower.trace(is_training=False)
    variables = tower.store.named_variables()
    assert SmartInit(from_torch(torch_weights())).load(variables) == variables.keys()
    with tf.GradientTape() as tape:
        result = call(tower, reference.image(), *TRUTH, SIZES)
    names = [n.removeprefix("gradient/") for n in EXPECTED if n.startswith("gradient/")]
    ours = [next(iter(from_torch({n: torch_weights()[n]}))) for n in names]
    values = tape.gradient(result.cost, [variables[name] for name in ours])
    gradients = {name: np.transpose(value) for name, value in zip(names, values, strict=True)}
    return {name: value.numpy() for name, value in result.outputs.items()}, gradients


@pytest.mark.parametrize("image", [0, 1])
def test_detections_are_those_of_torchvision(results: Any, image: int) -> None:
    found, _ = results
    boxes, scores, labels, masks = (
        EXPECTED[f"detect{image}/{name}"] for name in ("boxes", "scores", "labels", "masks")
    )
    number = len(scores)
    np.testing.assert_allclose(found["detected"][image, :number], boxes, rtol=1e-3)
    np.testing.assert_allclose(found["scores"][image, :number], scores, rtol=1e-3)
    assert found["class_ids"][image, :number].tolist() == [*(labels - 1)]
    np.testing.assert_allclose(found["masks"][image, :4], masks, rtol=1e-3, atol=1e-4)


def test_losses_and_gradients_are_those_of_torchvision(results: Any) -> None:
    found, gradients = results
    losses = [found[name] for name in LOSSES]
    np.testing.assert_allclose(losses[:4], EXPECTED["losses"][:4], rtol=1e-3)
    # Torchvision's masks are half a pixel off, and come from the image.
    np.testing.assert_allclose(losses[4], EXPECTED["losses"][4], rtol=0.02)
    for name, value in gradients.items():
        expected = EXPECTED[f"gradient/{name}"]
        # Kernels have reversed dimensions, of which torchvision's last two are not.
        value = value.swapaxes(2, 3) if value.ndim == 4 else value
        scale = np.abs(expected).max()
        np.testing.assert_allclose(value.reshape(-1)[::97], expected, rtol=0.01, atol=0.01 * scale)


def boxless(number: int) -> list[np.ndarray]:
    truth = [np.zeros([2, number, 4], np.float32), np.full([2, number], -1, np.int32)]
    return [*truth, np.zeros([2, number], bool), np.zeros([2, number, 112, 112], np.uint8)]


def test_the_small_one_learns_also_without_objects_and_at_any_size() -> None:
    """With the packaged weights, of which only those after the backbone find no variable."""
    tower = tower_of(SMALL)
    trained = tower.store.trainable
    tower.trace(is_training=True)
    assert not [name for name in trained() if name.endswith(("gamma", "beta"))]
    loaded = SmartInit("efficientnet-lite0").load(tower.store.named_variables())
    assert {n for n in tower.store.named_variables() if n.startswith(("stem", "block"))} == loaded

    @tf.function(input_signature=SPECS, autograph=False)
    def step(*inputs: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            outputs = call(tower, *inputs).outputs
            cost = tf.add_n([outputs[name] for name in LOSSES])
        return [outputs[name] for name in LOSSES], tape.gradient(cost, [*trained().values()])

    image = numbers(2, 90, 110, 3)
    truth = [TRUTH[0] * 0.6, np.minimum(TRUTH[1], 1), *TRUTH[2:]]
    losses, gradients = step(image, *truth, SIZES)
    assert np.isfinite(losses).all() and np.min(losses) > 0
    assert all(np.isfinite(tf.convert_to_tensor(x)).all() for x in gradients)
    again, _ = step(image, *truth, SIZES)
    assert np.array_equal(losses, again)  # Draws depend on the seed and the step.
    for number in (0, 2):
        losses, gradients = step(image, *boxless(number), SIZES)
        assert [float(loss) for loss in losses[1::2]] == [0, 0] and losses[4] == 0
        assert all(np.isfinite(tf.convert_to_tensor(x)).all() for x in gradients)


def test_faster_rcnn_has_no_masks() -> None:
    outputs = tower_of(replace(SMALL, masks=False)).trace(is_training=False).result.outputs
    assert "scores" in outputs and not {"mask", "masks"} & outputs.keys()


def test_unknown_networks_are_refused() -> None:
    with pytest.raises(ConfigError, match="resnet50, efficientnet-lite0"):
        MaskRCNN(num_classes=2, backbone="resnet51")
    with pytest.raises(ConfigError, match="cascade"):
        MaskRCNN(num_classes=2, cascade=True)
    with pytest.raises(ConfigError, match="5 strides, got 2"):
        MaskRCNN(num_classes=2, anchor_sides=(8, 16))
    with pytest.raises(CheckpointError, match=r"features\.0\.weight"):
        from_torch({"features.0.weight": np.zeros([1, 1, 3, 3], np.float32)})


def test_classification_weights_fit_the_backbone_with_another_epsilon() -> None:
    weights = {"layer1.0.bn1.running_var": np.ones(4, np.float32), "fc.bias": np.ones(9)}
    found = from_torch({**weights, "bn1.num_batches_tracked": np.array(3)}, epsilon=0.5)
    assert found["group0/block0/conv1/bn/moving_variance"] == pytest.approx(1.5 - 1e-5)
