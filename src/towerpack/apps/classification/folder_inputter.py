"""Pictures in folders, one folder for each class."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack.apps.classification._data_config import DataConfig
from towerpack.apps.classification._image_inputter import (
    Found,
    ImageInputter,
    Part,
    Pictures,
    joined,
)
from towerpack.apps.classification._splits import folder_of, places
from towerpack.apps.classification.augmenters import Augmenter
from towerpack.dataflow import ImageFolder


class FolderInputter(ImageInputter):
    """`path/train/CLASS/*.jpg`, and `val` and `test` alike; or `path/CLASS/*.jpg` alone.

    Of the latter, `validation` is the share of the validation data and that of the test data, too.
    """

    takes = frozenset({"path", "train", "val", "test", "validation"})

    def find(self) -> Found:
        """As the folders are named."""
        root = folder_of(self.config)
        given = places(self.config)
        if "train" in given:
            folders = {
                split: [ImageFolder(p, decode=False) for p in paths]
                for split, paths in given.items()
            }
        elif given:
            raise ConfigError(f"There are no training data in {root}.", expected=f"{root}/train")
        else:
            return self._alone(ImageFolder(root, decode=False))
        names = sorted({name for folder in folders["train"] for name in folder.classes})
        parts = {
            split: joined([_part(folder, names) for folder in several])
            for split, several in folders.items()
        }
        return names, parts

    def _alone(self, folder: ImageFolder) -> Found:
        whole: Part = Pictures(folder.files, folder.labels)
        if not self.config.validation:
            return folder.classes, {"train": whole}
        train, test = whole.divided(max(1, round(self.config.validation * len(whole))))
        return folder.classes, {"train": train, "test": test}


def _part(folder: ImageFolder, names: Sequence[str]) -> Pictures:
    unknown = sorted(set(folder.classes) - set(names))
    if unknown:
        raise ConfigError(
            f"{folder.root} has classes that no training data have.", got=", ".join(unknown)
        )
    numbers = np.array([names.index(name) for name in folder.classes], np.int64)
    return Pictures(folder.files, numbers[folder.labels])


def build(config: DataConfig, augmenter: Augmenter) -> FolderInputter:
    """The inputter."""
    return FolderInputter(config, augmenter)
