"""scikit-learn's digits, written as MNIST, CIFAR-10 and SVHN come: files in their true formats."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dataset_files import idx_bytes, mat_bytes
from towerpack.dataflow.datasets import Digits

Part = tuple[np.ndarray, np.ndarray]


def write_digits(root: Path, *, only: int | None = None) -> None:
    """Write the three data sets below `root`, for `$TOWERPACK_DATA`.

    Args:
        root: Directory.
        only: How many digits of each part; None for all 1,437 to train and 360 to test.
    """
    train = _joined([Digits("train"), Digits("val")], only)
    test = _joined([Digits("test")], only)
    for path, data in {
        **_mnist({"train": train, "t10k": test}),
        **_cifar(train, test),
        **_svhn({"train": train, "extra": train, "test": test}),
    }.items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)


def _joined(parts: list[Digits], only: int | None) -> Part:
    """Images [n, 8, 8] from 0 (paper) to 255 (ink), and labels."""
    images = np.concatenate([part.images for part in parts])[:only]
    labels = np.concatenate([part.labels for part in parts])[:only]
    return np.minimum(images * 16.0, 255).astype(np.uint8), labels.astype(np.uint8)


def _enlarged(images: np.ndarray, times: int, margin: int) -> np.ndarray:
    large = images.repeat(times, axis=1).repeat(times, axis=2)
    return np.pad(large, [(0, 0), (margin, margin), (margin, margin)])


def _coloured(images: np.ndarray) -> np.ndarray:
    """RGB [n, 32, 32, 3]: each digit in ink of its own on paper of its own, darker."""
    rng = np.random.default_rng(0)
    ink = rng.integers(160, 256, (len(images), 1, 1, 3))
    paper = rng.integers(0, 96, (len(images), 1, 1, 3))
    share = _enlarged(images, 4, 0)[..., None] / 255
    return (paper + share * (ink - paper)).astype(np.uint8)


def _mnist(parts: Mapping[str, Part]) -> dict[str, bytes]:
    files = {}
    for name, (images, labels) in parts.items():
        files[f"mnist_data/{name}-images-idx3-ubyte.gz"] = idx_bytes(_enlarged(images, 3, 2))
        files[f"mnist_data/{name}-labels-idx1-ubyte.gz"] = idx_bytes(labels)
    return files


def _cifar(train: Part, test: Part) -> dict[str, bytes]:
    def records(images: np.ndarray, labels: np.ndarray) -> bytes:
        planes = _coloured(images).transpose(0, 3, 1, 2).reshape(len(images), -1)
        return np.concatenate([labels[:, None], planes], axis=1).tobytes()

    files = {
        "test_batch.bin": records(*test),
        "batches.meta.txt": b"0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n",
    }
    for i, rows in enumerate(np.array_split(np.arange(len(train[0])), 5), 1):
        files[f"data_batch_{i}.bin"] = records(train[0][rows], train[1][rows])
    return {f"cifar10_data/cifar-10-batches-bin/{name}": data for name, data in files.items()}


def _svhn(parts: Mapping[str, Part]) -> dict[str, bytes]:
    files = {}
    for name, (images, labels) in parts.items():
        classes = np.where(labels == 0, 10, labels)[:, None]
        variables = {"X": _coloured(images).transpose(1, 2, 3, 0), "y": classes}
        files[f"svhn_data/{name}_32x32.mat"] = mat_bytes(variables)
    return files
