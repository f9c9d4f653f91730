"""Data sets in memory: read from the true formats, served over the loopback."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataset_files import idx_bytes, mat_bytes, serving, tar_bytes
from towerpack._core.errors import ConfigError, DataFlowError, FormatError
from towerpack.dataflow import BatchData
from towerpack.dataflow.datasets import (
    Caltech101Silhouettes,
    Cifar10,
    Cifar100,
    Digits,
    FashionMnist,
    Mnist,
    SVHNDigit,
)
from towerpack.dataflow.datasets._bases import ArrayData

RNG = np.random.default_rng(3)
NOWHERE = "http://127.0.0.1:9"
IMAGES, LABELS = np.zeros((3, 28, 28), np.uint8), np.zeros(3, np.uint8)


def mnist_files() -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for prefix, count in (("train", 30), ("t10k", 7)):
        images = RNG.integers(0, 256, (count, 28, 28), np.uint8)
        files[f"{prefix}-images-idx3-ubyte.gz"] = idx_bytes(images)
        files[f"{prefix}-labels-idx1-ubyte.gz"] = idx_bytes(np.arange(count, dtype=np.uint8) % 10)
    return files


def cifar_files(num_classes: int) -> dict[str, bytes]:
    """Record i of a file: labels, then planes of the values i, i + 50, i + 100."""

    def records(count: int) -> bytes:
        rows = [
            bytes([(i + 1) % 20, i % 100] if num_classes == 100 else [i % 10])
            + b"".join(bytes([i + shift]) * 1024 for shift in (0, 50, 100))
            for i in range(count)
        ]
        return b"".join(rows)

    names = "".join(f"class {i}\n" for i in range(num_classes)).encode()
    if num_classes == 100:
        inner = {"train.bin": records(8), "test.bin": records(3), "fine_label_names.txt": names}
        folder = "cifar-100-binary"
    else:
        inner = {f"data_batch_{i}.bin": records(2) for i in range(1, 6)}
        inner |= {"test_batch.bin": records(3), "batches.meta.txt": names + b"\n"}
        folder = "cifar-10-batches-bin"
    return {
        f"cifar-{num_classes}-binary.tar.gz": tar_bytes(
            {f"{folder}/{name}": data for name, data in inner.items()}
        )
    }


def svhn_files() -> dict[str, bytes]:
    images = RNG.integers(0, 256, (32, 32, 3, 12), np.uint8)
    labels = (np.arange(12, dtype=np.uint8) % 10 + 1)[:, None]
    return {f"{n}_32x32.mat": mat_bytes({"X": images, "y": labels}) for n in ("train", "test")}


def silhouette_files() -> dict[str, bytes]:
    upright = np.zeros((5, 28, 28), np.uint8)
    upright[:, 3, 10:20] = 1  # a horizontal line
    columns = upright.transpose(0, 2, 1).reshape(5, 784)
    variables: dict[str, Any] = {"classnames": np.array([["a", "b"]], object)}
    for name in ("train", "val", "test"):
        variables[f"{name}_data"] = columns
        variables[f"{name}_labels"] = np.array([[1], [2], [101], [50], [7]], np.uint16)
    return {"caltech101_silhouettes_28_split1.mat": mat_bytes(variables)}


Make = Callable[..., ArrayData]
CASES: dict[str, tuple[Make, Callable[[], dict[str, bytes]]]] = {
    "mnist": (lambda **kw: Mnist("train", **kw), mnist_files),
    "fashion": (lambda **kw: FashionMnist("test", **kw), mnist_files),
    "cifar10": (lambda **kw: Cifar10("train", **kw), lambda: cifar_files(10)),
    "cifar100": (lambda **kw: Cifar100("test", **kw), lambda: cifar_files(100)),
    "svhn": (lambda dir=None, **kw: SVHNDigit("train", dir, **kw), svhn_files),
    "silhouettes": (
        lambda verify=True, **kw: Caltech101Silhouettes("train", **kw),
        silhouette_files,
    ),
}


@pytest.mark.parametrize("case", CASES)
class TestAll:
    def test_rows(self, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TOWERPACK_DATA", str(tmp_path / "data"))
        make, files = CASES[case]
        with serving(files()) as served:
            ds = make(base_url=served.url, verify=False, shuffle=False)
            count = len(served.requests)
            make(base_url=served.url, verify=False, shuffle=True)
            assert len(served.requests) == count, "downloaded once"
        (folder,) = (tmp_path / "data").iterdir()
        assert folder.name.endswith("_data")
        rows = list(ds)
        images, labels = next(iter(BatchData(ds, len(ds))))
        assert images.dtype == rows[0][0].dtype and labels.dtype == np.int64
        for i, (image, label) in enumerate(rows):
            assert type([image, label]) is type(rows[i]) is list
            assert np.array_equal(images[i], image) and labels[i] == label
            assert np.array_equal(ds[i][0], image) and ds[i - len(ds)][1] == label
        with pytest.raises(IndexError):
            ds[len(ds)]
        for wrong in (slice(1, 3), 1.0):
            with pytest.raises(ConfigError, match=r"one datapoint|must be an integer"):
                ds[wrong]  # type: ignore[index]

    def test_offline_and_another_file(
        self, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("time.sleep", lambda seconds: None)
        make, files = CASES[case]
        with pytest.raises(DataFlowError) as caught:
            make(dir=tmp_path, base_url=NOWHERE)
        assert any(str(tmp_path / name) in str(caught.value) for name in files())
        if case != "silhouettes":  # of whose file nothing is known
            with serving(files()) as served, pytest.raises(FormatError, match="bytes instead of"):
                make(dir=tmp_path, base_url=served.url)


class TestMnist:
    def test_values(self, tmp_path: Path) -> None:
        images = np.zeros((2, 28, 28), np.uint8)
        images[0, 1, 2], images[1, 3, 4] = 255, 51
        (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(idx_bytes(images))
        (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(
            gzip.decompress(idx_bytes(np.array([7, 2], np.uint8)))
        )
        ds = Mnist("test", shuffle=False, dir=tmp_path, base_url=NOWHERE)
        first, second = ds
        assert first[0].dtype == np.float32 and first[0][1, 2] == 1 and first[0].sum() == 1
        assert second[0][3, 4] == np.float32(0.2) and (first[1], second[1]) == (7, 2)
        assert ds.get_label_names()[9] == "9"
        assert FashionMnist("test", dir=tmp_path).get_label_names()[9] == "ankle boot"

    def test_wrong_contents(self, tmp_path: Path) -> None:
        for images, labels, told in (
            (idx_bytes(IMAGES[:, :, :27]), idx_bytes(LABELS), "belongs to another data set"),
            (idx_bytes(IMAGES), idx_bytes(LABELS + 10), "label 0 is 10"),
            (idx_bytes(IMAGES), idx_bytes(IMAGES), "other contents than uint8 with 1 axes"),
            (gzip.decompress(idx_bytes(IMAGES)) + b"0", idx_bytes(LABELS), "cannot reshape"),
            (gzip.compress(b"\0\0\x08\3" + b"\xff" * 4 + bytes([0, 0, 0, 28] * 2)), b"", "claims"),
        ):
            (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(images)
            (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(labels)
            with pytest.raises(FormatError, match=told):
                Mnist("train", dir=tmp_path)


class TestCifar:
    @pytest.mark.parametrize(("kind", "count"), [(Cifar10, 10), (Cifar100, 100)])
    def test_values(self, tmp_path: Path, kind: type[Cifar10], count: int) -> None:
        with serving(cifar_files(count)) as served:
            ds = kind("test", shuffle=False, dir=tmp_path, base_url=served.url, verify=False)
            assert len(served.requests) == 1
            assert kind("train", dir=tmp_path).shuffle and not kind("test", dir=tmp_path).shuffle
            assert ds.get_label_names() == [f"class {i}" for i in range(count)]
            mean = ds.get_per_pixel_mean(("test",))
            whole = ds.get_per_pixel_mean()
            assert len(served.requests) == 1
        image, label = ds[2]
        assert label == 2 and image.shape == (32, 32, 3) and image.dtype == np.uint8
        assert np.array_equal(image, np.broadcast_to([2, 52, 102], (32, 32, 3)))
        assert mean.shape == (32, 32, 3) and np.array_equal(mean[5, 6], [1, 51, 101])
        numbers = [0, 1] * 5 + [0, 1, 2] if count == 10 else [*range(8), 0, 1, 2]
        assert whole[0, 0, 0] == np.float32(np.mean(numbers))
        assert np.array_equal(ds.get_per_channel_mean("test"), [1, 51, 101])
        with pytest.raises(ConfigError, match="at least one part"):
            ds.get_per_pixel_mean([])

    def test_planes_and_rows(self, tmp_path: Path) -> None:
        folder = tmp_path / "cifar-10-batches-bin"
        folder.mkdir()
        pixels = RNG.integers(0, 256, (3, 32, 32), np.uint8)
        (folder / "test_batch.bin").write_bytes(b"\x03" + pixels.tobytes())
        image, label = Cifar10("test", dir=tmp_path)[0]
        assert label == 3 and np.array_equal(image, pixels.transpose(1, 2, 0))
        for data in (b"", bytes(3072)):
            (folder / "test_batch.bin").write_bytes(data)
            with pytest.raises(FormatError, match="multiple of 3,073"):
                Cifar10("test", dir=tmp_path)


class TestSVHN:
    def test_values(self, tmp_path: Path) -> None:
        images = RNG.integers(0, 256, (32, 32, 3, 3), np.uint8)
        data = mat_bytes({"X": images, "y": np.array([[10], [1], [9]], np.uint8)})
        (tmp_path / "extra_32x32.mat").write_bytes(data)
        ds = SVHNDigit("extra", tmp_path, shuffle=False)
        assert [int(label) for _, label in ds] == [0, 1, 9]
        assert np.array_equal(ds[2][0], images[..., 2])
        mean = SVHNDigit.get_per_pixel_mean("extra", tmp_path)
        assert np.allclose(mean, images.mean(axis=3), atol=1e-4)

    def test_wrong_contents(self, tmp_path: Path) -> None:
        pixels = np.zeros((32, 32, 3, 2), np.uint8)
        for data in (
            mat_bytes({"X": pixels}),
            mat_bytes({"X": pixels, "y": np.ones((3, 1))}),
            mat_bytes({"X": pixels, "y": np.full((2, 1), 11)}),
            mat_bytes({"X": pixels.astype(np.float32), "y": np.ones((2, 1))}),
            b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM" + bytes(500),
        ):
            (tmp_path / "train_32x32.mat").write_bytes(data)
            with pytest.raises(FormatError, match="train_32x32"):
                SVHNDigit("train", tmp_path)


def test_silhouettes_stand_upright(tmp_path: Path) -> None:
    (tmp_path / "caltech101_silhouettes_28_split1.mat").write_bytes(
        silhouette_files()["caltech101_silhouettes_28_split1.mat"]
    )
    ds = Caltech101Silhouettes("val", shuffle=False, dir=tmp_path)
    assert [int(label) for _, label in ds] == [0, 1, 100, 49, 6]
    image = ds[0][0]
    assert image.dtype == np.float32 and image[3, 10:20].all() and image.sum() == 10


def test_digits() -> None:
    parts = [Digits(name, shuffle=False) for name in ("train", "val", "test")]
    assert [len(part) for part in parts] == [1257, 180, 360]
    everything = np.concatenate([part.images for part in parts])
    assert len(np.unique(everything.reshape(1797, -1), axis=0)) == 1797
    image, label = parts[0][0]
    assert image.shape == (8, 8) and image.dtype == np.float32 and label.dtype == np.int64
    assert max(image.max() for image, _ in parts[1]) == 1
    assert all(set(part.labels.tolist()) == set(range(10)) for part in parts)
    for make in (Digits, Mnist):
        with pytest.raises(ConfigError, match="'train'"):
            make("all")
