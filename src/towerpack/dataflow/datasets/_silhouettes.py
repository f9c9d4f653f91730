"""Caltech 101 Silhouettes (Marlin, Swersky, Chen, de Freitas 2010)."""

from __future__ import annotations

import numpy as np

from towerpack.dataflow._opening import PathLike
from towerpack.dataflow.datasets._bases import (
    ArrayData,
    check_choice,
    checked_labels,
    other_content,
)
from towerpack.dataflow.datasets._download import Address, RemoteFile, own_dir
from towerpack.dataflow.datasets._formats import read_mat

_SIDE = 28
_NUM_CLASSES = 101
# No checksum of it is published: its structure is checked instead.
_FILE = RemoteFile(
    "caltech101_silhouettes_28_split1.mat", ("https://people.cs.umass.edu/~marlin/data",)
)


class Caltech101Silhouettes(ArrayData):
    """Outlines of things: `[image float32 [28, 28] of 0 and 1, label int64 from 0 to 100]`.

    4,100 to train, 2,264 to validate and 2,307 to test. The file holds images column by column,
    as MATLAB does; here they stand upright (the predecessor's lay on their side).

    Contract: as `ArrayData`.

    Args:
        name: "train", "val" or "test".
        shuffle: Give every pass another order.
        dir: Where the file lies or shall lie; by default `caltech101_data` in `data_dir()`.
        seed, base_url: As for `Mnist`.

    Raises:
        DataFlowError: The file is not there and cannot be had.
        FormatError: It is damaged.
    """

    def __init__(
        self,
        name: str,
        shuffle: bool = True,
        dir: PathLike | None = None,
        *,
        seed: int | None = None,
        base_url: Address = None,
    ) -> None:
        check_choice("name", name, ("train", "val", "test"))
        path = _FILE.at(base_url).fetch(own_dir(dir, "caltech101_data"))
        data, labels = read_mat(path, [f"{name}_data", f"{name}_labels"])
        if (
            data.ndim != 2
            or data.shape != (labels.size, _SIDE * _SIDE)
            or not np.isin(data, (0, 1)).all()
        ):
            got = f"data {list(data.shape)}, labels {list(labels.shape)}"
            raise other_content(path, got, f"data [n, {_SIDE**2}] of 0 and 1, labels [n, 1]")
        columns = data.astype(np.uint8).reshape(-1, _SIDE, _SIDE)
        super().__init__(
            np.ascontiguousarray(columns.transpose(0, 2, 1)),
            checked_labels(labels.ravel().astype(np.float64) - 1, _NUM_CLASSES, path),
            shuffle=shuffle,
            seed=seed,
            white=1,
        )
        self.name = name
