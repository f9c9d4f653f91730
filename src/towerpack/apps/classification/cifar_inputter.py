"""CIFAR-10 and CIFAR-100, in the binary version."""

from __future__ import annotations

from pathlib import Path

from towerpack.apps.classification._image_inputter import Found, ImageInputter, Pictures
from towerpack.dataflow.datasets import Cifar10, Cifar100, CifarBase

_KINDS: dict[str, type[CifarBase]] = {"cifar10": Cifar10, "cifar100": Cifar100}


class CifarInputter(ImageInputter):
    """`datasets.Cifar10`; with `inputter: cifar100`, `datasets.Cifar100` with its fine classes.

    `path` is the folder with the files, or the one in which theirs lies or is to be downloaded to.
    """

    takes = frozenset({"path", "validation"})

    def find(self) -> Found:
        """The training and test data of the data set."""
        kind = _KINDS.get(self.config.inputter, Cifar10)
        folder = None if self.config.path is None else Path(self.config.path).expanduser()
        if folder is not None and any(folder.glob("*.bin")):
            kind = type(kind.__name__, (kind,), {"_folder": folder.resolve().name})
            folder = folder.resolve().parent
        raw = {split: kind(split, shuffle=False, dir=folder) for split in ("train", "test")}
        parts = {split: Pictures(ds.images, ds.labels) for split, ds in raw.items()}
        return raw["train"].get_label_names(), parts


build = CifarInputter
