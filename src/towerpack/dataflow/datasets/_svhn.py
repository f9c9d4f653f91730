"""Street View House Numbers, cropped digits (Netzer et al. 2011)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from towerpack.dataflow._opening import PathLike
from towerpack.dataflow.datasets._bases import (
    ArrayData,
    check_choice,
    checked_labels,
    other_content,
    part_names,
)
from towerpack.dataflow.datasets._download import Address, RemoteFile, own_dir
from towerpack.dataflow.datasets._formats import read_mat

_PARTS = ("train", "test", "extra")
_SHAPE = (32, 32, 3)
_TEN = 10  # the class of the digit 0

# The authors serve no https; the checksums, which TensorFlow Datasets lists, make up for that.
_MIRRORS = ("http://ufldl.stanford.edu/housenumbers",)
_KNOWN = {
    "train": (182_040_794, "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8"),
    "test": (64_275_384, "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b"),
    "extra": (1_329_278_602, "a133a4beb38a00fcdda90c9489e0c04f900b660ce8a316a5e854838379a71eb3"),
}


class SVHNDigit(ArrayData):
    """Photographed digits: `[image uint8 [32, 32, 3], RGB, label int64 from 0 to 9]`.

    73,257 to train, 26,032 to test and 531,131 easier ones ("extra", 1.6 GB in memory).

    Contract: as `ArrayData`.

    Args:
        name: "train", "test" or "extra".
        data_dir: Where `{name}_32x32.mat` lies or shall lie; by default `svhn_data` in
            `data_dir()`.
        shuffle: Give every pass another order.
        seed, base_url, verify: As for `Mnist`.

    Raises:
        DataFlowError: The file is not there and cannot be had.
        FormatError: It is damaged.
    """

    def __init__(
        self,
        name: str,
        data_dir: PathLike | None = None,
        shuffle: bool = True,
        *,
        seed: int | None = None,
        base_url: Address = None,
        verify: bool = True,
    ) -> None:
        images, labels = _load(name, data_dir, base_url, verify)
        super().__init__(images, labels, shuffle=shuffle, seed=seed)
        self.name = name

    def get_label_names(self) -> list[str]:
        """The name of each class."""
        return list("0123456789")

    @staticmethod
    def get_per_pixel_mean(
        names: Sequence[str] = _PARTS,
        data_dir: PathLike | None = None,
        *,
        base_url: Address = None,
        verify: bool = True,
    ) -> NDArray[np.float32]:
        """The mean image [32, 32, 3] of the parts that are named; by default of all three."""
        total, count = np.zeros(_SHAPE, np.int64), 0
        for name in part_names(names):
            images, _ = _load(name, data_dir, base_url, verify)
            total += images.sum(axis=0, dtype=np.int64)
            count += len(images)
        return np.asarray(total / count, np.float32)


def _load(
    name: str, data_dir: PathLike | None, base_url: Address, verify: bool
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    size, sha256 = _KNOWN[check_choice("name", name, _PARTS)]
    remote = RemoteFile(f"{name}_32x32.mat", _MIRRORS, size, f"sha256:{sha256}")
    path = remote.at(base_url, verify=verify).fetch(own_dir(data_dir, "svhn_data"))
    images, labels = read_mat(path, ["X", "y"])
    if (
        images.dtype != np.uint8
        or images.shape[:3] != _SHAPE
        or images.ndim != len(_SHAPE) + 1
        or labels.size != images.shape[3]
    ):
        got = f"X {images.dtype} {list(images.shape)}, y {list(labels.shape)}"
        raise other_content(path, got, "X uint8 [32, 32, 3, n], y [n, 1]")
    labels = np.where(labels.ravel() == _TEN, 0, labels.ravel())
    rows = np.ascontiguousarray(images.transpose(3, 0, 1, 2))
    return rows, checked_labels(labels, 10, path)
