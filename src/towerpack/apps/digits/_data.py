"""The data: 1,797 digits written by 43 people (Alpaydin & Kaynak 1998), from scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from towerpack._core.extras import require
from towerpack.dataflow import BatchData, DataFlow, DataFromArrays, MapData, ShuffleData

SIZE_PX = 16
MOST_SHIFT_PX = 2
NUM_TEST = 360


@dataclass(frozen=True)
class Digits:
    """Images [n, 16, 16] float32 from 0 (paper) to 1 (ink), and labels [n] int64."""

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)


def load_digits() -> tuple[Digits, Digits]:
    """Training and test digits; the split is always the same, and every class is in both.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    datasets = require("sklearn.datasets", extra="demo", needed_for="The digits")
    raw = datasets.load_digits()
    images = _enlarged(raw.images.astype(np.float32) / 16)
    labels = raw.target.astype(np.int64)
    # Every fifth of each class, in an order that has nothing to do with the file's (in which one
    # writer's digits stand together).
    order = np.random.Generator(np.random.Philox(key=0)).permutation(len(labels))
    by_class = order[np.argsort(labels[order], kind="stable")]
    test = by_class[::5][:NUM_TEST]
    train = np.setdiff1d(by_class, test)
    return Digits(images[train], labels[train]), Digits(images[test], labels[test])


def train_flow(digits: Digits, batch_size: int) -> DataFlow:
    """Shuffled, batched, augmented."""
    flow: DataFlow = DataFromArrays(digits.images, digits.labels)
    flow = ShuffleData(flow)
    flow = BatchData(flow, batch_size)
    return MapData(flow, augment, rng=True)


def test_flow(digits: Digits, batch_size: int = 128) -> DataFlow:
    """In order, the last batch smaller."""
    return BatchData(DataFromArrays(digits.images, digits.labels), batch_size, remainder=True)


def augment(
    batch: tuple[np.ndarray, np.ndarray], rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Shift each image by up to two pixels and change its contrast a little."""
    images, labels = batch
    n, size, most = len(images), images.shape[1], MOST_SHIFT_PX
    padded = np.pad(images, ((0, 0), (most, most), (most, most)))
    shift = rng.integers(0, 2 * most + 1, size=(n, 2))
    rows = np.arange(size)[None, :, None] + shift[:, 0, None, None]
    columns = np.arange(size)[None, None, :] + shift[:, 1, None, None]
    shifted = padded[np.arange(n)[:, None, None], rows, columns]
    contrast = rng.uniform(0.8, 1.2, size=(n, 1, 1)).astype(np.float32)
    return np.minimum(shifted * contrast, 1.0), labels


def _enlarged(images: np.ndarray) -> np.ndarray:
    """Twice the size, by linear interpolation between the centres of the pixels."""
    rows = _between(images.shape[1])
    columns = _between(images.shape[2])
    return np.einsum("rh,nhw,cw->nrc", rows, images, columns).astype(np.float32)


def _between(size: int) -> np.ndarray:
    """[2 size, size] weights of linear interpolation; the border is repeated."""
    at = np.clip((np.arange(2 * size) + 0.5) / 2 - 0.5, 0, size - 1)
    low = np.minimum(at.astype(int), size - 2)
    weights = np.zeros((2 * size, size), np.float32)
    weights[np.arange(2 * size), low] = 1 - (at - low)
    weights[np.arange(2 * size), low + 1] = at - low
    return weights
