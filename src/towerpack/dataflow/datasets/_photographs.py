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
from towerpack.dataflow.datasets._download import Address, RemoteFile, dataset_dir
from towerpack.dataflow.datasets._extract import fetch_member
from towerpack.dataflow.datasets._formats import inner_names, read_lines, read_mat

_TINY = "tiny-imagenet-200"
# Several projects publish the same MD5.
_TINY_ARCHIVE = RemoteFile(
    "tiny-imagenet-200.zip",
    ("https://cs231n.stanford.edu", "http://cs231n.stanford.edu"),
    248_100_043,
    "md5:90528d7ca1a48142e341f4ef8d21d0de",
)

_BSDS_SHAPE = (321, 481)
_BSDS = "BSR/BSDS500/data"
# The authors publish no checksum.
_BSDS_ARCHIVE = RemoteFile(
    "BSR_bsds500.tgz",
    (
        "https://www2.eecs.berkeley.edu/Research/Projects/CS/vision/grouping/BSR",
        "http://www.eecs.berkeley.edu/Research/Projects/CS/vision/grouping/BSR",
    ),
    70_763_455,
)


class Places365Standard(ImageList):
    """Places365, photographs of places: `[image uint8 [256, 256, 3], label int]`.

    It has 1,803,460 training and 36,500 validation images, which must be downloaded from
    places2.csail.mit.edu ("small images, easy directory structure"). Labels are indices of the
    sorted class names in the list.

    Args:
        dir: Folder with `train.txt`, `val.txt`, `train/` and `val/`.
        name: "train" or "val".
        shuffle: Shuffle every pass differently (default: only "train").
        channel_order: "bgr" or "rgb".
        seed: Seed of the shuffle (default: the seed of the run).

    Raises:
        ConfigError: The folder does not exist.
        FormatError: A list names a file without a class.
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
        folder = existing_folder(dir, "the contents of places365standard_easyformat.tar")
        path = folder / f"{name}.txt"
        lines = read_lines(path)
        classes = [line.split("/")[1] if line.count("/") > 1 else "" for line in lines]
        if "" in classes:
            what = f"{path} has the invalid line {lines[classes.index('')]!r:.200}."
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
    """TinyImageNet, small photographs: `[image uint8 [64, 64, 3], label int from 0 to 199]`.

    It has 100,000 training and 10,000 validation images. Labels are line numbers of `wnids.txt`.

    Args:
        dir: The folder `tiny-imagenet-200` or its parent, downloaded if missing (default:
            `tiny_imagenet_data` in `data_dir()`).
        name: "train" or "val".
        shuffle, channel_order: See `Places365Standard`.
        seed, base_url, verify: See `Mnist`, which also lists the errors.
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
        folder = dataset_dir(dir, "tiny_imagenet_data")
        if not (folder / "wnids.txt").is_file():
            remote = _TINY_ARCHIVE.from_source(base_url, verify=verify)
            folder = fetch_member(remote, folder, f"{_TINY}/wnids.txt").parent
        self._folder = folder
        ids = folder / "wnids.txt"
        self._ids = list(inner_names(ids, read_lines(ids)))
        names, labels = self._train() if name == "train" else self._val()
        shuffle = name == "train" if shuffle is None else shuffle
        listed = folder / name, names, labels
        super().__init__(*listed, shuffle=shuffle, seed=seed, channel_order=channel_order)

    def get_label_names(self) -> list[str]:
        words = dict(
            line.split("\t", 1) for line in read_lines(self._folder / "words.txt") if "\t" in line
        )
        return [words.get(wnid, wnid) for wnid in self._ids]

    def _train(self) -> tuple[Strings, NDArray[np.int64]]:
        lists = [_files(self._folder / "train" / wnid / "images") for wnid in self._ids]
        classes = zip(self._ids, lists, strict=True)
        names = [f"{wnid}/images/{file}" for wnid, files in classes for file in files]
        return Strings(names), np.repeat(np.arange(len(lists)), [*map(len, lists)])

    def _val(self) -> tuple[Strings, NDArray[np.int64]]:
        path = self._folder / "val" / "val_annotations.txt"
        label_of = {wnid: label for label, wnid in enumerate(self._ids)}
        names: list[str] = []
        labels: list[int] = []
        for number, line in enumerate(read_lines(path), 1):
            fields = line.split("\t")
            if len(fields) < 2 or fields[1] not in label_of:
                expected = "a file, a tab, and one of the classes in wnids.txt"
                raise FormatError(f"Line {number} of {path} is {line[:80]!r}.", expected=expected)
            names.append(f"images/{fields[0]}")
            labels.append(label_of[fields[1]])
        return inner_names(path, names), np.asarray(labels, np.int64)


def _files(folder: Path) -> list[str]:
    with reading(folder, "a folder of images"):
        files = sorted(name for name in os.listdir(folder) if not name.startswith("."))
        if not files:
            raise ValueError("it is empty")
    return files


class BSDS500(ImageList):
    """BSDS500, photographs and edges: `[image uint8 [321, 481, 3], edges float32 [321, 481]]`.

    It has 200 training, 100 validation and 200 test images, sorted by name. The value of an edge
    pixel is the fraction of annotators that marked the pixel. Images in portrait format are
    transposed.

    Args:
        name: "train", "val" or "test".
        data_dir: Folder that contains `BSR`, downloaded if missing (default: `bsds500_data` in
            `data_dir()`).
        shuffle: Shuffle every pass differently.
        channel_order: "bgr" or "rgb".
        seed, base_url, verify: See `Mnist`.

    Raises:
        DataFlowError: The files are missing and cannot be downloaded.
        FormatError: A file is damaged or missing.
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
        remote = _BSDS_ARCHIVE.from_source(base_url, verify=verify)
        root = dataset_dir(data_dir, "bsds500_data")
        images = fetch_member(remote, root, f"{_BSDS}/images/{name}")
        self._outlines = fetch_member(remote, root, f"{_BSDS}/groundTruth/{name}")
        files = sorted(path.name for path in images.glob("*.jpg"))
        if not files:
            fix = "delete the folder, so that the data set is downloaded again"
            raise FormatError(f"No images found in {images}.", fix=fix)
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

    def name_of(self, index: int) -> str:
        return self._photographs.path(index)

    def get(self, epoch: int, position: int) -> Datapoint:
        image, _ = self._photographs.get(epoch, position)
        photograph = Path(self._photographs.path(position))
        outline = self._outlines / f"{photograph.stem}.mat"
        return [_landscape(image, photograph), _landscape(_edges(outline), outline)]


def _edges(path: Path) -> NDArray[np.float32]:
    with reading(path, "outlines"):
        (cells,) = read_mat(path, ["groundTruth"], kinds="O")
        # One cell for each annotator. Fields of its structure are arrays of one element.
        outlines = [cell["Boundaries"].item() != 0 for cell in cells.flat]
        return np.asarray(np.mean(outlines, axis=0), np.float32)


def _landscape(image: NDArray[Any], path: Path) -> NDArray[Any]:
    if image.shape[0] > image.shape[1]:
        image = np.ascontiguousarray(image.swapaxes(0, 1))
    if image.shape[:2] != _BSDS_SHAPE:
        what = f"{path} must have the shape {list(_BSDS_SHAPE)}, got {list(image.shape[:2])}."
        raise FormatError(what)
    return image
