"""What Caffe's archive tells about ILSVRC 2012: classes, lists of images, the mean image."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import FormatError
from towerpack._core.extras import require
from towerpack.dataflow._opening import PathLike
from towerpack.dataflow._strings import Strings
from towerpack.dataflow.datasets._blob import read_blob
from towerpack.dataflow.datasets._dataset import check_choice
from towerpack.dataflow.datasets._download import RemoteFile
from towerpack.dataflow.datasets._extract import fetch_member
from towerpack.dataflow.datasets._image_list import existing_folder, inner_names, read_lines
from towerpack.dataflow.datasets._location import own_dir

PARTS = ("train", "val", "test")
STRUCTURES = ("original", "train")

# The size that the predecessor checked; the MD5 that several projects have found independently.
_ARCHIVE = RemoteFile(
    "caffe_ilsvrc12.tar.gz",
    (
        "https://download.openmmlab.com/mmclassification/datasets/imagenet/meta",
        "http://dl.caffe.berkeleyvision.org",
    ),
    17_858_008,
    "md5:f963098ea0e785a968ca1eb634003a90",
)


class ILSVRCMeta:
    """Classes, lists and mean of ILSVRC 2012, from `caffe_ilsvrc12.tar.gz`.

    Each file is fetched (with the whole archive, 18 MB) when it is asked for and not there.

    Args:
        dir: Where the files lie or shall lie; by default `ilsvrc_metadata` in `data_dir()`.
        base_url: Address of another folder to fetch the archive from, or several.
        verify: Check size and checksum of what is downloaded.
    """

    def __init__(
        self,
        dir: PathLike | None = None,
        *,
        base_url: str | Sequence[str] | None = None,
        verify: bool = True,
    ) -> None:
        self.dir = own_dir(dir, "ilsvrc_metadata")
        self._remote = _ARCHIVE.at(base_url, verify=verify)

    def get_synset_words_1000(self) -> dict[int, str]:
        """For each label a line such as "n01440764 tench, Tinca tinca"."""
        return dict(enumerate(self._lines("synset_words.txt")))

    def get_synset_1000(self) -> dict[int, str]:
        """For each label its synset, such as "n01440764"."""
        return dict(enumerate(self._lines("synsets.txt")))

    def get_image_list(self, name: str, dir_structure: str = "original") -> list[tuple[str, int]]:
        """Names of files, from the folder `name`, and labels.

        Args:
            name: "train", "val" or "test" (whose labels are all 0).
            dir_structure: "original" if images of "val" lie in one folder, "train" if they lie in
                folders of their synsets.

        Raises:
            FormatError: The list is damaged.
        """
        names, labels = self.image_list(name, dir_structure)
        return list(zip(names, labels.tolist(), strict=True))

    def image_list(self, name: str, dir_structure: str) -> tuple[Strings, NDArray[np.int64]]:
        """As `get_image_list`, without an object for each of 1.3 million images."""
        path = self._file(f"{check_choice('name', name, PARTS)}.txt")
        check_choice("dir_structure", dir_structure, STRUCTURES)
        names, labels = _named_labels(path)
        if name == "val" and dir_structure == "train":
            synsets = self._lines("synsets.txt")
            if labels.max() >= len(synsets):
                raise FormatError(
                    f"{path} has the label {labels.max()}.",
                    expected=f"0 to {len(synsets) - 1}, as there are {len(synsets)} synsets",
                )
            pairs = zip(names, labels.tolist(), strict=True)
            names = [f"{synsets[label]}/{file}" for file, label in pairs]
        return inner_names(path, names), labels

    def get_per_pixel_mean(self, size: tuple[int, int] | None = None) -> NDArray[np.float32]:
        """The mean of all training images.

        Args:
            size: (height, width) to resize it to; it is 256 x 256.

        Returns:
            [height, width, 3], BGR, from 0 to 255.

        Raises:
            FormatError: The file is damaged.
            MissingExtraError: `size` needs OpenCV.
        """
        path = self._file("imagenet_mean.binaryproto")
        mean = np.ascontiguousarray(read_blob(path, channels=3).transpose(1, 2, 0))
        if size is None or tuple(size) == mean.shape[:2]:
            return mean
        cv2: Any = require("cv2", extra="image", needed_for="Resizing the mean image")
        return cv2.resize(mean, (size[1], size[0]))

    @staticmethod
    def guess_dir_structure(dir: PathLike) -> str:
        """Tell "train", where images lie in folders of their synsets, from "original"."""
        with os.scandir(existing_folder(dir, "a folder of images")) as entries:
            inner = (entry.name for entry in entries if entry.is_dir())
            return "train" if any(_is_synset(name) for name in inner) else "original"

    def _lines(self, name: str) -> list[str]:
        return read_lines(self._file(name))

    def _file(self, name: str) -> Path:
        return fetch_member(self._remote, self.dir, name)


def _is_synset(name: str) -> bool:
    return name.startswith("n") and name[1:].isdigit()


def _named_labels(path: Path) -> tuple[list[str], NDArray[np.int64]]:
    """Lines of a name and a label."""
    fields = " ".join(read_lines(path)).split()
    names, labels = fields[::2], fields[1::2]
    try:
        numbers = np.asarray(labels, np.int64)
    except (ValueError, OverflowError):
        numbers = np.empty(0, np.int64)
    if len(numbers) != len(names) or numbers.min() < 0:
        raise FormatError(
            f"{path} is no list of images.",
            expected="lines of a file's name, a space, and a label of 0 or more",
            fix="delete it, and it is fetched again",
        )
    return names, numbers
