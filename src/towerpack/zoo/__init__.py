"""Networks, one file each: `net(image, num_classes, **options) -> logits [n, num_classes]`.

They are called in a tower: layers by name, batch normalisation and dropout by the tower's training
flag. `image` is float32 [n, h, w, c], already normalised. What the last layer sees is exposed as
`'features'` [n, channels].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """A network with weights that a package brings.

    Attributes:
        network: Its name in `NETWORKS`.
        weights: `'module:function'` that gives arrays by the names of the network's variables.
        class_names: `'module:function'` that gives a list.
        side_px: Of the square that it was trained on.
        fraction: Of a picture's height and width; what lies further out is cut off.
        mean: Of pixels from 0 to 255, subtracted first.
        scale: What the difference is divided by.
    """

    network: str
    weights: str
    class_names: str
    side_px: int
    fraction: float
    mean: float
    scale: float


PRETRAINED: Final = {
    "efficientnet-lite0": Pretrained(
        network="efficientnet_lite0",
        weights="towerpack.zoo.efficientnet_lite:weights",
        class_names="towerpack.zoo.imagenet:class_names",
        side_px=224,
        fraction=0.875,
        mean=127.0,
        scale=128.0,
    )
}
