"""1,797 handwritten digits of 8 x 8 pixels, which come with scikit-learn."""

from __future__ import annotations

import numpy as np

from towerpack.apps._inputter import Split
from towerpack.apps.classification._image_inputter import Found, ImageInputter, Pictures
from towerpack.dataflow import datasets

_INK = 16
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


build = DigitsInputter
