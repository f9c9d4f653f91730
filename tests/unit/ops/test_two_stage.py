"""RoIAlign, proposals, assignment and losses of Mask R-CNN, as torchvision computes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import torchvision_reference as reference
from torchvision_reference import boxes, draw, labels
from towerpack.ops import proposals
from towerpack.ops.boxes import clip, decode, encode
from towerpack.ops.matching import assign, sample
from towerpack.ops.roi_align import mask_targets, roi_align

EXPECTED = np.load(reference.FILE)


def assert_gradients(name: str, loss: Any, **inputs: np.ndarray) -> None:
    """The loss and its gradients are the reference's."""
    variables = {key: tf.Variable(value) for key, value in inputs.items()}
    with tf.GradientTape() as tape:
        value = tf.function(loss)(**variables)
    np.testing.assert_allclose(value, EXPECTED[name], rtol=1e-5)
    for key, gradient in tape.gradient(value, variables).items():
        np.testing.assert_allclose(gradient, EXPECTED[f"{name}/{key}"], rtol=1e-4, atol=1e-7)


def test_roi_align() -> None:
    maps = [tf.Variable(x) for x in reference.maps()]
    rois = np.stack([boxes(f"roi{i}", 20, 384, 512) for i in range(2)])
    with tf.GradientTape() as tape:
        pooled = tf.function(roi_align)(maps, tf.constant(rois), 7)
        cost = tf.reduce_sum(pooled * draw("roi_align", *pooled.shape))
    np.testing.assert_allclose(pooled, EXPECTED["roi_align"], rtol=1e-3, atol=1e-3)
    for i, gradient in enumerate(tape.gradient(cost, maps)):
        found = gradient.numpy()[:, ::3, ::3]
        np.testing.assert_allclose(found, EXPECTED[f"roi_align/{i}"], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["rpn", "box"])
def test_box_coding(kind: str) -> None:
    variances = proposals.PROPOSAL_VARIANCES if kind == "rpn" else proposals.BOX_VARIANCES
    one, two = boxes("a", 8, 90, 120), boxes("b", 8, 90, 120)
    codes = encode(one, two, variances)
    np.testing.assert_allclose(codes, EXPECTED[f"encode/{kind}"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(decode(codes, two, variances), one, rtol=1e-4, atol=1e-3)
    far = decode(tf.constant(draw("c", 8, 4) * 9), two, variances, max_growth=1000 / 16)
    np.testing.assert_allclose(far, EXPECTED[f"decode/{kind}"], rtol=1e-4)


def test_losses_and_their_gradients() -> None:
    logits, offsets = draw("logits", 2, 40), draw("offsets", 2, 40, 4)
    ids, goals = tf.constant(labels("anchors", 40, 1)), draw("goals", 2, 40, 4)

    def anchors(index: int) -> Any:
        return lambda logits=logits, offsets=offsets: proposals.proposal_losses(
            logits, offsets, goals, ids
        )[index]

    assert_gradients("rpn_class", anchors(0), logits=logits)
    assert_gradients("rpn_box", anchors(1), offsets=offsets)
    logits, offsets = draw("classes", 2, 30, 4), draw("moves", 2, 30, 4, 4)
    ids2, places = tf.constant(labels("boxes", 30)), draw("places", 2, 30, 4)

    def heads(index: int) -> Any:
        return lambda logits=logits, offsets=offsets: proposals.box_losses(
            logits, offsets, places, ids2
        )[index]

    assert_gradients("box_class", heads(0), logits=logits)
    assert_gradients("box", heads(1), offsets=offsets)


def test_mask_loss_takes_the_mask_of_the_true_class() -> None:
    """Torchvision's loss is the same mean, here by hand: log(1 + e^-x) where the mask is 1."""
    logits = tf.constant(np.float32([[[[[2.0, -9.0]]], [[[7.0, 7.0]]]]]))
    loss = proposals.mask_loss(logits, tf.ones([1, 2, 1, 1]), tf.constant([[0, -1]], tf.int64))
    assert float(loss) == pytest.approx(np.log1p(np.exp(-2)))


def test_masks_are_cut_and_scaled_to_a_box() -> None:
    masks = reference.ellipses()[:1, :1]
    own = np.float32([[[10, 20, 50, 100]]])
    rois = np.float32([[[10, 20, 50, 100], [30, 20, 50, 60], [30, 60, 70, 140], [200, 0, 240, 9]]])
    which = tf.zeros([1, 4], tf.int64)
    parts = mask_targets(tf.constant(masks), own, which, rois, 28).numpy()[0]
    assert parts[0].mean() == pytest.approx(np.pi / 4, abs=0.01)
    assert parts[1].mean() == pytest.approx(np.pi / 4, abs=0.01)  # a quarter of it fills the box
    assert parts[2].mean() == pytest.approx(np.pi / 16, abs=0.01)
    assert parts[2][:14, :14].mean() == pytest.approx(np.pi / 4, abs=0.02)
    assert parts[3].max() == 0


TRUE = np.float32([[[0, 0, 100, 100], [200, 0, 240, 40], [300, 300, 400, 400]]])
CLASSES = tf.constant([[4, 1, 2]])
CROWD = tf.constant([[False, False, True]])
PLACES = np.float32(
    [
        [0, 0, 100, 80],  # 0.8 of the first object
        [0, 0, 50, 100],  # 0.5
        [0, 0, 10, 10],  # 0.01
        [200, 0, 220, 40],  # 0.5, but nothing overlaps the second object more
        [310, 310, 350, 350],  # in the crowd
        [150, 150, 150, 190],  # no area
    ]
)


def test_assignment() -> None:
    ids, which = assign(PLACES, TRUE, CLASSES, CROWD, low=0.3, high=0.7, best=True)
    assert ids.numpy().tolist() == [[4, -2, -1, 1, -2, -2]]
    assert which.numpy()[0, :4].tolist() == [0, 0, 0, 1]
    ids, _ = assign(PLACES[None], TRUE, CLASSES, CROWD, low=0.5, high=0.5)
    assert ids.numpy().tolist() == [[4, 4, -1, 1, -2, -2]]


def test_without_objects_all_is_background() -> None:
    ids, _ = assign(PLACES[:4], TRUE, tf.fill([1, 3], -1), CROWD, low=0.3, high=0.7, best=True)
    assert ids.numpy().tolist() == [[-1] * 4]


@pytest.mark.parametrize(("objects", "size"), [(3, 8), (30, 8), (0, 8), (100, 200)])
def test_samples(objects: int, size: int) -> None:
    """At most a quarter has objects, which come first; the remainder is background."""
    ids = np.full([2, 100], -1, np.int64)
    ids[:, :objects] = 5
    ids[:, 90:] = -2
    noise = np.random.default_rng(0).uniform(size=[2, 100]).astype(np.float32)
    where, counts = sample(ids, noise, size=size, positives=0.25)
    background = max(90 - objects, 0)
    for own, index, valid in zip(ids, where.numpy(), counts.numpy(), strict=True):
        chosen = own[index[valid]]
        first = min(objects, 90, size // 4)
        assert chosen.tolist() == [5] * first + [-1] * min(size - first, background)
        assert len(set(index)) == len(index) == min(size, 100)
    other, _ = sample(ids, noise[::-1], size=size, positives=0.25)
    assert size > 100 or not np.array_equal(other, where)


def test_proposals_are_suppressed_within_a_level() -> None:
    anchors = tf.constant(np.float32([[0, 0, 20, 20], [1, 0, 21, 20], [50, 50, 70, 70]]))
    logits = [tf.constant([[1.0, 2.0, -3.0]]), tf.constant([[5.0]])]
    offsets = [tf.zeros([1, 3, 4]), tf.zeros([1, 1, 4])]
    found = proposals.propose(
        logits,
        offsets,
        [anchors, anchors[:1]],
        tf.constant([[60, 60]]),
        before=3,
        after=5,
        iou_threshold=0.7,
    )
    expected = [[0, 0, 20, 20], [1, 0, 21, 20], [50, 50, 60, 60], [0] * 4, [0] * 4]
    assert found.numpy().tolist() == [expected]


def test_boxes_are_clipped_to_their_own_image() -> None:
    both = tf.constant([[[-1.0, 2, 9, 9]], [[-1.0, 2, 9, 9]]])
    clipped = clip(both, tf.constant([[5, 7], [20, 20]]))
    assert clipped.numpy().tolist() == [[[0, 2, 7, 5]], [[0, 2, 9, 9]]]
