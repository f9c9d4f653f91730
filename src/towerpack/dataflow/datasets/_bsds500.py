"""Berkeley Segmentation Data Set 500 (Arbelaez, Maire, Fowlkes, Malik 2011)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import FormatError
from towerpack.dataflow._blocks import Block, Positions, as_ints
from towerpack.dataflow._content import content_of_files
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._opening import PathLike
from towerpack.dataflow._plan import Node
from towerpack.dataflow.datasets._dataset import Dataset, check_choice
from towerpack.dataflow.datasets._download import RemoteFile
from towerpack.dataflow.datasets._extract import fetch_member
from towerpack.dataflow.datasets._image_list import ChannelOrder
from towerpack.dataflow.datasets._location import own_dir
from towerpack.dataflow.datasets._mat import read_mat
from towerpack.dataflow.sources._files import ImageReader

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


class BSDS500(Dataset):
    """Photographs with drawn outlines: `[image uint8 [321, 481, 3], edges float32 [321, 481]]`.

    200 to train, 100 to validate and 200 to test, sorted by name. An edge pixel is the share of
    the annotators that drew it, from 0 to 1. Upright photographs are laid on their side. Both are
    decoded when they are read.

    Contract: in order, or exactly shuffled; as long as there are files; random if shuffled;
    thread- and fork-safe; resumable at once.

    Args:
        name: "train", "val" or "test".
        data_dir: Where the folder `BSR` lies or shall lie; by default `bsds500_data` in
            `data_dir()`.
        shuffle: Give every pass another order.
        channel_order: "bgr" or "rgb".
        seed: For the shuffle alone; by default the run's.
        base_url: Address of another folder to fetch the archive from, or several.
        verify: Check the size of what is downloaded.

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
        base_url: str | Sequence[str] | None = None,
        verify: bool = True,
    ) -> None:
        self.name = check_choice("name", name, ("train", "val", "test"))
        check_choice("channel_order", channel_order, ("bgr", "rgb"))
        remote = _ARCHIVE.at(base_url, verify=verify)
        root = own_dir(data_dir, "bsds500_data")
        images = fetch_member(remote, root, f"{_INNER}/images/{name}")
        outlines = fetch_member(remote, root, f"{_INNER}/groundTruth/{name}")
        stems = sorted(path.stem for path in images.glob("*.jpg"))
        if not stems:
            raise FormatError(f"There are no images in {images}.", fix="complete the data set")
        node = _OutlineNode(images, outlines, stems, channel_order)
        super().__init__(node, shuffle=shuffle, seed=seed)
        self._read_from = [*sorted(images.glob("*.jpg")), *sorted(outlines.glob("*.mat"))]
        self._channel_order = channel_order

    def content(self) -> str:
        files = content_of_files(self._read_from)
        return f"{super().content()}, {self._channel_order}, {files}"


class _OutlineNode(Node):
    """Reads a photograph and what was drawn on it."""

    def __init__(
        self, images: Path, outlines: Path, stems: list[str], channel_order: ChannelOrder
    ) -> None:
        self.size = len(stems)
        self._images = images
        self._outlines = outlines
        self._stems = stems
        self._read_image = ImageReader(rgb=channel_order == "rgb")

    def read(self, epoch: int, positions: Positions) -> Block:
        return [self.get(epoch, position) for position in as_ints(positions)]

    def get(self, epoch: int, position: int) -> Datapoint:
        stem = self._stems[position]
        path = self._images / f"{stem}.jpg"
        image = _lying(self._read_image(os.fspath(path)), path)
        path = self._outlines / f"{stem}.mat"
        return [image, _lying(_edges(path), path)]


def _edges(path: Path) -> NDArray[np.float32]:
    """The mean of all annotators' outlines."""
    try:
        (drawn,) = read_mat(path, ["groundTruth"])
    except OSError as error:
        raise FormatError(
            f"{path} cannot be read.", got=error.strerror, fix="complete the data set"
        ) from error
    cells = cast("list[Any]", drawn) if isinstance(drawn, list) else []
    outlines = [_boundaries(one) for one in cells]
    if not outlines or any(
        one is None or one.shape != outlines[0].shape or one.ndim != 2 for one in outlines
    ):
        raise FormatError(
            f"{path} holds no outlines.",
            expected="groundTruth: a cell of structures with Boundaries, all of one shape",
            fix="delete the folder BSR and fetch it again",
        )
    total = np.sum([one != 0 for one in outlines], axis=0)
    return np.asarray(total / len(outlines), np.float32)


def _boundaries(annotation: Any) -> Any:
    """What one annotator drew: an array, or `None` where there is no such thing."""
    rows = cast("list[Any]", annotation) if isinstance(annotation, list) else []
    first = cast("dict[str, Any]", rows[0]) if rows and isinstance(rows[0], dict) else {}
    found = first.get("Boundaries")
    return cast("Any", found) if isinstance(found, np.ndarray) else None


def _lying(image: NDArray[Any], path: Path) -> NDArray[Any]:
    """Wider than high."""
    if image.shape[0] > image.shape[1]:
        image = np.ascontiguousarray(image.swapaxes(0, 1))
    if image.shape[:2] != _SHAPE:
        raise FormatError(
            f"{path} has the shape {list(image.shape[:2])}.", expected=f"{list(_SHAPE)}"
        )
    return image
