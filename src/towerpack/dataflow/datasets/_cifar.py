"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009) in their binary version, which needs no pickle."""

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
    part_names,
    unexpected_content,
)
from towerpack.dataflow.datasets._download import Address, RemoteFile, dataset_dir
from towerpack.dataflow.datasets._extract import fetch_member
from towerpack.dataflow.datasets._formats import read_lines

_PIXELS = 3 * 32 * 32
_MIRRORS = ("https://www.cs.toronto.edu/~kriz",)


class CifarBase(ArrayData):
    """Base class of `Cifar10` and `Cifar100`.

    Args:
        train_or_test: "train" (50,000 images) or "test" (10,000 images).
        shuffle: Shuffle every pass differently (default: only "train").
        dir: Folder of `cifar-10-batches-bin` or `cifar-100-binary`, downloaded if missing (default:
            `cifar10_data` or `cifar100_data` in `data_dir()`).
        seed, base_url, verify: See `Mnist`, which also lists the errors.
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
        self._dir = dataset_dir(dir, self._dir_name)
        self._source = self._remote.from_source(base_url, verify=verify)
        images, labels = self._load(train_or_test)
        shuffle = train_or_test == "train" if shuffle is None else shuffle
        super().__init__(images, labels, shuffle=shuffle, seed=seed)

    def get_label_names(self) -> list[str]:
        path = self._path(self._names_file)
        names = read_lines(path)
        if len(names) != self._num_classes:
            raise unexpected_content(path, f"{len(names)} names", f"{self._num_classes} names")
        return names

    def get_per_pixel_mean(self, names: Sequence[str] = ("train", "test")) -> NDArray[np.float32]:
        """Return the mean image, float32 [32, 32, 3].

        Args:
            names: Parts of the data set ("train", "test") whose images are averaged.
        """
        return mean_image(
            self.images if name == self.train_or_test else self._load(name)[0]
            for name in part_names(names)
        )

    def get_per_channel_mean(self, names: Sequence[str] = ("train", "test")) -> NDArray[np.float32]:
        """Return the mean of each channel, float32 [3].

        Args:
            names: Parts of the data set ("train", "test") whose images are averaged.
        """
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
            raise unexpected_content(path, f"{size:,} bytes", f"a multiple of {record:,} bytes")
        records = np.fromfile(path, np.uint8).reshape(-1, record)
        labels = checked_labels(records[:, self._label_bytes - 1], self._num_classes, path)
        planes = records[:, self._label_bytes :].reshape(-1, 3, 32, 32)
        return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels


class Cifar10(CifarBase):
    """CIFAR-10, small photographs in 10 classes: `[image uint8 [32, 32, 3], label int64]`, RGB.

    The arrays are `images` and `labels`. Arguments are the same as for `CifarBase`.
    """

    _dir_name = "cifar10_data"
    _folder = "cifar-10-batches-bin"
    # Checksum of TensorFlow Datasets. The authors publish the MD5 of the same file.
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
    """CIFAR-100, small photographs in 100 (fine) classes. Otherwise the same as `Cifar10`."""

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
    _label_bytes = 2  # coarse and fine label
