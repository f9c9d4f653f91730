"""Digits without a download: 1,797 written by 43 people (Alpaydin & Kaynak 1998)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.extras import require
from towerpack.dataflow.datasets._bases import ArrayData, check_choice

_PARTS = ("train", "val", "test")


class Digits(ArrayData):
    """Small digits: `[image float32 [8, 8] from 0 (paper) to 1 (ink), label int64]`.

    They come with scikit-learn. 70 % are to train, 10 to validate and 20 to test; the split is
    always the same, with all classes in each part.

    Contract: as `ArrayData`; 1,257, 180 or 360 long.

    Args:
        name: "train", "val" or "test".
        shuffle: Give every pass another order.
        seed: For the shuffle alone; by default the run's.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """

    def __init__(
        self, name: str = "train", shuffle: bool = True, *, seed: int | None = None
    ) -> None:
        check_choice("name", name, _PARTS)
        datasets: Any = require("sklearn.datasets", extra="demo", needed_for="Digits")
        raw = datasets.load_digits()
        part = _split(raw.target)[name]
        super().__init__(
            raw.images[part].astype(np.uint8),
            raw.target[part].astype(np.int64),
            shuffle=shuffle,
            seed=seed,
            white=16,
        )
        self.name = name

    def get_label_names(self) -> list[str]:
        """The name of each class."""
        return list("0123456789")


def _split(labels: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    # By class, and within a class in an order that has nothing to do with the file's, in which one
    # writer's digits stand together.
    order = np.random.Generator(np.random.Philox(key=0)).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    tenth = np.arange(len(order)) % 10
    parts = (tenth > 2, tenth == 2, tenth < 2)
    return {name: np.sort(order[part]) for name, part in zip(_PARTS, parts, strict=True)}
