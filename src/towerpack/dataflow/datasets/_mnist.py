from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.extras import require
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
from towerpack.dataflow.datasets._formats import read_idx, read_mat

_THREE_PARTS = ("train", "val", "test")
_SIDE = 28
_NAMES = (
    *("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    *("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
)
_FILES = {"train": _NAMES[:2], "test": _NAMES[2:]}

# Sizes and checksums of the files in their order, as in TensorFlow Datasets.
_MNIST = (
    (9_912_422, "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    (28_881, "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    (1_648_877, "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    (4_542, "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
)
_FASHION = (
    (26_421_880, "sha256:3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
    (29_515, "sha256:a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
    (4_422_102, "sha256:346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
    (5_148, "sha256:67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
)

_TEN = 10  # label of the digit 0 in the files

# The authors serve no https, so the checksums of TensorFlow Datasets are checked.
_SVHN_MIRRORS = ("http://ufldl.stanford.edu/housenumbers",)
_SVHN = {
    "train": (182_040_794, "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8"),
    "test": (64_275_384, "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b"),
    "extra": (1_329_278_602, "a133a4beb38a00fcdda90c9489e0c04f900b660ce8a316a5e854838379a71eb3"),
}
# No checksum is published, so only the structure is checked.
_SILHOUETTES = RemoteFile(
    "caltech101_silhouettes_28_split1.mat", ("https://people.cs.umass.edu/~marlin/data",)
)


class Mnist(ArrayData):
    """MNIST, handwritten digits: `[image float32 [28, 28], label int64]`.

    It has 60,000 training and 10,000 test images, with values from 0 (paper) to 1 (ink). The uint8
    arrays are `images` and `labels`.

    ```
    images, labels = next(iter(BatchData(Mnist("train"), 128)))
    ```

    Args:
        train_or_test: "train" or "test".
        shuffle: Shuffle every pass differently.
        dir: Folder of the four files, gzipped or not, which are downloaded if missing (default:
            `mnist_data` in `data_dir()`).
        seed: Seed of the shuffle (default: the seed of the run).
        base_url: One or several addresses of folders to download from.
        verify: Check size and checksum of downloaded files.

    Raises:
        DataFlowError: The files are missing and cannot be downloaded.
        FormatError: A file is damaged.
    """

    _dir_name = "mnist_data"
    _mirrors: tuple[str, ...] = (
        "https://storage.googleapis.com/cvdf-datasets/mnist",
        "https://ossci-datasets.s3.amazonaws.com/mnist",
    )
    _known = _MNIST
    _label_names: tuple[str, ...] = tuple("0123456789")

    def __init__(
        self,
        train_or_test: str,
        shuffle: bool = True,
        dir: PathLike | None = None,
        *,
        seed: int | None = None,
        base_url: Address = None,
        verify: bool = True,
    ) -> None:
        names = _FILES[check_choice("train_or_test", train_or_test, ("train", "test"))]
        folder = dataset_dir(dir, self._dir_name)
        image_file, label_file = (self._file(folder, name, base_url, verify) for name in names)
        images = read_idx(image_file, num_axes=3)
        labels = read_idx(label_file, num_axes=1)
        if len(images) != len(labels) or images.shape[1:] != (_SIDE, _SIDE):
            got = f"images {list(images.shape)}, labels {list(labels.shape)}"
            raise unexpected_content(image_file, got, f"images [n, {_SIDE}, {_SIDE}], labels [n]")
        labels = checked_labels(labels, len(self._label_names), label_file)
        super().__init__(images, labels, shuffle=shuffle, seed=seed, white=255)
        self.train_or_test = train_or_test

    def get_label_names(self) -> list[str]:
        return list(self._label_names)

    @classmethod
    def _file(cls, folder: Path, name: str, base_url: Address, verify: bool) -> Path:
        unpacked = folder / name.removesuffix(".gz")
        if unpacked.is_file():
            return unpacked
        size, checksum = cls._known[_NAMES.index(name)]
        remote = RemoteFile(name, cls._mirrors, size, checksum)
        return remote.from_source(base_url, verify=verify).fetch(folder)


class FashionMnist(Mnist):
    """Fashion-MNIST, images of clothes. Formats, sizes and arguments are those of `Mnist`.

    The default of `dir` is `fashion_mnist_data` in `data_dir()`.
    """

    _dir_name = "fashion_mnist_data"
    _mirrors = (
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    )
    _known = _FASHION
    _label_names = (
        *("T-shirt/top", "trouser", "pullover", "dress", "coat"),
        *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
    )


class Digits(ArrayData):
    """Small digits of scikit-learn: `[image float32 [8, 8] from 0 to 1, label int64]`.

    A fixed stratified split has 1,257 training, 180 validation and 360 test images.

    Args:
        name: "train", "val" or "test".
        shuffle: Shuffle every pass differently.
        seed: Seed of the shuffle (default: the seed of the run).
    """

    def __init__(
        self, name: str = "train", shuffle: bool = True, *, seed: int | None = None
    ) -> None:
        check_choice("name", name, _THREE_PARTS)
        datasets: Any = require("sklearn.datasets", extra="demo", needed_for="Digits")
        raw = datasets.load_digits()
        part = _split_digits(raw.target)[name]
        super().__init__(
            raw.images[part].astype(np.uint8),
            raw.target[part].astype(np.int64),
            shuffle=shuffle,
            seed=seed,
            white=16,
        )
        self.name = name

    def get_label_names(self) -> list[str]:
        return list("0123456789")


def _split_digits(labels: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    # Split within each class, in random order, because the file is ordered by writers.
    order = np.random.Generator(np.random.Philox(key=0)).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    tenth = np.arange(len(order)) % 10
    parts = (tenth > 2, tenth == 2, tenth < 2)
    return {name: np.sort(order[part]) for name, part in zip(_THREE_PARTS, parts, strict=True)}


class SVHNDigit(ArrayData):
    """SVHN, photographed digits: `[image uint8 [32, 32, 3], label int64 from 0 to 9]`, RGB.

    It has 73,257 training, 26,032 test and 531,131 easier images ("extra", 1.6 GB in memory).

    Args:
        name: "train", "test" or "extra".
        data_dir: Folder of `{name}_32x32.mat`, which is downloaded if missing (default:
            `svhn_data` in `data_dir()`).
        shuffle, seed, base_url, verify: See `Mnist`, which also lists the errors.
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
        images, labels = _read_svhn(name, data_dir, base_url, verify)
        super().__init__(images, labels, shuffle=shuffle, seed=seed)
        self.name = name

    def get_label_names(self) -> list[str]:
        return list("0123456789")

    @staticmethod
    def get_per_pixel_mean(
        names: Sequence[str] = tuple(_SVHN),
        data_dir: PathLike | None = None,
        *,
        base_url: Address = None,
        verify: bool = True,
    ) -> NDArray[np.float32]:
        """Return the mean image, float32 [32, 32, 3].

        Args:
            names: Parts of the data set ("train", "test", "extra") whose images are averaged.
            data_dir, base_url, verify: See `SVHNDigit`.
        """
        parts = part_names(names)
        return mean_image(_read_svhn(name, data_dir, base_url, verify)[0] for name in parts)


def _read_svhn(
    name: str, data_dir: PathLike | None, base_url: Address, verify: bool
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    size, sha256 = _SVHN[check_choice("name", name, tuple(_SVHN))]
    remote = RemoteFile(f"{name}_32x32.mat", _SVHN_MIRRORS, size, f"sha256:{sha256}")
    path = remote.from_source(base_url, verify=verify).fetch(dataset_dir(data_dir, "svhn_data"))
    images, labels = read_mat(path, ["X", "y"])
    if images.dtype != np.uint8 or images.shape != (32, 32, 3, labels.size):
        got = f"X {images.dtype} {list(images.shape)}, y {list(labels.shape)}"
        raise unexpected_content(path, got, "X uint8 [32, 32, 3, n], y [n, 1]")
    labels = np.where(labels.ravel() == _TEN, 0, labels.ravel())
    rows = np.ascontiguousarray(images.transpose(3, 0, 1, 2))
    return rows, checked_labels(labels, 10, path)


class Caltech101Silhouettes(ArrayData):
    """Caltech 101 silhouettes: `[image float32 [28, 28] of 0 and 1, label int64 from 0 to 100]`.

    It has 4,100 training, 2,264 validation and 2,307 test images. Unlike in Tensorpack, images are
    upright.

    Args:
        name: "train", "val" or "test".
        dir: Folder of the file, which is downloaded if missing (default: `caltech101_data` in
            `data_dir()`).
        shuffle, seed, base_url: See `Mnist`, which also lists the errors.
    """

    def __init__(
        self,
        name: str,
        shuffle: bool = True,
        dir: PathLike | None = None,
        *,
        seed: int | None = None,
        base_url: Address = None,
    ) -> None:
        check_choice("name", name, _THREE_PARTS)
        path = _SILHOUETTES.from_source(base_url).fetch(dataset_dir(dir, "caltech101_data"))
        data, labels = read_mat(path, [f"{name}_data", f"{name}_labels"])
        if data.shape != (labels.size, _SIDE * _SIDE) or not np.isin(data, (0, 1)).all():
            got = f"data {list(data.shape)}, labels {list(labels.shape)}"
            raise unexpected_content(path, got, f"data [n, {_SIDE**2}] of 0 and 1, labels [n, 1]")
        # MATLAB stores images by columns.
        columns = data.astype(np.uint8).reshape(-1, _SIDE, _SIDE)
        super().__init__(
            np.ascontiguousarray(columns.transpose(0, 2, 1)),
            checked_labels(labels.ravel().astype(np.float64) - 1, 101, path),
            shuffle=shuffle,
            seed=seed,
            white=1,
        )
        self.name = name
