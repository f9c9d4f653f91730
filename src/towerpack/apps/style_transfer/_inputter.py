from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack.apps._inputter import Split
from towerpack.apps._pictures import FilesInputter, listed_by_split, pictures_in, read_picture
from towerpack.apps._splits import are_classes, places, root_of
from towerpack.apps.classification import augmenters
from towerpack.apps.style_transfer._config import DataConfig, StyleConfig
from towerpack.config import Registry
from towerpack.dataflow import AugmentImageComponent, DataFlow

Found = dict[str, list[str]]  # files by split


class PhotoInputter(FilesInputter):
    """Inputter of square crops of photographs. A batch is (image uint8 [n, size, size, 3],).

    In training, scale, position and flip are random, as for the augmenter `vgg`. Otherwise, the
    square is the center of the photograph.

    Args:
        config: Section `data` of a recipe.
    """

    config: DataConfig

    def find(self) -> tuple[Sequence[str], dict[str, list[str]]]:
        return (), INPUTTERS.get(self.config.inputter)(self.config)

    def decoder(self) -> Callable[[Any], Any]:
        return _read

    def flow(self, split: Split) -> DataFlow:
        vgg, size = augmenters.vgg, (self.config.size, self.config.size)
        change = vgg.train(size) if split == "train" else [vgg.geometry(size).scaling()]
        return self.batches(split, lambda ds: AugmentImageComponent(ds, change, copy=False))

    def prepare(self, sample: Any) -> tuple[NDArray[np.uint8]]:
        """Return the image at its original size: (uint8 [h, w, 3],)."""
        return (sample,)


def in_folders(config: DataConfig) -> Found:
    """Return the images in the folders of the splits, or in `path` if it contains no splits."""
    root = root_of(config)
    if config.train is None and are_classes(root):
        return {"train": pictures_in(root)}
    folders = places(config, "{}").items()
    return {split: [file for n in names for file in pictures_in(n)] for split, names in folders}


def in_lists(config: DataConfig) -> Found:
    """Return the images that `train.csv`, `val.csv`, `test.csv` or the configured files list."""
    rows = listed_by_split(config, ("image",)).items()
    return {split: [row.fields[0] for row in some] for split, some in rows}


INPUTTERS: Registry[Callable[[DataConfig], Found]] = Registry(
    "inputter", {"folder": in_folders, "csv": in_lists}
)
"""Functions from the section `data` of a recipe to the files of each split, by name."""


def _read(file: str) -> tuple[NDArray[np.uint8]]:
    return (read_picture(file),)


def make_inputter(config: StyleConfig | DataConfig) -> PhotoInputter:
    """Create the inputter of a recipe.

    Args:
        config: Recipe, or its section `data`.
    """
    return PhotoInputter(config if isinstance(config, DataConfig) else config.data)
