"""MNIST (LeCun, Cortes, Burges 1998) and Fashion-MNIST (Xiao, Rasul, Vollgraf 2017)."""

from __future__ import annotations

from pathlib import Path

from towerpack.dataflow._opening import PathLike
from towerpack.dataflow.datasets._bases import (
    ArrayData,
    check_choice,
    checked_labels,
    other_content,
)
from towerpack.dataflow.datasets._download import Address, RemoteFile, own_dir
from towerpack.dataflow.datasets._formats import read_idx

_SIDE = 28
_NAMES = (
    *("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    *("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
)
_FILES = {"train": _NAMES[:2], "test": _NAMES[2:]}

# In their order. Sizes and checksums as TensorFlow Datasets lists them for the same files.
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


class Mnist(ArrayData):
    """Handwritten digits: `[image float32 [28, 28] from 0 (paper) to 1 (ink), label int64]`.

    60,000 to train and 10,000 to test. Kept as uint8; `images` and `labels` are the arrays.

    Contract: as `ArrayData`.

    Args:
        train_or_test: "train" or "test".
        shuffle: Give every pass another order.
        dir: Where the four files lie or shall lie, gzipped or not; by default `mnist_data` in
            `data_dir()`.
        seed: For the shuffle alone; by default the run's.
        base_url: Address of another folder to fetch them from, or several.
        verify: Check size and checksum of what is downloaded.

    Raises:
        DataFlowError: The files are not there and cannot be had.
        FormatError: They are damaged.
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
        folder = own_dir(dir, self._dir_name)
        image_file, label_file = (self._file(folder, name, base_url, verify) for name in names)
        images = read_idx(image_file, num_axes=3)
        labels = read_idx(label_file, num_axes=1)
        if len(images) != len(labels) or images.shape[1:] != (_SIDE, _SIDE):
            got = f"images {list(images.shape)}, labels {list(labels.shape)}"
            raise other_content(image_file, got, f"images [n, {_SIDE}, {_SIDE}], labels [n]")
        labels = checked_labels(labels, len(self._label_names), label_file)
        super().__init__(images, labels, shuffle=shuffle, seed=seed, white=255)
        self.train_or_test = train_or_test

    def get_label_names(self) -> list[str]:
        """The name of each class."""
        return list(self._label_names)

    @classmethod
    def _file(cls, folder: Path, name: str, base_url: Address, verify: bool) -> Path:
        unpacked = folder / name.removesuffix(".gz")
        if unpacked.is_file():
            return unpacked
        size, checksum = cls._known[_NAMES.index(name)]
        remote = RemoteFile(name, cls._mirrors, size, checksum)
        return remote.at(base_url, verify=verify).fetch(folder)


class FashionMnist(Mnist):
    """Pictures of clothes in the format of `Mnist`, and as many.

    Contract: as `Mnist`, and so are the arguments; `dir` is `fashion_mnist_data` by default.
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
