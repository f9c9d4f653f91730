"""What small data sets have in common: uint8 arrays in memory, an image and a label a row."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import FormatError
from towerpack.dataflow._blocks import Block, Columns, Positions
from towerpack.dataflow._content import content_of_values
from towerpack.dataflow._opening import PathLike
from towerpack.dataflow._plan import Node
from towerpack.dataflow.datasets._dataset import Dataset
from towerpack.dataflow.sources._arrays import ArraysNode


class ArrayData(Dataset):
    """Base of data sets that fit into memory; a datapoint is `[image, label]`.

    Contract: in order, or exactly shuffled; as long as the arrays; random if shuffled; thread- and
    fork-safe; resumable at once.

    Args:
        images: uint8, one a row.
        labels: int64.
        shuffle: Give every pass another order, as `ShuffleData` does.
        seed: For the shuffle alone; by default the run's.
        white: The value that becomes 1 in float32 images; by default images stay uint8.
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
        read = content_of_values(self.images, self.labels, self._white)
        return f"{super().content()}, {read}"


class UnitNode(Node):
    """Makes float32 of uint8 images, a block at a time.

    Args:
        inner: Reads columns: images and labels.
        white: What becomes 1.
    """

    def __init__(self, inner: ArraysNode, white: int) -> None:
        self.inner = inner
        self.size = inner.size
        self.chunk = inner.chunk
        self._white = np.float32(white)

    def read(self, epoch: int, positions: Positions) -> Block:
        block = cast("Columns", self.inner.read(epoch, positions))
        images, labels = block.data
        units = np.divide(images, self._white, dtype=np.float32)
        return Columns([units, labels], block.size)


def checked_labels(labels: NDArray[Any], num_classes: int, path: PathLike) -> NDArray[np.int64]:
    """Labels as int64, all of them of a class.

    Raises:
        FormatError: One is not.
    """
    right = (labels >= 0) & (labels < num_classes) & (labels % 1 == 0)
    if not right.all():
        first = int(np.argmin(right))
        raise FormatError(
            f"Label {first} in {path} is {labels[first]}.",
            expected=f"0 to {num_classes - 1}",
            fix="the file is damaged or of another data set; delete it and fetch it again",
        )
    return labels.astype(np.int64)
