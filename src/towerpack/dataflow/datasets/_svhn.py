"""Street View House Numbers, cropped digits (Netzer et al. 2011)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import FormatError
from towerpack.dataflow._opening import PathLike
from towerpack.dataflow.datasets._array_data import ArrayData, checked_labels
from towerpack.dataflow.datasets._dataset import check_choice, part_names
from towerpack.dataflow.datasets._download import RemoteFile
from towerpack.dataflow.datasets._location import own_dir
from towerpack.dataflow.datasets._mat import read_arrays

_PARTS = ("train", "test", "extra")
_SHAPE = (32, 32, 3)
_TEN = 10  # the class of the digit 0

# The authors serve no https; the checksums, which TensorFlow Datasets lists, make up for that.
_MIRRORS = ("http://ufldl.stanford.edu/housenumbers",)
_FILES = {
    "train": RemoteFile(
        "train_32x32.mat",
        _MIRRORS,
        182_040_794,
        "sha256:435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
    ),
    "test": RemoteFile(
        "test_32x32.mat",
        _MIRRORS,
        64_275_384,
        "sha256:cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
    ),
    "extra": RemoteFile(
        "extra_32x32.mat",
        _MIRRORS,
        1_329_278_602,
        "sha256:a133a4beb38a00fcdda90c9489e0c04f900b660ce8a316a5e854838379a71eb3",
    ),
}


class SVHNDigit(ArrayData):
    """Photographed digits: `[image uint8 [32, 32, 3], RGB, label int64 from 0 to 9]`.

    73,257 to train, 26,032 to test and 531,131 easier ones ("extra", 1.6 GB in memory).

    Contract: in order, or exactly shuffled; as long as the file says; random if shuffled; thread-
    and fork-safe; resumable at once.

    Args:
        name: "train", "test" or "extra".
        data_dir: Where `{name}_32x32.mat` lies or shall lie; by default `svhn_data` in
            `data_dir()`.
        shuffle: Give every pass another order.
        seed: For the shuffle alone; by default the run's.
        base_url: Address of another folder to fetch it from, or several.
        verify: Check size and checksum of what is downloaded.

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
        base_url: str | Sequence[str] | None = None,
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
        base_url: str | Sequence[str] | None = None,
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
    name: str, data_dir: PathLike | None, base_url: str | Sequence[str] | None, verify: bool
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    remote = _FILES[check_choice("name", name, _PARTS)].at(base_url, verify=verify)
    path = remote.fetch(own_dir(data_dir, "svhn_data"))
    images, labels = read_arrays(path, ["X", "y"])
    if (
        images.dtype != np.uint8
        or images.shape[:3] != _SHAPE
        or images.ndim != len(_SHAPE) + 1
        or labels.size != images.shape[3]
    ):
        raise FormatError(
            f"{path} does not hold what it should.",
            got=f"X {images.dtype} {list(images.shape)}, y {list(labels.shape)}",
            expected="X uint8 [32, 32, 3, n], y [n, 1]",
            fix="delete it and fetch it again",
        )
    labels = np.where(labels.ravel() == _TEN, 0, labels.ravel())
    rows = np.ascontiguousarray(images.transpose(3, 0, 1, 2))
    return rows, checked_labels(labels, 10, path)
