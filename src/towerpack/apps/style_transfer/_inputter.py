"""Photographs as batches, without labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack.apps._inputter import Split
from towerpack.apps._pictures import FilesInputter, listed, pictures_in, read_picture
from towerpack.apps._splits import are_classes, places, root_of
from towerpack.apps.classification import augmenters
from towerpack.apps.style_transfer._config import DataConfig, StyleConfig
from towerpack.config import Registry
from towerpack.dataflow import AugmentImageComponent, DataFlow

Found = dict[str, list[str]]
"""Files of each split."""


class PhotoInputter(FilesInputter):
    """Squares of photographs: batches (image uint8 [n, size, size, 3],).

    In training their place, size and side are drawn (as of the augmenter `vgg`); otherwise they are
    the middle.

    Args:
        config: Which data, and how.
    """

    config: DataConfig

    def find(self) -> tuple[Sequence[str], dict[str, list[str]]]:
        """No classes, and the files."""
        return (), INPUTTERS.get(self.config.inputter)(self.config)

    def decoder(self) -> Callable[[Any], Any]:
        """Of files."""
        return _read

    def flow(self, split: Split) -> DataFlow:
        vgg, size = augmenters.vgg, (self.config.size, self.config.size)
        change = vgg.train(size) if split == "train" else [vgg.geometry(size).scaling()]
        return self.batches(split, lambda ds: AugmentImageComponent(ds, change, copy=False))

    def prepare(self, sample: Any) -> tuple[NDArray[np.uint8]]:
        """(uint8 [h, w, 3],): the picture as it is."""
        return (sample,)


def in_folders(config: DataConfig) -> Found:
    """Pictures in `train/`, `val/`, `test/` or the named folders; or in `path` alone."""
    root = root_of(config)
    if config.train is None and are_classes(root):
        return {"train": pictures_in(root)}
    given = places(config, "{}").items()
    return {split: [file for n in names for file in pictures_in(n)] for split, names in given}


def in_lists(config: DataConfig) -> Found:
    """Pictures that `train.csv`, `val.csv`, `test.csv` or the named lists name, one a line."""
    return {
        split: [
            row.fields[0] for name in names for row in listed(name, ("image",), config.encoding)
        ]
        for split, names in places(config, "{}.csv").items()
    }


INPUTTERS: Registry[Callable[[DataConfig], Found]] = Registry(
    "inputter", {"folder": in_folders, "csv": in_lists}
)
"""Functions from the section `data` of a recipe to the files of each split."""


def _read(file: str) -> tuple[NDArray[np.uint8]]:
    return (read_picture(file),)


def make_inputter(config: StyleConfig | DataConfig) -> PhotoInputter:
    """The inputter of a recipe, or of its section `data`."""
    return PhotoInputter(config if isinstance(config, DataConfig) else config.data)
