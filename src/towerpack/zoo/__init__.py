"""Networks, one file each: `net(image, num_classes, **options) -> logits [n, num_classes]`.

They are called in a tower: layers by name, batch normalisation and dropout by the tower's training
flag. `image` is float32 [n, h, w, c], already normalised. What the last layer sees is exposed as
`'features'` [n, channels].
"""

from __future__ import annotations

from typing import Final

_DEPTHS: Final = (20, 32, 44, 56, 110)

NETWORKS: Final[dict[str, str]] = {
    "lenet": "towerpack.zoo.lenet:net",
    **{f"resnet{depth}": f"towerpack.zoo.resnet32:resnet{depth}" for depth in _DEPTHS},
}
"""Where the network of a name is, as `'module:function'`. Nothing of it has been imported."""
