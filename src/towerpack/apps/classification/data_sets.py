"""Inputters of data sets by name: CIFAR, MNIST, digits of scikit-learn, classes of ImageNet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack.apps._inputter import Split
from towerpack.apps.classification._image_inputter import Found, ImageInputter, Pictures
from towerpack.dataflow import datasets
from towerpack.zoo.imagenet import class_names

_CIFAR = {"cifar10": datasets.Cifar10, "cifar100": datasets.Cifar100}
_MNIST = {"mnist": datasets.Mnist, "fashion_mnist": datasets.FashionMnist}
_INK: Final = 16
_TRAIN_TEST: Final[tuple[Split, ...]] = ("train", "test")


class CifarInputter(ImageInputter):
    """Inputter of CIFAR-10, or with `inputter: cifar100` of CIFAR-100 with fine classes.

    `path` is the folder of the files, or its parent folder, into which files are downloaded.
    """

    takes = frozenset({"path", "validation"})

    def find(self) -> Found:
        kind = _CIFAR.get(self.config.inputter, datasets.Cifar10)
        folder = None if self.config.path is None else Path(self.config.path).expanduser()
        if folder is not None and any(folder.glob("*.bin")):
            kind = type(kind.__name__, (kind,), {"_folder": folder.resolve().name})
            folder = folder.resolve().parent
        return _parts({s: kind(s, shuffle=False, dir=folder) for s in _TRAIN_TEST})


class MnistInputter(ImageInputter):
    """Inputter of MNIST, or with `inputter: fashion_mnist` of Fashion-MNIST.

    `path` is the folder of the four IDX files, gzipped or not, into which files are downloaded.
    Other data in files of the same names and shapes need `class_names`.
    """

    takes = frozenset({"path", "validation", "class_names"})

    def find(self) -> Found:
        kind = _MNIST.get(self.config.inputter, datasets.Mnist)
        folder = self.config.path
        usual_names, parts = _parts({s: kind(s, shuffle=False, dir=folder) for s in _TRAIN_TEST})
        names = self.config.class_names or usual_names
        if len(names) != len(usual_names):
            what = f"data.class_names must have {len(usual_names)} names, got {len(names)}."
            raise ConfigError(what)
        return names, parts


class DigitsInputter(ImageInputter):
    """Inputter of 1,797 digits of 8 x 8 pixels, white on black, from `datasets.Digits`."""

    def find(self) -> Found:
        raw = {s: datasets.Digits(s, shuffle=False) for s in ("train", "val", "test")}
        for ds in raw.values():
            ds.images = np.rint(ds.images * (255 / _INK)).astype(np.uint8)
        return _parts(raw)


class ImagenetClassesInputter(ImageInputter):
    """Inputter of the 1,000 ImageNet classes without images, for pretrained networks."""

    def find(self) -> Found:
        return class_names(), {}


def _parts(raw: Mapping[str, Any]) -> tuple[Sequence[str], dict[str, Pictures]]:
    names = raw["train"].get_label_names()
    return names, {split: Pictures(ds.images, ds.labels) for split, ds in raw.items()}
