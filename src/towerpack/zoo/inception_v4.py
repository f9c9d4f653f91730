"""Inception-v4 (Szegedy et al. 2017), with the same variable names as TF-slim's checkpoints.

`SmartInit('inception_v4.ckpt', skip='InceptionV4/Logits/.*')` loads a checkpoint, which needs
pixels from -1 to 1. The checkpoint contains no `gamma`, which remains 1.
"""

from __future__ import annotations

from typing import Any, Final

import tensorflow as tf

from towerpack.nn import (
    AvgPooling,
    BatchNorm,
    Conv2D,
    Dropout,
    FullyConnected,
    GlobalAvgPooling,
    MaxPooling,
    argscope,
    expose,
    scope,
)

# Each block is a tuple of branches whose outputs are concatenated. A step of a branch is a pooling,
# a convolution (index, filters, kernel height, kernel width), or a list of parallel convolutions.
# Convolutions with an index of 1 have no padding, and may have strides.
_MAX: Final = "max"
_AVG: Final = "avg"
_STEM_3: Final = ([_MAX], [("1a", 96, 3, 3)])
_STEM_4: Final = (
    [("0a", 64, 1, 1), ("1a", 96, 3, 3)],
    [("0a", 64, 1, 1), ("0b", 64, 1, 7), ("0c", 64, 7, 1), ("1a", 96, 3, 3)],
)
_STEM_5: Final = ([("1a", 192, 3, 3)], [_MAX])
_A: Final = (
    [("0a", 96, 1, 1)],
    [("0a", 64, 1, 1), ("0b", 96, 3, 3)],
    [("0a", 64, 1, 1), ("0b", 96, 3, 3), ("0c", 96, 3, 3)],
    [_AVG, ("0b", 96, 1, 1)],
)
_REDUCTION_A: Final = (
    [("1a", 384, 3, 3)],
    [("0a", 192, 1, 1), ("0b", 224, 3, 3), ("1a", 256, 3, 3)],
    [_MAX],
)
_B: Final = (
    [("0a", 384, 1, 1)],
    [("0a", 192, 1, 1), ("0b", 224, 1, 7), ("0c", 256, 7, 1)],
    [("0a", 192, 1, 1), ("0b", 192, 7, 1), ("0c", 224, 1, 7), ("0d", 224, 7, 1), ("0e", 256, 1, 7)],
    [_AVG, ("0b", 128, 1, 1)],
)
_REDUCTION_B: Final = (
    [("0a", 192, 1, 1), ("1a", 192, 3, 3)],
    [("0a", 256, 1, 1), ("0b", 256, 1, 7), ("0c", 320, 7, 1), ("1a", 320, 3, 3)],
    [_MAX],
)
_C: Final = (
    [("0a", 256, 1, 1)],
    [("0a", 384, 1, 1), [("0b", 256, 1, 3), ("0c", 256, 3, 1)]],
    [
        *(("0a", 384, 1, 1), ("0b", 448, 3, 1), ("0c", 512, 1, 3)),
        [("0d", 256, 1, 3), ("0e", 256, 3, 1)],
    ],
    [_AVG, ("0b", 256, 1, 1)],
)


def net(image: tf.Tensor, num_classes: int, *, dropout: float = 0.2) -> tf.Tensor:
    """Return logits [n, num_classes] for images, without the auxiliary head.

    Args:
        image: [n, h, w, 3] of at least 75x75 pixels (299x299 in the paper).
        num_classes, dropout: Number of classes, and dropout rate of the features.
    """
    with (
        scope("InceptionV4"),
        argscope(Conv2D, use_bias=False, activation=_normalized),
        argscope(BatchNorm, momentum=0.9997, epsilon=1e-3),
    ):
        x = Conv2D("Conv2d_1a_3x3", image, 32, 3, strides=2, padding="valid")
        x = Conv2D("Conv2d_2a_3x3", x, 32, 3, padding="valid")
        x = Conv2D("Conv2d_2b_3x3", x, 64, 3)
        x = _mixed("Mixed_3a", x, _STEM_3, strides=2)
        x = _mixed("Mixed_4a", x, _STEM_4)
        x = _mixed("Mixed_5a", x, _STEM_5, strides=2)
        for letter in "bcde":
            x = _mixed(f"Mixed_5{letter}", x, _A)
        x = _mixed("Mixed_6a", x, _REDUCTION_A, strides=2)
        for letter in "bcdefgh":
            x = _mixed(f"Mixed_6{letter}", x, _B)
        x = _mixed("Mixed_7a", x, _REDUCTION_B, strides=2)
        for letter in "bcd":
            x = _mixed(f"Mixed_7{letter}", x, _C)
    features = GlobalAvgPooling("pool", x)
    expose("features", features)
    features = Dropout("dropout", features, dropout)
    return FullyConnected("InceptionV4/Logits/Logits", features, num_classes)


def _mixed(name: str, x: tf.Tensor, branches: Any, strides: int = 1) -> tf.Tensor:
    outputs = []
    for number, steps in enumerate(branches):
        with scope(f"{name}/Branch_{number}"):
            y = x
            for step in steps:
                y = _step(y, step, strides)
            outputs.append(y)
    return tf.concat(outputs, axis=-1)


def _step(x: tf.Tensor, step: Any, strides: int) -> tf.Tensor:
    if step == _MAX:
        return MaxPooling("MaxPool", x, 3, strides=2)
    if step == _AVG:
        return AvgPooling("AvgPool", x, 3, strides=1, padding="same")
    if isinstance(step, list):
        return tf.concat([_step(x, part, strides) for part in step], axis=-1)
    index, filters, *kernel = step
    shrinks = index.startswith("1")
    return Conv2D(
        f"Conv2d_{index}_{kernel[0]}x{kernel[1]}",
        x,
        filters,
        tuple(kernel),
        strides=strides if shrinks else 1,
        padding="valid" if shrinks else "same",
    )


def _normalized(x: tf.Tensor) -> tf.Tensor:
    return tf.nn.relu(BatchNorm("BatchNorm", x))
