"""Places365-Standard (Zhou et al. 2017) in its "easy" structure of folders."""

from __future__ import annotations

import numpy as np

from towerpack._core.errors import FormatError
from towerpack.dataflow._opening import PathLike
from towerpack.dataflow.datasets._bases import (
    ChannelOrder,
    ImageList,
    check_choice,
    existing_folder,
)
from towerpack.dataflow.datasets._formats import inner_names, read_lines


class Places365Standard(ImageList):
    """Photographs of places: `[image uint8 [256, 256, 3], label int]`.

    1,803,460 to train and 36,500 to validate; not downloaded (places2.csail.mit.edu, "small
    images, easy directory structure"). Labels are those of the sorted names of the classes in the
    list. Images are decoded when they are read.

    Contract: as `ImageList`.

    Args:
        dir: The folder with `train.txt`, `val.txt`, `train/` and `val/`.
        name: "train" or "val".
        shuffle: Give every pass another order; by default for "train".
        channel_order: "bgr" or "rgb".
        seed: For the shuffle alone; by default the run's.

    Raises:
        ConfigError: There is no such folder.
        FormatError: The list is damaged; an image's error comes when it is read.
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
        folder = existing_folder(dir, "the folder that places365standard_easyformat.tar made")
        path = folder / f"{name}.txt"
        lines = read_lines(path)
        classes = [line.split("/")[1] if line.count("/") > 1 else "" for line in lines]
        if "" in classes:
            number = classes.index("")
            raise FormatError(
                f"{path} lists {lines[number]!r:.200}, among others.",
                expected=f"{name}/class/file",
            )
        self._label_names = sorted(set(classes))
        label_of = {label: number for number, label in enumerate(self._label_names)}
        super().__init__(
            folder,
            inner_names(path, lines),
            np.asarray([label_of[label] for label in classes], np.int64),
            shuffle=name == "train" if shuffle is None else shuffle,
            seed=seed,
            channel_order=channel_order,
        )

    def get_label_names(self) -> list[str]:
        """The name of each class."""
        return self._label_names
