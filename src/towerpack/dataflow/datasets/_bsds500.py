"""Berkeley Segmentation Data Set 500 (Arbelaez, Maire, Fowlkes, Malik 2011)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import FormatError
from towerpack.dataflow._content import content_of_files
from towerpack.dataflow._datapoints import Block, Datapoint, Positions, as_ints
from towerpack.dataflow._opening import PathLike, Strings, reading
from towerpack.dataflow._plan import Node
from towerpack.dataflow.datasets._bases import ChannelOrder, ImageList, ImageListNode, check_choice
from towerpack.dataflow.datasets._download import Address, RemoteFile, own_dir
from towerpack.dataflow.datasets._extract import fetch_member
from towerpack.dataflow.datasets._formats import read_mat

_SHAPE = (321, 481)
_INNER = "BSR/BSDS500/data"
# Its size is known, and no checksum that the authors published.
_ARCHIVE = RemoteFile(
    "BSR_bsds500.tgz",
    (
        "https://www2.eecs.berkeley.edu/Research/Projects/CS/vision/grouping/BSR",
        "http://www.eecs.berkeley.edu/Research/Projects/CS/vision/grouping/BSR",
    ),
    70_763_455,
)


class BSDS500(ImageList):
    """Photographs with drawn outlines: `[image uint8 [321, 481, 3], edges float32 [321, 481]]`.

    200 to train, 100 to validate and 200 to test, sorted by name. An edge pixel is the share of
    the annotators that drew it, from 0 to 1. Upright photographs are laid on their side. Both are
    decoded when they are read.

    Contract: as `ImageList`.

    Args:
        name: "train", "val" or "test".
        data_dir: Where the folder `BSR` lies or shall lie; by default `bsds500_data` in
            `data_dir()`.
        shuffle: Give every pass another order.
        channel_order: "bgr" or "rgb".
        seed, base_url, verify: As for `Mnist`.

    Raises:
        DataFlowError: The files are not there and cannot be had.
        FormatError: The archive is damaged; a file's error comes when it is read.
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
        check_choice("channel_order", channel_order, ("bgr", "rgb"))
        remote = _ARCHIVE.at(base_url, verify=verify)
        root = own_dir(data_dir, "bsds500_data")
        images = fetch_member(remote, root, f"{_INNER}/images/{name}")
        self._outlines = fetch_member(remote, root, f"{_INNER}/groundTruth/{name}")
        files = sorted(path.name for path in images.glob("*.jpg"))
        if not files:
            raise FormatError(f"There are no images in {images}.", fix="complete the data set")
        super().__init__(
            images,
            Strings(files),
            np.arange(len(files)),
            shuffle=shuffle,
            seed=seed,
            channel_order=channel_order,
        )
        self._node = _OutlineNode(self._list, self._outlines)

    def content(self) -> str:
        return f"{super().content()}, {content_of_files(sorted(self._outlines.glob('*.mat')))}"


class _OutlineNode(Node):
    """Reads a photograph and what was drawn on it."""

    def __init__(self, photographs: ImageListNode, outlines: Path) -> None:
        self.size = photographs.size
        self._photographs = photographs
        self._outlines = outlines

    def read(self, epoch: int, positions: Positions) -> Block:
        return [self.get(epoch, position) for position in as_ints(positions)]

    def get(self, epoch: int, position: int) -> Datapoint:
        image, _ = self._photographs.get(epoch, position)
        photograph = Path(self._photographs.path(position))
        outline = self._outlines / f"{photograph.stem}.mat"
        return [_lying(image, photograph), _lying(_edges(outline), outline)]


def _edges(path: Path) -> NDArray[np.float32]:
    """The mean of all annotators' outlines."""
    with reading(path, "outlines"):
        (cells,) = read_mat(path, ["groundTruth"], kinds="O")
        # A cell for each annotator, of a structure, whose fields are arrays of one element.
        outlines = [cell["Boundaries"].item() != 0 for cell in cells.flat]
        return np.asarray(np.mean(outlines, axis=0), np.float32)


def _lying(image: NDArray[Any], path: Path) -> NDArray[Any]:
    """Wider than high."""
    if image.shape[0] > image.shape[1]:
        image = np.ascontiguousarray(image.swapaxes(0, 1))
    if image.shape[:2] != _SHAPE:
        raise FormatError(
            f"{path} has the shape {list(image.shape[:2])}.", expected=f"{list(_SHAPE)}"
        )
    return image
