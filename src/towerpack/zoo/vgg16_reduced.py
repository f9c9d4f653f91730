"""VGG-16 (Simonyan & Zisserman 2014) without its classifier, reduced for SSD.

The dense layers fc6 and fc7 are convolutions with 1,024 filters, and fc6 is dilated (Liu et al.
2016, section 3). Weights are read from files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import tensorflow as tf

from towerpack._core.errors import CheckpointError
from towerpack.nn import Conv2D, MaxPooling, argscope

_BLOCKS: Final = ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))
_NAMES: Final = [
    *(f"conv{i}_{j}" for i, (n, _) in enumerate(_BLOCKS, 1) for j in range(1, n + 1)),
    "fc6",
    "fc7",
]
# Layer numbers in PyTorch's `Sequential`: torchvision's `features`, and `vgg` of SSD programs.
_PLACES: Final = (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28)
_TORCHVISION_STD: Final = (0.229, 0.224, 0.225)


def backbone(image: tf.Tensor) -> list[tf.Tensor]:
    """Return the outputs of conv4_3 (stride 8, 512 channels) and fc7 (stride 16, 1,024 channels).

    Args:
        image: RGB images [n, h, w, 3], minus the mean color of ImageNet.
    """
    outputs: list[tf.Tensor] = []
    x = image
    with argscope(Conv2D, kernel_size=3, activation="relu"):
        for block, (count, filters) in enumerate(_BLOCKS, 1):
            for number in range(1, count + 1):
                x = Conv2D(f"conv{block}_{number}", x, filters)
            if block == 4:
                outputs.append(x)
            size, strides = (2, 2) if block < 5 else (3, 1)
            x = MaxPooling(f"pool{block}", x, size, strides=strides, padding="same")
        x = Conv2D("fc6", x, 1024, dilation_rate=6)
        return [*outputs, Conv2D("fc7", x, 1024, kernel_size=1)]


def from_torch(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Convert VGG-16 weights of PyTorch to the variable names and shapes of `backbone`.

    Accepts reduced VGG-16 networks of SSD programs (`0.weight` … `33.weight`) and torchvision's
    `vgg16` (`features.0.weight` … `classifier.3.weight`). For torchvision, fc6 and fc7 are
    subsampled, and the first kernel is divided by the standard deviation of the pixels.

    Args:
        weights: Result of `read_torch_file`.

    Raises:
        CheckpointError: The weights belong to another network.
    """
    try:
        if "features.0.weight" in weights:
            return _from_torchvision(weights)
        places = zip(_NAMES, (*_PLACES, 31, 33), strict=True)
        return _by_variable({name: _layer(weights, str(place)) for name, place in places})
    except KeyError as error:
        raise CheckpointError(
            f"The file must contain the weights of VGG-16, but {error} is missing.",
            got=", ".join([*weights][:6]),
            expected="'0.weight' … '33.weight', or torchvision's 'features.0.weight' …",
        ) from error


def _from_torchvision(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    layers = {n: _layer(weights, f"features.{p}") for n, p in zip(_NAMES, _PLACES, strict=False)}
    kernel, bias = layers["conv1_1"]
    layers["conv1_1"] = kernel / (255 * np.array(_TORCHVISION_STD, np.float32)[:, None]), bias
    dense, bias = weights["classifier.0.weight"], weights["classifier.0.bias"]
    dense = dense[::4].reshape(-1, 512, 7, 7)[:, :, ::3, ::3]
    layers["fc6"] = dense.transpose(2, 3, 1, 0), bias[::4]
    dense, bias = weights["classifier.3.weight"], weights["classifier.3.bias"]
    layers["fc7"] = dense[::4, ::4].T[None, None], bias[::4]
    return _by_variable(layers)


def _layer(weights: Mapping[str, np.ndarray], name: str) -> tuple[np.ndarray, np.ndarray]:
    return weights[f"{name}.weight"].transpose(2, 3, 1, 0), weights[f"{name}.bias"]


def _by_variable(layers: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, np.ndarray]:
    return {
        f"{name}/{kind}": value
        for name, pair in layers.items()
        for kind, value in zip(("kernel", "bias"), pair, strict=True)
    }
