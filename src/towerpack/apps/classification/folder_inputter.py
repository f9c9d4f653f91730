"""Inputter of images in folders, with one folder per class."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack._core.logs import get_logger
from towerpack.apps._splits import are_classes, matching, places, root_of
from towerpack.apps.classification._image_inputter import Found, ImageInputter, Pictures, joined
from towerpack.dataflow import ImageFolder

_LOG = get_logger(__name__)


class FolderInputter(ImageInputter):
    """Inputter of `path/train/CLASS/*.jpg` (also `val` and `test`), or of `path/CLASS/*.jpg`.

    Subfolders are splits if all of them have names of splits, ignoring case. If they are classes,
    the fraction `validation` of the images is used for validation, and the same fraction for
    testing.
    """

    takes = frozenset({"path", "train", "val", "test", "validation"})

    def find(self) -> Found:
        root = root_of(self.config)
        if self.config.train is None and are_classes(root):
            if matching(root, "train"):
                _LOG.warning("%s: the folder 'train' is a class unless data.train names it.", root)
            return self._alone(ImageFolder(root, decode=False))
        folders_of = {
            split: [ImageFolder(folder, decode=False) for folder in folders]
            for split, folders in places(self.config, "{}").items()
        }
        named = folders_of.get("train") or itertools.chain(*folders_of.values())
        names = sorted({name for folder in named for name in folder.classes})
        parts = {s: joined([_part(f, names) for f in some]) for s, some in folders_of.items()}
        return names, parts

    def _alone(self, folder: ImageFolder) -> Found:
        whole = Pictures(folder.files, folder.labels)
        if not self.config.validation:
            return folder.classes, {"train": whole}
        train, test = self.divided(whole, "test")
        return folder.classes, {"train": train, "test": test}


def _part(folder: ImageFolder, names: Sequence[str]) -> Pictures:
    unknown = sorted(set(folder.classes) - set(names))
    if unknown:
        what = f"{folder.root} must have only classes that the training data have."
        raise ConfigError(what, got=", ".join(unknown))
    numbers = np.array([names.index(name) for name in folder.classes], np.int64)
    return Pictures(folder.files, numbers[folder.labels])
