"""1,797 handwritten digits of 8 x 8 pixels, which come with scikit-learn."""

from __future__ import annotations

import numpy as np

from towerpack.apps._inputter import Split
from towerpack.apps.classification._data_config import DataConfig
from towerpack.apps.classification._geometry import Geometry, Size
from towerpack.apps.classification._image_inputter import Found, ImageInputter, Pictures
from towerpack.apps.classification.augmenters import Augmenter, none, to_signed_unit
from towerpack.dataflow import datasets
from towerpack.dataflow.images import Affine, Contrast, ImageAugmentor

_INK = 16


def _train(size: Size) -> list[ImageAugmentor]:
    # Turned, stretched, sheared and shifted a little, on black.
    warp = Affine((0.88, 1.12), (0.08, 0.08), 11.5, shear=8.5, border="constant")
    return [Geometry(height=size[0], width=size[1]).scaling(), warp, Contrast((0.8, 1.2))]


augmenter = Augmenter(name="digits", train=_train, geometry=none.geometry, normalize=to_signed_unit)
"""For digits on black: small turns and shifts; never flipped."""
_SPLITS: tuple[Split, ...] = ("train", "val", "test")


class DigitsInputter(ImageInputter):
    """`datasets.Digits`, split as it is there: white on black, from 0 to 255."""

    def find(self) -> Found:
        """The three parts of the data set."""
        raw = {split: datasets.Digits(split, shuffle=False) for split in _SPLITS}
        parts = {
            split: Pictures(np.rint(ds.images * (255 / _INK)).astype(np.uint8), ds.labels)
            for split, ds in raw.items()
        }
        return raw["train"].get_label_names(), parts


def build(config: DataConfig, augmenter: Augmenter) -> DigitsInputter:
    """The inputter."""
    return DigitsInputter(config, augmenter)
