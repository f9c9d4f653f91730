"""Contenders of `apps.py` for detection, one to a process: PART-ours or PART-theirs."""

from __future__ import annotations

import sys
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from _fitting import fit, train_ours
from _measure import Gate

from towerpack.ops.anchors import AnchorLevel
from towerpack.ops.boxes import suppress
from towerpack.ops.matching import match, multibox_loss

PART, CONTENDER = sys.argv[1].split("-")
OURS = CONTENDER == "ours"
RNG = np.random.default_rng(0)


def boxes(*shape: int) -> np.ndarray:
    """Boxes of 5 to 30 % of a picture's sides."""
    low = RNG.uniform(0, 0.7, (*shape, 2))
    return np.concatenate([low, low + RNG.uniform(0.05, 0.3, (*shape, 2))], -1).astype(np.float32)


def repeated(once: Callable[[], float], steps: int) -> None:
    """Answer turns of so many calls."""
    gate = Gate(steps)
    going = gate.open()
    while going:
        for _ in range(steps):
            result = once()
        going = gate.epoch_done(lambda result=result: result)


def overlap(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Intersection over union [n, m] by NumPy."""
    size = np.minimum(a[:, None, 2:], b[:, 2:]) - np.maximum(a[:, None, :2], b[:, :2])
    both = np.clip(size, 0, None).prod(-1)
    areas = [(x[:, 2] - x[:, 0]) * (x[:, 3] - x[:, 1]) for x in (a, b)]
    return both / (areas[0][:, None] + areas[1] - both)


def matching() -> None:
    """SSD300's anchors and 32 pictures. The result is the number of matched anchors."""
    from towerpack.zoo.ssd import levels

    sides = (38, 19, 10, 5, 3, 1)
    pairs = zip(levels(300), sides, strict=True)
    anchors = np.concatenate([level.boxes(side, side, (300, 300)) for level, side in pairs])
    true, ids = boxes(32, 20), RNG.integers(0, 80, (32, 20)).astype(np.int32)

    def by_numpy() -> float:
        count = 0
        for own, classes in zip(true, ids, strict=True):
            found = overlap(anchors, own)
            which, best = found.argmax(1), found.max(1)
            forced = found.argmax(0)
            which[forced], best[forced] = np.arange(len(own)), 1
            class_ids = np.where(best > 0.5, classes[which], -1)
            matched = np.where((best > 0.5)[:, None], own[which], 0)
            count += int((class_ids >= 0).sum()) if len(matched) else 0
        return count

    graph = tf.function(match, autograph=False)
    given = [tf.constant(value) for value in (anchors, true, ids)]  # not folded into the graph

    def by_graph() -> float:
        return float((graph(*given).class_ids.numpy() >= 0).sum())

    repeated(by_graph if OURS else by_numpy, 3)


def suppression() -> None:
    """80 classes of 8 pictures. The result is the sum of the scores that are left."""
    found = boxes(8, 8732)
    scores = RNG.uniform(size=(8, 8732, 80)).astype(np.float32) ** 1600

    def by_numpy() -> float:
        total = 0.0
        for own, columns in zip(found, scores, strict=True):
            kept: list[float] = []
            for column in columns.T:
                order = np.flatnonzero(column > 0.01)
                order = order[np.argsort(-column[order])]
                while len(order):
                    kept.append(column[order[0]])
                    order = order[1:][overlap(own[order[:1]], own[order[1:]])[0] <= 0.45]
            total += float(np.sort(kept)[::-1][:200].sum())
        return total

    graph = tf.function(suppress, autograph=False)
    given = tf.constant(found), tf.constant(scores)
    repeated((lambda: float(graph(*given).scores.numpy().sum())) if OURS else by_numpy, 1)


LEVELS = [AnchorLevel(8, 24, 48), AnchorLevel(16, 48, 96), AnchorLevel(32, 96, 192)]
MAPS = {3: 0, 5: 1, 7: 2}  # after which convolution, which level
FILTERS = ((32, 2), (32, 1), (64, 2), (64, 2), (96, 1), (128, 2), (128, 1), (128, 2))
SIZE, BATCH, CLASSES, STEPS = 128, 8, 10, 6


def ssd() -> None:
    """Training steps of a small detector. The result is the loss."""
    anchors = np.concatenate(
        [
            level.boxes(128 // s, 128 // s, (SIZE, SIZE))
            for level, s in zip(LEVELS, (8, 16, 32), strict=True)
        ]
    )
    image = RNG.uniform(size=(BATCH, SIZE, SIZE, 3)).astype(np.float32)
    true, ids = boxes(BATCH, 6), RNG.integers(0, CLASSES, (BATCH, 6)).astype(np.int32)

    def loss(logits: tf.Tensor, offsets: tf.Tensor, true: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        return sum(multibox_loss(logits, offsets, anchors, match(anchors, true, ids)))

    (ssd_ours if OURS else ssd_keras)(image, true, ids, loss)


def ssd_ours(image: np.ndarray, true: np.ndarray, ids: np.ndarray, loss: Callable) -> None:
    from towerpack.nn import BNReLU, Conv2D
    from towerpack.zoo.ssd import predictions

    def inputs() -> list[tf.TensorSpec]:
        return [
            tf.TensorSpec([BATCH, SIZE, SIZE, 3], tf.float32, "image"),
            tf.TensorSpec([BATCH, 6, 4], tf.float32, "boxes"),
            tf.TensorSpec([BATCH, 6], tf.int32, "ids"),
        ]

    def build(image: tf.Tensor, true: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        x, maps = image, []
        for number, (filters, strides) in enumerate(FILTERS):
            x = Conv2D(f"conv{number}", x, filters, 3, strides=strides, activation=BNReLU)
            maps += [x] if number in MAPS else []
        found = predictions(image, maps, LEVELS, CLASSES, Conv2D)
        return loss(found.logits, found.offsets, true, ids)

    train_ours(inputs, build, 1e-3, (image, true, ids), STEPS)


def ssd_keras(image: np.ndarray, true: np.ndarray, ids: np.ndarray, loss: Callable) -> None:
    layers = keras.layers
    x = entry = keras.Input([SIZE, SIZE, 3])
    parts = []
    for number, (filters, strides) in enumerate(FILTERS):
        x = layers.Conv2D(filters, 3, strides=strides, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
        if number in MAPS:
            per_cell = LEVELS[MAPS[number]].per_cell
            heads = [
                layers.Reshape([-1, n])(layers.Conv2D(per_cell * n, 3, padding="same")(x))
                for n in (1 + CLASSES, 4)
            ]
            parts.append(layers.Concatenate()(heads))
    model = keras.Model(entry, layers.Concatenate(axis=1)(parts))

    def packed(truth: tf.Tensor, found: tf.Tensor) -> tf.Tensor:
        logits, offsets = found[..., : 1 + CLASSES], found[..., 1 + CLASSES :]
        return loss(logits, offsets, truth[..., :4], tf.cast(truth[..., 4], tf.int32))

    truth = np.concatenate([true, ids[..., None]], -1).astype(np.float32)
    model.compile(optimizer=keras.optimizers.SGD(1e-3, momentum=0.9), loss=packed)
    data = tf.data.Dataset.from_tensors((image, truth)).repeat()
    fit(model, data, STEPS, steps_per_epoch=STEPS)


{"matching": matching, "suppression": suppression, "ssd": ssd}[PART]()
