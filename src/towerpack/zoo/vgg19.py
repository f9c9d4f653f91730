"""Convolutions of VGG-19 (Simonyan & Zisserman 2014, configuration E), with weights from files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import tensorflow as tf

from towerpack._core.errors import CheckpointError
from towerpack.nn import Conv2D, MaxPooling, argscope

_STAGES: Final = (2, 2, 4, 4, 4)
_NUMBERS: Final = re.compile(r"(\d+)")
# Mean and standard deviation of ImageNet pixels, in the order RGB.
_MEAN: Final = (123.68, 116.779, 103.939)
_MEAN_UNIT: Final = (0.485, 0.456, 0.406)
_DEVIATION_UNIT: Final = (0.229, 0.224, 0.225)
_BGR, _UNIT = "bgr", "unit"


def features(image: tf.Tensor, widths: tuple[int, ...], pixels: str) -> dict[str, tf.Tensor]:
    """Return the outputs of the 16 convolutions by name: `conv1_1` to `conv5_4`.

    Args:
        image: RGB images, float32 [n, h, w, 3] from 0 to 255.
        widths: Number of filters of each convolution.
        pixels: Input that the weights need: 'rgb' or 'bgr' minus the mean, or 'unit' for RGB with
            mean 0 and standard deviation 1.
    """
    x: Any = image - tf.constant(_MEAN)
    if pixels == _UNIT:
        x = (image / 255 - tf.constant(_MEAN_UNIT)) / tf.constant(_DEVIATION_UNIT)
    elif pixels == _BGR:
        x = x[..., ::-1]
    outputs: dict[str, tf.Tensor] = {}
    filters = iter(widths)
    with argscope(Conv2D, kernel_size=3, activation=tf.nn.relu):
        for stage, number in enumerate(_STAGES, 1):
            if stage > 1:
                x = MaxPooling(f"pool{stage - 1}", x, 2)
            for i in range(1, number + 1):
                name = f"conv{stage}_{i}"
                x = outputs[name] = Conv2D(name, x, next(filters))
    return outputs


def arranged(weights: Mapping[str, np.ndarray], what: str) -> tuple[dict[str, np.ndarray], str]:
    """Rename VGG-19 weights of any library for `features`. Uses the first sixteen 3x3 kernels.

    Args:
        weights: Arrays by name. Layers are sorted by name, with numbers in numeric order.
        what: Name of the file in error messages.

    Returns:
        Weights by the variable names of `features`, and its argument `pixels`: 'unit' for PyTorch
        (kernels [out, in, 3, 3]), 'bgr' for Keras (names such as `block1_conv1`), else 'rgb'.

    Raises:
        CheckpointError: The weights belong to another network.
    """
    names = sorted(weights, key=lambda n: [int(p) if p.isdigit() else p for p in _NUMBERS.split(n)])
    kernels = [n for n in names if weights[n].ndim == 4][: sum(_STAGES)]
    renamed: dict[str, np.ndarray] = {}
    is_torch = all(weights[n].shape[2:] == (3, 3) for n in kernels)
    places = [f"conv{s}_{i + 1}" for s, number in enumerate(_STAGES, 1) for i in range(number)]
    channels = 3
    for place, name in zip(places, kernels, strict=False):
        kernel = np.asarray(weights[name])
        kernel = kernel.transpose(2, 3, 1, 0) if is_torch else kernel
        biases = [n for n in names if _beside(n, name)]
        if kernel.shape[:3] != (3, 3, channels) or len(biases) != 1:
            break
        channels = kernel.shape[3]
        renamed[f"{place}/kernel"] = kernel
        renamed[f"{place}/bias"] = np.asarray(weights[biases[0]])
    if len(renamed) != 2 * len(places):
        raise CheckpointError(
            f"{what} must contain the weights of VGG-19.",
            got=f"{len(renamed) // 2} consecutive convolutions of 3x3 with biases",
            expected="16, as in torchvision, Keras or slim",
        )
    return renamed, _UNIT if is_torch else _BGR if "block1_conv1" in kernels[0] else "rgb"


def _beside(name: str, kernel: str) -> bool:
    """Return whether the variable `name` is in the same layer as the variable `kernel`."""
    layer = re.split(r"[./]", kernel)[:-1]
    return name != kernel and re.split(r"[./]", name)[:-1] == layer
