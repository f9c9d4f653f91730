"""ImageNet (ILSVRC 2012, Russakovsky et al. 2015), with the file lists of Caffe's archive."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, FormatError
from towerpack._core.extras import require
from towerpack._core.logs import get_logger
from towerpack.dataflow._user_files import PathLike, Strings, reading
from towerpack.dataflow.datasets._bases import (
    ChannelOrder,
    ImageList,
    check_choice,
    existing_folder,
)
from towerpack.dataflow.datasets._download import Address, RemoteFile, dataset_dir
from towerpack.dataflow.datasets._extract import fetch_member
from towerpack.dataflow.datasets._formats import inner_names, read_blob, read_first_box, read_lines

log = get_logger(__name__)

_PARTS = ("train", "val", "test")
_STRUCTURES = ("original", "train")
_CHECKED_FILES = 10

# Tensorpack checks the same size. Several projects publish the same MD5.
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
    """Class names, file lists and mean image of ILSVRC 2012, from `caffe_ilsvrc12.tar.gz`.

    The archive (18 MB) is downloaded when a missing file is first needed.

    Args:
        dir: Folder of the files (default: `ilsvrc_metadata` in `data_dir()`).
        base_url, verify: See `Mnist`.
    """

    def __init__(
        self, dir: PathLike | None = None, *, base_url: Address = None, verify: bool = True
    ) -> None:
        self.dir = dataset_dir(dir, "ilsvrc_metadata")
        self._remote = _ARCHIVE.from_source(base_url, verify=verify)

    def get_synset_words_1000(self) -> dict[int, str]:
        """Return a dict from labels to lines such as "n01440764 tench, Tinca tinca"."""
        return dict(enumerate(read_lines(self._file("synset_words.txt"))))

    def get_synset_1000(self) -> dict[int, str]:
        """Return a dict from labels to synsets such as "n01440764"."""
        return dict(enumerate(read_lines(self._file("synsets.txt"))))

    def get_image_list(self, name: str, dir_structure: str = "original") -> list[tuple[str, int]]:
        """Return pairs of a file name, relative to the folder `name`, and a label.

        Args:
            name: "train", "val" or "test", whose labels are all 0.
            dir_structure: "original" if images of "val" are in one folder, "train" if they are in
                folders named by synsets.
        """
        names, labels = self.image_list(name, dir_structure)
        return list(zip(names, labels.tolist(), strict=True))

    def image_list(self, name: str, dir_structure: str) -> tuple[Strings, NDArray[np.int64]]:
        # Like `get_image_list`, without an object for each of 1.3 million images.
        path = self._file(f"{check_choice('name', name, _PARTS)}.txt")
        check_choice("dir_structure", dir_structure, _STRUCTURES)
        fields = " ".join(read_lines(path)).split()
        names = fields[::2]
        with reading(path, "lines of a file's name, a space, and a label of 0 or more"):
            labels = np.asarray(fields[1::2], np.int64)
            if len(labels) != len(names) or labels.min() < 0:
                raise ValueError(f"it has {len(names):,} names and {len(labels):,} valid labels")
        if name == "val" and dir_structure == "train":
            synsets = self.get_synset_1000()
            if labels.max() >= len(synsets):
                expected = f"0 to {len(synsets) - 1}, because there are {len(synsets)} synsets"
                raise FormatError(f"{path} has the label {labels.max()}.", expected=expected)
            pairs = zip(names, labels.tolist(), strict=True)
            names = [f"{synsets[label]}/{file}" for file, label in pairs]
        return inner_names(path, names), labels

    def get_per_pixel_mean(self, size: tuple[int, int] | None = None) -> NDArray[np.float32]:
        """Return the mean of all training images, BGR, with values from 0 to 255.

        Args:
            size: (height, width) to resize the mean image to (default: 256 by 256).

        Raises:
            MissingExtraError: protobuf is not installed, or OpenCV, which `size` needs.
        """
        path = self._file("imagenet_mean.binaryproto")
        mean = np.ascontiguousarray(read_blob(path, channels=3).transpose(1, 2, 0))
        if size is None or tuple(size) == mean.shape[:2]:
            return mean
        cv2: Any = require("cv2", extra="image", needed_for="Resizing the mean image")
        return cv2.resize(mean, (size[1], size[0]))

    @staticmethod
    def guess_dir_structure(dir: PathLike) -> str:
        """Return "train" if a folder has subfolders named by synsets, and "original" otherwise.

        Args:
            dir: The folder of the images.
        """
        with os.scandir(existing_folder(dir, "a folder of images")) as entries:
            folders = (entry.name for entry in entries if entry.is_dir())
            synsets = (name[0] == "n" and name[1:].isdigit() for name in folders)
            return "train" if any(synsets) else "original"

    def _file(self, name: str) -> Path:
        return fetch_member(self._remote, self.dir, name)


class ILSVRC12Files(ImageList):
    """ImageNet (ILSVRC 2012) as paths: `[path, label int from 0 to 999]`.

    It has 1,281,167 training, 50,000 validation and 100,000 test images, whose labels are all 0.
    Images must be downloaded from image-net.org, which needs a registration. Only the lists of
    files are downloaded. The folders are:

        dir/train/n02134418/n02134418_198.JPEG     dir/val/ILSVRC2012_val_00000001.JPEG
        dir/test/ILSVRC2012_test_00000001.JPEG  or dir/val/n01440764/ILSVRC2012_val_00000293.JPEG

    Args:
        dir: Folder that contains the folder `name`.
        name: "train", "val" or "test".
        meta_dir: Folder of the file lists, see `ILSVRCMeta`.
        shuffle: Shuffle every pass differently (default: only "train").
        dir_structure: Structure of "val": "original" for one folder, "train" for folders named by
            synsets (default: detected).
        seed, base_url, verify: See `Mnist`.

    Raises:
        ConfigError: The folder or one of the first files in the list does not exist.
    """

    _order: ChannelOrder | None = None

    def __init__(
        self,
        dir: PathLike,
        name: str,
        meta_dir: PathLike | None = None,
        shuffle: bool | None = None,
        dir_structure: str | None = None,
        *,
        seed: int | None = None,
        base_url: Address = None,
        verify: bool = True,
    ) -> None:
        meta = ILSVRCMeta(meta_dir, base_url=base_url, verify=verify)
        self.name = check_choice("name", name, _PARTS)
        self.full_dir = existing_folder(Path(dir) / name, f"the images of {name!r}")
        structure = dir_structure or meta.guess_dir_structure(self.full_dir)
        names, labels = meta.image_list(name, structure)
        for file in names[:_CHECKED_FILES]:
            if not (self.full_dir / file).is_file():
                what = f"The file {file} does not exist in {self.full_dir}."
                expected = f"the images of {name!r} in the structure {structure!r}"
                fix = "copy the missing images, or pass a different dir_structure"
                raise ConfigError(what, expected=expected, fix=fix)
        shuffle = name == "train" if shuffle is None else shuffle
        listed = self.full_dir, names, labels
        super().__init__(*listed, shuffle=shuffle, seed=seed, channel_order=self._order)


class ILSVRC12(ILSVRC12Files):
    """ImageNet (ILSVRC 2012): `[image uint8 [h, w, 3], label int from 0 to 999]`.

    Labels are line numbers of Caffe's `synsets.txt`. Errors are the same as for `ILSVRC12Files`.

    Args:
        dir, name, meta_dir, shuffle, dir_structure, seed, base_url, verify: See `ILSVRC12Files`.
        channel_order: "bgr" or "rgb". `None` returns paths instead of images.
    """

    def __init__(
        self,
        dir: PathLike,
        name: str,
        meta_dir: PathLike | None = None,
        shuffle: bool | None = None,
        dir_structure: str | None = None,
        *,
        channel_order: ChannelOrder | None = "bgr",
        seed: int | None = None,
        base_url: Address = None,
        verify: bool = True,
    ) -> None:
        self._order = channel_order
        where = (dir, name, meta_dir, shuffle, dir_structure)
        super().__init__(*where, seed=seed, base_url=base_url, verify=verify)

    @staticmethod
    def get_training_bbox(
        bbox_dir: PathLike, imglist: Sequence[tuple[str, int]]
    ) -> list[NDArray[np.float32] | None]:
        """Return `[x0, y0, x1, y1]` of the first object of each image, or `None` if unknown.

        Args:
            bbox_dir: Folder of the annotations, such as `n01440764/n01440764_10026.xml`.
            imglist: List of `ILSVRCMeta.get_image_list("train")`.
        """
        root = existing_folder(bbox_dir, "the annotations of the training images")
        paths = [(root / name).with_suffix(".xml") for name, _ in imglist]
        boxes = [read_first_box(path) if path.is_file() else None for path in paths]
        log.info("%d of %d images have a box", sum(box is not None for box in boxes), len(boxes))
        return boxes
