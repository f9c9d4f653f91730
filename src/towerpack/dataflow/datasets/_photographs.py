"""Photographs in files: Places365, TinyImageNet, Berkeley's segmentation data set."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import FormatError
from towerpack.dataflow._plan import Node
from towerpack.dataflow._user_files import PathLike, Strings, reading
from towerpack.dataflow.content import content_of_files
from towerpack.dataflow.datapoints import Datapoint
from towerpack.dataflow.datasets._bases import (
    ChannelOrder,
    ImageList,
    ImageListNode,
    check_choice,
    existing_folder,
)
from towerpack.dataflow.datasets._download import Address, RemoteFile, own_dir
from towerpack.dataflow.datasets._extract import fetch_member
from towerpack.dataflow.datasets._formats import inner_names, read_lines, read_mat

_TINY = "tiny-imagenet-200"
# The MD5 that several projects have found independently of each other.
_TINY_ARCHIVE = RemoteFile(
    "tiny-imagenet-200.zip",
    ("https://cs231n.stanford.edu", "http://cs231n.stanford.edu"),
    248_100_043,
    "md5:90528d7ca1a48142e341f4ef8d21d0de",
)

_BSDS_SHAPE = (321, 481)
_BSDS = "BSR/BSDS500/data"
# Its size is known, and no checksum that the authors published.
_BSDS_ARCHIVE = RemoteFile(
    "BSR_bsds500.tgz",
    (
        "https://www2.eecs.berkeley.edu/Research/Projects/CS/vision/grouping/BSR",
        "http://www.eecs.berkeley.edu/Research/Projects/CS/vision/grouping/BSR",
    ),
    70_763_455,
)


class Places365Standard(ImageList):
    """Photographs of places: `[image uint8 [256, 256, 3], label int]`.

    1,803,460 to train and 36,500 to validate; not downloaded (places2.csail.mit.edu, "small
    images, easy directory structure"). Labels are those of the sorted names of the classes in the
    list. Images are decoded when they are read.

    Contract: as `ImageList`.

    Args:
        dir: The folder with `train.txt`, `val.txt`, `train/` and `val/`.
        name: "train" or "val".
        shuffle: Give every pass another order; by default for "train".
        channel_order: "bgr" or "rgb".
        seed: For the shuffle alone; by default the run's.
    """

    def __init__(
        self,
        dir: PathLike,
        name: str,
        shuffle: bool | None = None,
        *,
        channel_order: ChannelOrder = "bgr",
        seed: int | None = None,
    ) -> None:
        self.name = check_choice("name", name, ("train", "val"))
        folder = existing_folder(dir, "the folder that places365standard_easyformat.tar made")
        path = folder / f"{name}.txt"
        lines = read_lines(path)
        classes = [line.split("/")[1] if line.count("/") > 1 else "" for line in lines]
        if "" in classes:
            what = f"{path} lists {lines[classes.index('')]!r:.200}, among others."
            raise FormatError(what, expected=f"{name}/class/file")
        self._label_names = sorted(set(classes))
        label_of = {label: number for number, label in enumerate(self._label_names)}
        labels = np.asarray([label_of[label] for label in classes], np.int64)
        shuffle = name == "train" if shuffle is None else shuffle
        listed = folder, inner_names(path, lines), labels
        super().__init__(*listed, shuffle=shuffle, seed=seed, channel_order=channel_order)

    def get_label_names(self) -> list[str]:
        return self._label_names


class TinyImageNet(ImageList):
    """Small photographs: `[image uint8 [64, 64, 3], label int from 0 to 199]`.

    100,000 to train and 10,000 to validate. Labels count the lines of `wnids.txt`. Images are
    decoded when they are read.

    Contract: as `ImageList`.

    Args:
        dir: The folder `tiny-imagenet-200`, or where it lies or shall lie; by default
            `tiny_imagenet_data` in `data_dir()`.
        name: "train" or "val".
        shuffle, channel_order: As for `Places365Standard`.
        seed, base_url, verify: As for `Mnist`, as are the errors; an image's comes when it is read.
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
            remote = _TINY_ARCHIVE.at(base_url, verify=verify)
            folder = fetch_member(remote, folder, f"{_TINY}/wnids.txt").parent
        self._folder = folder
        ids = folder / "wnids.txt"
        self._ids = list(inner_names(ids, read_lines(ids)))
        names, labels = self._train() if name == "train" else self._val()
        shuffle = name == "train" if shuffle is None else shuffle
        listed = folder / name, names, labels
        super().__init__(*listed, shuffle=shuffle, seed=seed, channel_order=channel_order)

    def get_label_names(self) -> list[str]:
        """The words for each class, such as "goldfish, Carassius auratus"."""
        words = dict(
            line.split("\t", 1) for line in read_lines(self._folder / "words.txt") if "\t" in line
        )
        return [words.get(wnid, wnid) for wnid in self._ids]

    def _train(self) -> tuple[Strings, NDArray[np.int64]]:
        found = {wnid: _files(self._folder / "train" / wnid / "images") for wnid in self._ids}
        names = [f"{wnid}/images/{file}" for wnid, files in found.items() for file in files]
        return Strings(names), np.repeat(np.arange(len(found)), [*map(len, found.values())])

    def _val(self) -> tuple[Strings, NDArray[np.int64]]:
        path = self._folder / "val" / "val_annotations.txt"
        label_of = {wnid: label for label, wnid in enumerate(self._ids)}
        names: list[str] = []
        labels: list[int] = []
        for number, line in enumerate(read_lines(path), 1):
            fields = line.split("\t")
            if len(fields) < 2 or fields[1] not in label_of:
                expected = "a file, a tabulator, one of the classes in wnids.txt"
                raise FormatError(f"Line {number} of {path} is {line[:80]!r}.", expected=expected)
            names.append(f"images/{fields[0]}")
            labels.append(label_of[fields[1]])
        return inner_names(path, names), np.asarray(labels, np.int64)


def _files(folder: Path) -> list[str]:
    with reading(folder, "a folder of images"):
        found = sorted(name for name in os.listdir(folder) if not name.startswith("."))
        if not found:
            raise ValueError("it is empty")
    return found


class BSDS500(ImageList):
    """Photographs with drawn outlines: `[image uint8 [321, 481, 3], edges float32 [321, 481]]`.

    200 to train, 100 to validate and 200 to test, sorted by name. An edge pixel is the share of
    the annotators that drew it, from 0 to 1. Upright photographs are laid on their side.

    Contract: as `ImageList`.

    Args:
        name: "train", "val" or "test".
        data_dir: Where the folder `BSR` lies or shall lie; by default `bsds500_data` in
            `data_dir()`.
        shuffle: Give every pass another order.
        channel_order: "bgr" or "rgb".
        seed, base_url, verify: As for `Mnist`, as are the errors; a file's comes when it is read.
    """

    def __init__(
        self,
        name: str,
        data_dir: PathLike | None = None,
        shuffle: bool = True,
        *,
        channel_order: ChannelOrder = "bgr",
        seed: int | None = None,
        base_url: Address = None,
        verify: bool = True,
    ) -> None:
        self.name = check_choice("name", name, ("train", "val", "test"))
        remote = _BSDS_ARCHIVE.at(base_url, verify=verify)
        root = own_dir(data_dir, "bsds500_data")
        images = fetch_member(remote, root, f"{_BSDS}/images/{name}")
        self._outlines = fetch_member(remote, root, f"{_BSDS}/groundTruth/{name}")
        files = sorted(path.name for path in images.glob("*.jpg"))
        if not files:
            raise FormatError(f"There are no images in {images}.", fix="complete the data set")
        listed = images, Strings(files), np.arange(len(files))
        super().__init__(*listed, shuffle=shuffle, seed=seed, channel_order=channel_order)
        self._node = _OutlineNode(self._list, self._outlines)

    def content(self) -> str:
        return f"{super().content()}, {content_of_files(sorted(self._outlines.glob('*.mat')))}"


class _OutlineNode(Node):
    def __init__(self, photographs: ImageListNode, outlines: Path) -> None:
        self.size = photographs.size
        self._photographs = photographs
        self._outlines = outlines

    def get(self, epoch: int, position: int) -> Datapoint:
        image, _ = self._photographs.get(epoch, position)
        photograph = Path(self._photographs.path(position))
        outline = self._outlines / f"{photograph.stem}.mat"
        return [_lying(image, photograph), _lying(_edges(outline), outline)]


def _edges(path: Path) -> NDArray[np.float32]:
    with reading(path, "outlines"):
        (cells,) = read_mat(path, ["groundTruth"], kinds="O")
        # A cell for each annotator, of a structure, whose fields are arrays of one element.
        outlines = [cell["Boundaries"].item() != 0 for cell in cells.flat]
        return np.asarray(np.mean(outlines, axis=0), np.float32)


def _lying(image: NDArray[Any], path: Path) -> NDArray[Any]:
    if image.shape[0] > image.shape[1]:
        image = np.ascontiguousarray(image.swapaxes(0, 1))
    if image.shape[:2] != _BSDS_SHAPE:
        what = f"{path} has the shape {list(image.shape[:2])}."
        raise FormatError(what, expected=f"{list(_BSDS_SHAPE)}")
    return image
