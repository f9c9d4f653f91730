"""TinyImageNet (Le & Yang 2015): 200 classes of ImageNet at 64 x 64."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import FormatError
from towerpack.dataflow._opening import PathLike, Strings, reading
from towerpack.dataflow.datasets._bases import ChannelOrder, ImageList, check_choice
from towerpack.dataflow.datasets._download import Address, RemoteFile, own_dir
from towerpack.dataflow.datasets._extract import fetch_member
from towerpack.dataflow.datasets._formats import inner_names, read_lines

_FOLDER = "tiny-imagenet-200"
# The MD5 that several projects have found independently of each other.
_ARCHIVE = RemoteFile(
    "tiny-imagenet-200.zip",
    ("https://cs231n.stanford.edu", "http://cs231n.stanford.edu"),
    248_100_043,
    "md5:90528d7ca1a48142e341f4ef8d21d0de",
)


class TinyImageNet(ImageList):
    """Small photographs: `[image uint8 [64, 64, 3], label int from 0 to 199]`.

    100,000 to train and 10,000 to validate. Labels count the lines of `wnids.txt`. Images are
    decoded when they are read.

    Contract: as `ImageList`.

    Args:
        dir: The folder `tiny-imagenet-200`, or where it lies or shall lie; by default
            `tiny_imagenet_data` in `data_dir()`.
        name: "train" or "val".
        shuffle: Give every pass another order; by default for "train".
        channel_order: "bgr" or "rgb".
        seed, base_url, verify: As for `Mnist`.

    Raises:
        DataFlowError: The files are not there and cannot be had.
        FormatError: They are damaged; an image's error comes when it is read.
    """

    def __init__(
        self,
        dir: PathLike | None = None,
        name: str = "train",
        shuffle: bool | None = None,
        *,
        channel_order: ChannelOrder = "bgr",
        seed: int | None = None,
        base_url: Address = None,
        verify: bool = True,
    ) -> None:
        self.name = check_choice("name", name, ("train", "val"))
        folder = own_dir(dir, "tiny_imagenet_data")
        if not (folder / "wnids.txt").is_file():
            remote = _ARCHIVE.at(base_url, verify=verify)
            folder = fetch_member(remote, folder, f"{_FOLDER}/wnids.txt").parent
        self._folder = folder
        self._ids = read_lines(folder / "wnids.txt")
        names, labels = self._train() if name == "train" else self._val()
        super().__init__(
            folder / name,
            names,
            labels,
            shuffle=name == "train" if shuffle is None else shuffle,
            seed=seed,
            channel_order=channel_order,
        )

    def get_label_names(self) -> list[str]:
        """The words for each class, such as "goldfish, Carassius auratus"."""
        words = dict(
            line.split("\t", 1) for line in read_lines(self._folder / "words.txt") if "\t" in line
        )
        return [words.get(wnid, wnid) for wnid in self._ids]

    def _train(self) -> tuple[Strings, NDArray[np.int64]]:
        names: list[str] = []
        counts: list[int] = []
        for wnid in self._ids:
            inner = f"{wnid}/images"
            found = _files(self._folder / "train" / inner)
            names.extend(f"{inner}/{file}" for file in found)
            counts.append(len(found))
        return Strings(names), np.repeat(np.arange(len(counts)), counts)

    def _val(self) -> tuple[Strings, NDArray[np.int64]]:
        path = self._folder / "val" / "val_annotations.txt"
        label_of = {wnid: label for label, wnid in enumerate(self._ids)}
        names: list[str] = []
        labels: list[int] = []
        for number, line in enumerate(read_lines(path), 1):
            fields = line.split("\t")
            if len(fields) < 2 or fields[1] not in label_of:
                raise FormatError(
                    f"Line {number} of {path} is {line[:80]!r}.",
                    expected="a file, a tabulator, one of the classes in wnids.txt",
                )
            names.append(f"images/{fields[0]}")
            labels.append(label_of[fields[1]])
        return inner_names(path, names), np.asarray(labels, np.int64)


def _files(folder: Path) -> list[str]:
    with reading(folder, "a folder of images"):
        found = sorted(name for name in os.listdir(folder) if not name.startswith("."))
        if not found:
            raise ValueError("it is empty")
    return found
