"""ImageNet's challenge of 2012 (Russakovsky et al. 2015)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack._core.logs import get_logger
from towerpack.dataflow._opening import PathLike
from towerpack.dataflow.datasets._boxes import read_first_box
from towerpack.dataflow.datasets._dataset import check_choice
from towerpack.dataflow.datasets._ilsvrc_meta import PARTS, STRUCTURES, ILSVRCMeta
from towerpack.dataflow.datasets._image_list import ChannelOrder, ImageList, existing_folder

log = get_logger(__name__)

_LOOKED_AT = 10


class _Images(ImageList):
    """One part of the data set."""

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
        base_url: str | Sequence[str] | None = None,
        verify: bool = True,
    ) -> None:
        meta = ILSVRCMeta(meta_dir, base_url=base_url, verify=verify)
        self.name = check_choice("name", name, PARTS)
        self.full_dir = existing_folder(Path(dir) / name, f"the images of {name!r}")
        if dir_structure is None:
            dir_structure = meta.guess_dir_structure(self.full_dir)
        names, labels = meta.image_list(
            name, check_choice("dir_structure", dir_structure, STRUCTURES)
        )
        for file in names[:_LOOKED_AT]:
            self._look_for(file, dir_structure)
        super().__init__(
            self.full_dir,
            names,
            labels,
            shuffle=name == "train" if shuffle is None else shuffle,
            seed=seed,
            channel_order=channel_order,
        )

    def _look_for(self, file: str, dir_structure: str) -> None:
        if not (self.full_dir / file).is_file():
            raise ConfigError(
                f"There is no {file} in {self.full_dir}.",
                expected=f"the images of {self.name!r} in the structure {dir_structure!r}",
                fix="complete the folder, or give another dir_structure",
            )


class ILSVRC12Files(_Images):
    """Paths of ImageNet's images: `[path, label int from 0 to 999]`, to decode them your own way.

    1,281,167 to train, 50,000 to validate, 100,000 to test (without labels: all are 0). The
    images are not downloaded (image-net.org wants you to register), the lists of them are:

        dir/train/n02134418/n02134418_198.JPEG     dir/val/ILSVRC2012_val_00000001.JPEG
        dir/test/ILSVRC2012_test_00000001.JPEG  or dir/val/n01440764/ILSVRC2012_val_00000293.JPEG

    Contract: in order, or exactly shuffled; as long as the list; random if shuffled; thread- and
    fork-safe; resumable at once.

    Args:
        dir: The folder that holds the folder `name`.
        name: "train", "val" or "test".
        meta_dir: Where the lists lie or shall lie; see `ILSVRCMeta`.
        shuffle: Give every pass another order; by default for "train".
        dir_structure: Of "val": "original" for one folder, "train" for folders of synsets. By
            default it is seen.
        seed: For the shuffle alone; by default the run's.
        base_url: Where else to fetch the lists from.
        verify: Check size and checksum of what is downloaded.

    Raises:
        ConfigError: The folder, or one of the first files in the list, is not there.
        FormatError: The list is damaged.
    """

    def __init__(
        self,
        dir: PathLike,
        name: str,
        meta_dir: PathLike | None = None,
        shuffle: bool | None = None,
        dir_structure: str | None = None,
        *,
        seed: int | None = None,
        base_url: str | Sequence[str] | None = None,
        verify: bool = True,
    ) -> None:
        super().__init__(
            dir,
            name,
            meta_dir,
            shuffle,
            dir_structure,
            channel_order=None,
            seed=seed,
            base_url=base_url,
            verify=verify,
        )


class ILSVRC12(_Images):
    """ImageNet's images: `[image uint8 [h, w, 3], label int from 0 to 999]`.

    As `ILSVRC12Files`, and decoded when they are read. Labels are lines of Caffe's `synsets.txt`.

    Contract: as `ILSVRC12Files`.

    Args:
        dir: As for `ILSVRC12Files`.
        name: As for `ILSVRC12Files`.
        meta_dir: As for `ILSVRC12Files`.
        shuffle: As for `ILSVRC12Files`.
        dir_structure: As for `ILSVRC12Files`.
        channel_order: "bgr" or "rgb"; `None` gives paths.
        seed: As for `ILSVRC12Files`.
        base_url: As for `ILSVRC12Files`.
        verify: As for `ILSVRC12Files`.

    Raises:
        ConfigError: As for `ILSVRC12Files`.
        FormatError: The list is damaged; an image's error comes when it is read.
    """

    @staticmethod
    def get_training_bbox(
        bbox_dir: PathLike, imglist: Sequence[tuple[str, int]]
    ) -> list[NDArray[np.float32] | None]:
        """The box of the first object in each image, or `None` where there is no annotation.

        Args:
            bbox_dir: The folder of `n01440764/n01440764_10026.xml` and so on.
            imglist: From `ILSVRCMeta.get_image_list("train")`.

        Returns:
            `[x0, y0, x1, y1]` for each image, in pixels of the image that was annotated.

        Raises:
            FormatError: An annotation is damaged.
        """
        root = existing_folder(bbox_dir, "the annotations of the training images")
        boxes: list[NDArray[np.float32] | None] = []
        for name, _ in imglist:
            path = (root / name).with_suffix(".xml")
            boxes.append(read_first_box(path) if path.is_file() else None)
        log.info("%d of %d images have a box", sum(box is not None for box in boxes), len(boxes))
        return boxes
