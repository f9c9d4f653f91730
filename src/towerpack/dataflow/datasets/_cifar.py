"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), in the binary version: the other one is a pickle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from towerpack.dataflow._user_files import PathLike
from towerpack.dataflow.datasets._bases import (
    ArrayData,
    check_choice,
    checked_labels,
    mean_image,
    other_content,
    part_names,
)
from towerpack.dataflow.datasets._download import Address, RemoteFile, own_dir
from towerpack.dataflow.datasets._extract import fetch_member
from towerpack.dataflow.datasets._formats import read_lines

_PIXELS = 3 * 32 * 32
_MIRRORS = ("https://www.cs.toronto.edu/~kriz",)


class CifarBase(ArrayData):
    """What both have in common; see `Cifar10` and `Cifar100`.

    Contract: as `ArrayData`.
    """

    _dir_name: str
    _folder: str
    _remote: RemoteFile
    _files: dict[str, tuple[str, ...]]
    _names_file: str
    _num_classes: int
    _label_bytes: int

    def __init__(
        self,
        train_or_test: str,
        shuffle: bool | None = None,
        dir: PathLike | None = None,
        *,
        seed: int | None = None,
        base_url: Address = None,
        verify: bool = True,
    ) -> None:
        self.train_or_test = check_choice("train_or_test", train_or_test, ("train", "test"))
        self._dir = own_dir(dir, self._dir_name)
        self._source = self._remote.at(base_url, verify=verify)
        images, labels = self._load(train_or_test)
        shuffle = train_or_test == "train" if shuffle is None else shuffle
        super().__init__(images, labels, shuffle=shuffle, seed=seed)

    def get_label_names(self) -> list[str]:
        path = self._path(self._names_file)
        names = read_lines(path)
        if len(names) != self._num_classes:
            raise other_content(path, f"{len(names)} names", f"{self._num_classes}, one a line")
        return names

    def get_per_pixel_mean(self, names: Sequence[str] = ("train", "test")) -> NDArray[np.float32]:
        """The mean image [32, 32, 3] of the parts that are named; by default of all images."""
        return mean_image(
            self.images if name == self.train_or_test else self._load(name)[0]
            for name in part_names(names)
        )

    def get_per_channel_mean(self, names: Sequence[str] = ("train", "test")) -> NDArray[np.float32]:
        """The mean of each channel, of the parts that are named."""
        return np.asarray(self.get_per_pixel_mean(names).mean(axis=(0, 1)), np.float32)

    def _load(self, part: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        check_choice("name", part, ("train", "test"))
        loaded = [self._read(self._path(name)) for name in self._files[part]]
        images, labels = zip(*loaded, strict=True)
        return np.concatenate(images), np.concatenate(labels)

    def _path(self, name: str) -> Path:
        return fetch_member(self._source, self._dir, f"{self._folder}/{name}")

    def _read(self, path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        record = self._label_bytes + _PIXELS
        size = path.stat().st_size
        if size == 0 or size % record:
            raise other_content(path, f"{size:,} bytes", f"a multiple of {record:,} bytes")
        records = np.fromfile(path, np.uint8).reshape(-1, record)
        labels = checked_labels(records[:, self._label_bytes - 1], self._num_classes, path)
        planes = records[:, self._label_bytes :].reshape(-1, 3, 32, 32)
        return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels


class Cifar10(CifarBase):
    """Small photographs in 10 classes: `[image uint8 [32, 32, 3], RGB, label int64]`.

    50,000 to train and 10,000 to test; `images` and `labels` are the arrays.

    Contract: as `ArrayData`.

    Args:
        train_or_test: "train" or "test".
        shuffle: Give every pass another order; by default for "train".
        dir: Where the folder `cifar-10-batches-bin` lies or shall lie; by default `cifar10_data`
            in `data_dir()`.
        seed, base_url, verify: As for `Mnist`, as are the errors.
    """

    _dir_name = "cifar10_data"
    _folder = "cifar-10-batches-bin"
    # As TensorFlow Datasets lists it; the authors' page gives the MD5 of the same file.
    _remote = RemoteFile(
        "cifar-10-binary.tar.gz",
        _MIRRORS,
        170_052_171,
        "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    )
    _files = {  # noqa: RUF012
        "train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
        "test": ("test_batch.bin",),
    }
    _names_file = "batches.meta.txt"
    _num_classes = 10
    _label_bytes = 1


class Cifar100(CifarBase):
    """As `Cifar10`, with 100 classes (the fine ones).

    Contract: as `Cifar10`, and so are the arguments; `dir`, by default `cifar100_data`, holds the
    folder `cifar-100-binary`.
    """

    _dir_name = "cifar100_data"
    _folder = "cifar-100-binary"
    _remote = RemoteFile(
        "cifar-100-binary.tar.gz",
        _MIRRORS,
        168_513_733,
        "sha256:58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    )
    _files = {"train": ("train.bin",), "test": ("test.bin",)}  # noqa: RUF012
    _names_file = "fine_label_names.txt"
    _num_classes = 100
    _label_bytes = 2  # the coarse one, the fine one
