"""ImageNet's challenge of 2012 (Russakovsky et al. 2015), with the lists of Caffe's archive."""

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
from towerpack.dataflow.datasets._download import Address, RemoteFile, own_dir
from towerpack.dataflow.datasets._extract import fetch_member
from towerpack.dataflow.datasets._formats import inner_names, read_blob, read_first_box, read_lines

log = get_logger(__name__)

_PARTS = ("train", "val", "test")
_STRUCTURES = ("original", "train")
_LOOKED_AT = 10

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
        base_url, verify: As for `Mnist`.
    """

    def __init__(
        self, dir: PathLike | None = None, *, base_url: Address = None, verify: bool = True
    ) -> None:
        self.dir = own_dir(dir, "ilsvrc_metadata")
        self._remote = _ARCHIVE.at(base_url, verify=verify)

    def get_synset_words_1000(self) -> dict[int, str]:
        """For each label a line such as "n01440764 tench, Tinca tinca"."""
        return dict(enumerate(read_lines(self._file("synset_words.txt"))))

    def get_synset_1000(self) -> dict[int, str]:
        """For each label its synset, such as "n01440764"."""
        return dict(enumerate(read_lines(self._file("synsets.txt"))))

    def get_image_list(self, name: str, dir_structure: str = "original") -> list[tuple[str, int]]:
        """Names of files, from the folder `name`, and labels.

        Args:
            name: "train", "val" or "test" (whose labels are all 0).
            dir_structure: "original" if images of "val" lie in one folder, "train" if they lie in
                folders of their synsets.
        """
        names, labels = self.image_list(name, dir_structure)
        return list(zip(names, labels.tolist(), strict=True))

    def image_list(self, name: str, dir_structure: str) -> tuple[Strings, NDArray[np.int64]]:
        """As `get_image_list`, without an object for each of 1.3 million images."""
        path = self._file(f"{check_choice('name', name, _PARTS)}.txt")
        check_choice("dir_structure", dir_structure, _STRUCTURES)
        fields = " ".join(read_lines(path)).split()
        names = fields[::2]
        with reading(path, "lines of a file's name, a space, and a label of 0 or more"):
            labels = np.asarray(fields[1::2], np.int64)
            if len(labels) != len(names) or labels.min() < 0:
                raise ValueError(f"{len(names):,} names, {len(labels):,} labels")
        if name == "val" and dir_structure == "train":
            synsets = self.get_synset_1000()
            if labels.max() >= len(synsets):
                expected = f"0 to {len(synsets) - 1}: there are {len(synsets)} synsets"
                raise FormatError(f"{path} has the label {labels.max()}.", expected=expected)
            pairs = zip(names, labels.tolist(), strict=True)
            names = [f"{synsets[label]}/{file}" for file, label in pairs]
        return inner_names(path, names), labels

    def get_per_pixel_mean(self, size: tuple[int, int] | None = None) -> NDArray[np.float32]:
        """The mean of all training images, BGR, from 0 to 255: [256, 256, 3], or scaled to `size`.

        Raises:
            MissingExtraError: protobuf is not installed, or for `size` OpenCV.
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
            folders = (entry.name for entry in entries if entry.is_dir())
            synsets = (name[0] == "n" and name[1:].isdigit() for name in folders)
            return "train" if any(synsets) else "original"

    def _file(self, name: str) -> Path:
        return fetch_member(self._remote, self.dir, name)


class ILSVRC12Files(ImageList):
    """Paths of ImageNet's images: `[path, label int from 0 to 999]`, to decode them your own way.

    1,281,167 to train, 50,000 to validate, 100,000 to test (without labels: all are 0). The
    images are not downloaded (image-net.org wants you to register), the lists of them are:

        dir/train/n02134418/n02134418_198.JPEG     dir/val/ILSVRC2012_val_00000001.JPEG
        dir/test/ILSVRC2012_test_00000001.JPEG  or dir/val/n01440764/ILSVRC2012_val_00000293.JPEG

    Contract: as `ImageList`.

    Args:
        dir: The folder that holds the folder `name`.
        name: "train", "val" or "test".
        meta_dir: Where the lists lie or shall lie; see `ILSVRCMeta`.
        shuffle: Give every pass another order; by default for "train".
        dir_structure: Of "val": "original" for one folder, "train" for folders of synsets. By
            default it is seen.
        seed, base_url, verify: As for `Mnist`.

    Raises:
        ConfigError: The folder, or one of the first files in the list, is not there.
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
        for file in names[:_LOOKED_AT]:
            if not (self.full_dir / file).is_file():
                what = f"There is no {file} in {self.full_dir}."
                expected = f"the images of {name!r} in the structure {structure!r}"
                fix = "complete the folder, or give another dir_structure"
                raise ConfigError(what, expected=expected, fix=fix)
        shuffle = name == "train" if shuffle is None else shuffle
        listed = self.full_dir, names, labels
        super().__init__(*listed, shuffle=shuffle, seed=seed, channel_order=self._order)


class ILSVRC12(ILSVRC12Files):
    """ImageNet's images: `[image uint8 [h, w, 3], label int from 0 to 999]`.

    As `ILSVRC12Files`, with the same arguments and errors, and decoded when they are read, in the
    `channel_order` "bgr" or "rgb" (`None` gives paths). Labels are lines of Caffe's `synsets.txt`.

    Contract: as `ImageList`.
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
        """`[x0, y0, x1, y1]` of each image's first object, or `None` if there is no annotation.

        Args:
            bbox_dir: The folder of `n01440764/n01440764_10026.xml` and so on.
            imglist: From `ILSVRCMeta.get_image_list("train")`.
        """
        root = existing_folder(bbox_dir, "the annotations of the training images")
        paths = [(root / name).with_suffix(".xml") for name, _ in imglist]
        boxes = [read_first_box(path) if path.is_file() else None for path in paths]
        log.info("%d of %d images have a box", sum(box is not None for box in boxes), len(boxes))
        return boxes
