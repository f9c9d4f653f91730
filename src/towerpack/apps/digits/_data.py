"""The data: 1,797 digits written by 43 people (Alpaydin & Kaynak 1998), from scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from towerpack.dataflow import (
    BatchData,
    DataFlow,
    DataFromArrays,
    MapData,
    ShuffleData,
    datasets,
)

SIZE_PX = 16
MOST_SHIFT_PX = 1.5
MOST_TURN_RAD = 0.2
MOST_ZOOM = 0.12
MOST_SHEAR = 0.15


@dataclass(frozen=True)
class Digits:
    """Images [n, 16, 16] float32 from 0 (paper) to 1 (ink), and labels [n] int64."""

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)


def load_digits() -> tuple[Digits, Digits, Digits]:
    """Training, validation and test digits: 70, 10 and 20 %, as `datasets.Digits` splits them.

    Training sees the first, the best checkpoint is chosen by the second, and the third is only
    looked at in the end.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    train, validation, test = (_part(name) for name in ("train", "val", "test"))
    return train, validation, test


def _part(name: str) -> Digits:
    raw = datasets.Digits(name)
    return Digits(_enlarged(raw.images.astype(np.float32) / 16), raw.labels)


def train_flow(digits: Digits, batch_size: int) -> DataFlow:
    """Shuffled, batched, augmented."""
    flow: DataFlow = DataFromArrays(digits.images, digits.labels)
    flow = ShuffleData(flow)
    flow = BatchData(flow, batch_size)
    return MapData(flow, augment, rng=True)


def evaluation_flow(digits: Digits, batch_size: int = 128) -> DataFlow:
    """In order, the last batch smaller."""
    return BatchData(DataFromArrays(digits.images, digits.labels), batch_size, remainder=True)


def augment(
    batch: tuple[np.ndarray, np.ndarray], rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Turn, stretch, shear and shift each image a little, and change its contrast."""
    images, labels = batch
    n = len(images)
    turn = rng.uniform(-MOST_TURN_RAD, MOST_TURN_RAD, n)
    zoom = rng.uniform(1 - MOST_ZOOM, 1 + MOST_ZOOM, (n, 2))
    shear = rng.uniform(-MOST_SHEAR, MOST_SHEAR, n)
    matrix = np.empty((n, 2, 2))
    matrix[:, 0, 0] = np.cos(turn) * zoom[:, 0]
    matrix[:, 0, 1] = -np.sin(turn) * zoom[:, 0]
    matrix[:, 1, 0] = np.sin(turn) * zoom[:, 1] + shear
    matrix[:, 1, 1] = np.cos(turn) * zoom[:, 1]
    shift = rng.uniform(-MOST_SHIFT_PX, MOST_SHIFT_PX, (n, 2))
    contrast = rng.uniform(0.8, 1.2, (n, 1, 1))
    warped = _warped(images, matrix, shift) * contrast
    return np.minimum(warped, 1).astype(np.float32), labels


def _warped(images: np.ndarray, matrix: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Each image seen through an affine map about its centre, linearly interpolated.

    Args:
        images: [n, size, size]; outside of them is paper (0).
        matrix: [n, 2, 2] from (row, column) of the result to that of the image, in pixels.
        shift: [n, 2] pixels, added to it.
    """
    n, size, _ = images.shape
    axis = np.arange(size) - (size - 1) / 2
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij")).reshape(2, -1)
    # One pixel of paper all around, so that the border fades out instead of being repeated.
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1))).reshape(n, -1)
    at = matrix @ grid + shift[:, :, None] + (size - 1) / 2 + 1
    at = np.clip(at, 0, size + 1 - 1e-6)
    low = at.astype(np.intp)
    (row, column), (down, right) = np.moveaxis(at - low, 1, 0), np.moveaxis(low, 1, 0)
    corner = down * (size + 2) + right

    def pixel(offset: int) -> np.ndarray:
        return np.take_along_axis(padded, corner + offset, axis=1)

    upper = pixel(0) * (1 - column) + pixel(1) * column
    lower = pixel(size + 2) * (1 - column) + pixel(size + 3) * column
    return (upper * (1 - row) + lower * row).reshape(n, size, size)


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
