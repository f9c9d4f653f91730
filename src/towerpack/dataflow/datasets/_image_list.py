"""What large data sets have in common: image files with labels, read one by one when needed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, FormatError
from towerpack.dataflow._blocks import Block, Positions, as_ints
from towerpack.dataflow._content import content_of_files, content_of_values
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._opening import PathLike
from towerpack.dataflow._plan import Node
from towerpack.dataflow._strings import Strings
from towerpack.dataflow.datasets._dataset import Dataset, check_choice
from towerpack.dataflow.sources._files import ImageReader

ChannelOrder = Literal["bgr", "rgb"]


class ImageListNode(Node):
    """Reads one file for each datapoint.

    Args:
        root: The folder that the names start from.
        names: Of the files.
        labels: One for each.
        channel_order: `None` gives paths instead of images.
    """

    def __init__(
        self,
        root: str,
        names: Strings,
        labels: NDArray[np.int64],
        channel_order: ChannelOrder | None,
    ) -> None:
        self.size = len(names)
        self.labels = labels
        self._root = root
        self._names = names
        self._reader = None if channel_order is None else ImageReader(rgb=channel_order == "rgb")

    def read(self, epoch: int, positions: Positions) -> Block:
        return [self.get(epoch, position) for position in as_ints(positions)]

    def get(self, epoch: int, position: int) -> Datapoint:
        path = self.path(position)
        first = path if self._reader is None else self._reader(path)
        return [first, int(self.labels[position])]

    def path(self, position: int) -> str:
        """The file of a datapoint."""
        return os.path.join(self._root, self._names[position])


class ImageList(Dataset):
    """Base of data sets of labelled image files; a datapoint is `[image, label]`.

    Contract: in order, or exactly shuffled; as long as the list; random if shuffled; thread- and
    fork-safe; resumable at once.

    Args:
        root: The folder that the names start from.
        names: Of the files, in order.
        labels: int64, one for each.
        shuffle: Give every pass another order, as `ShuffleData` does.
        seed: For the shuffle alone; by default the run's.
        channel_order: "bgr" (OpenCV's) or "rgb"; `None` gives paths instead of images.
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
        node = ImageListNode(os.fspath(root), names, labels, channel_order)
        super().__init__(node, shuffle=shuffle, seed=seed)
        self.labels = labels
        self._list = node
        self._channel_order = channel_order

    def content(self) -> str:
        files = content_of_files(map(self._list.path, range(len(self))))
        made = content_of_values(self.labels, self._channel_order)
        return f"{super().content()}, {made}, {files}"


def existing_folder(path: PathLike, what: str) -> Path:
    """A folder that has to be there, because it is not downloaded.

    Raises:
        ConfigError: It is not.
    """
    found = Path(path).expanduser()
    if not found.is_dir():
        raise ConfigError(f"There is no folder {found}.", expected=what)
    return found


def read_lines(path: Path) -> list[str]:
    """The lines of a list, without those that are empty.

    Raises:
        FormatError: It cannot be read, or is empty.
    """
    try:
        text = path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        raise FormatError(
            f"The list {path} cannot be read.", got=error.strerror, fix="complete the data set"
        ) from error
    lines = [line.strip() for line in text.split("\n")]
    lines = [line for line in lines if line]
    if not lines:
        raise FormatError(f"The list {path} is empty.", fix="complete the data set")
    return lines


def inner_names(path: Path, names: Sequence[str]) -> Strings:
    """Names from a list, all of files that lie below its folder.

    Raises:
        FormatError: One leads out of it.
    """
    for name in names:
        if ".." in name or name.startswith("/") or "\0" in name:
            raise FormatError(
                f"{path} lists {name!r:.200}.",
                expected="names of files below the data set's folder",
            )
    return Strings(names)
