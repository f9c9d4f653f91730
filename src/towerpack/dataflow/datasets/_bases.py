"""Base classes of data sets: arrays in memory, or lists of image files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, FormatError
from towerpack.dataflow._plan import Node
from towerpack.dataflow._user_files import PathLike, Strings
from towerpack.dataflow.arguments import integer_of, names_of
from towerpack.dataflow.content import content_of_files, content_of_values
from towerpack.dataflow.datapoints import Block, Columns, Datapoint, Positions
from towerpack.dataflow.sources._files import ImageReader
from towerpack.dataflow.sources._memory import ArraysNode, PlannedSource

ChannelOrder = Literal["bgr", "rgb"]


class Dataset(PlannedSource[Node]):
    """Base class of data sets. `ds[i]` is datapoint i in file order, even if shuffled."""

    def __getitem__(self, index: int) -> Datapoint:
        return self._node.get(0, range(len(self))[integer_of(index, "the index")])


class ArrayData(Dataset):
    """Base class of data sets that fit into memory. Datapoints are `[image, label]`.

    Images are uint8, or float32 divided by `white`. Thread- and fork-safe; resumes at once.
    """

    def __init__(
        self,
        images: NDArray[np.uint8],
        labels: NDArray[np.int64],
        *,
        shuffle: bool,
        seed: int | None,
        white: int | None = None,
    ) -> None:
        rows = ArraysNode([images, labels], len(images))
        node = rows if white is None else UnitNode(rows, white)
        super().__init__(node, shuffle=shuffle, seed=seed)
        self.images = images
        self.labels = labels
        self._white = white

    def content(self) -> str:
        values = content_of_values(self.images, self.labels, self._white)
        return f"{super().content()}, {values}"


class UnitNode(Node):
    """Node that converts uint8 images to float32 and scales `white` to 1."""

    def __init__(self, inner: ArraysNode, white: int) -> None:
        self._inner = inner
        self.size = inner.size
        self.chunk = inner.chunk
        self._white = np.float32(white)

    def read(self, epoch: int, positions: Positions) -> Block:
        block = cast("Columns", self._inner.read(epoch, positions))
        images, labels = block.data
        units = np.divide(images, self._white, dtype=np.float32)
        return Columns([units, labels], block.size)


class ImageListNode(Node):
    def __init__(
        self,
        root: Path,
        names: Strings,
        labels: NDArray[np.int64],
        channel_order: ChannelOrder | None,
    ) -> None:
        self.size = len(names)
        self._root, self._names, self._labels = os.fspath(root), names, labels
        self._reader = None if channel_order is None else ImageReader(rgb=channel_order == "rgb")

    def get(self, epoch: int, position: int) -> Datapoint:
        path = self.path(position)
        first = path if self._reader is None else self._reader(path)
        return [first, int(self._labels[position])]

    def name_of(self, index: int) -> str:
        return self.path(index)

    def path(self, position: int) -> str:
        return os.path.join(self._root, self._names[position])


class ImageList(Dataset):
    """Base class of data sets of labeled image files. Datapoints are `[image, label]`.

    Thread- and fork-safe; resumes at once.
    """

    def __init__(
        self,
        root: Path,
        names: Strings,
        labels: NDArray[np.int64],
        *,
        shuffle: bool,
        seed: int | None,
        channel_order: ChannelOrder | None,
    ) -> None:
        if channel_order is not None:
            check_choice("channel_order", channel_order, ("bgr", "rgb"))
        self._list = ImageListNode(root, names, labels, channel_order)
        super().__init__(self._list, shuffle=shuffle, seed=seed)
        self.labels = labels
        self._channel_order = channel_order

    def content(self) -> str:
        files = content_of_files(map(self._list.path, range(len(self))))
        values = content_of_values(self.labels, self._channel_order)
        return f"{super().content()}, {values}, {files}"


def check_choice(argument: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        options = ", ".join(map(repr, choices))
        raise ConfigError(f"{argument} must be one of {options}, got {value!r}.")
    return value


def part_names(names: Sequence[str]) -> list[str]:
    listed = names_of(names)
    if not listed:
        raise ConfigError("names must contain at least one part of the data set, got none.")
    return listed


def mean_image(parts: Iterable[NDArray[np.uint8]]) -> NDArray[np.float32]:
    """Return the mean over all images of several arrays."""
    total, count = np.zeros((), np.int64), 0
    for images in parts:
        total = total + images.sum(axis=0, dtype=np.int64)
        count += len(images)
    return np.asarray(total / count, np.float32)


def existing_folder(path: PathLike, description: str) -> Path:
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"The folder {folder} does not exist.", expected=description)
    return folder


def unexpected_content(path: Path, got: str, expected: str) -> FormatError:
    fix = "delete the file and download it again"
    what = f"{path} is damaged or belongs to another data set."
    return FormatError(what, got=got, expected=expected, fix=fix)


def checked_labels(labels: NDArray[Any], num_classes: int, path: Path) -> NDArray[np.int64]:
    """Convert labels to int64 after checking that they are in 0..num_classes-1."""
    right = (labels >= 0) & (labels < num_classes) & (labels % 1 == 0)
    if not right.all():
        first = int(np.argmin(right))
        raise unexpected_content(
            path, f"label {first} is {labels[first]}", f"0 to {num_classes - 1}"
        )
    return labels.astype(np.int64)
