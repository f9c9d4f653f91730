"""The predecessor's first example, as it is printed, on a database written as Caffe writes it."""

from __future__ import annotations

from pathlib import Path

import lmdb
import numpy as np
import pytest
from numpy.typing import NDArray

from towerpack.dataflow import AugmentImageComponent, BatchData, MapData, PrefetchData, imgaug
from towerpack.dataflow.formats import CaffeLMDB


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def datum(img: NDArray[np.uint8], label: int) -> bytes:
    """`caffe.io.array_to_datum`: channels, height, width, data (planes), label."""
    height, width, channels = img.shape
    data = img.transpose(2, 0, 1).tobytes()
    sizes = b"\x08" + varint(channels) + b"\x10" + varint(height) + b"\x18" + varint(width)
    return sizes + b"\x22" + varint(len(data)) + data + b"\x28" + varint(label)


@pytest.fixture
def database(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    env = lmdb.open(str(tmp_path / "lmdb"), map_size=1 << 30)
    with env.begin(write=True) as txn:
        for i in range(300):
            img = np.full((20 + i % 7, 30, 3), i % 250, np.uint8)
            img[rng.integers(20), :, i % 3] += 1
            txn.put(f"{i:08d}_n{i % 10:04d}/{i}.JPEG".encode(), datum(img, i % 10))
    env.close()
    return str(tmp_path / "lmdb")


def test_as_printed(database: str) -> None:
    ds = CaffeLMDB(database, shuffle=False)
    ds = AugmentImageComponent(ds, [imgaug.Resize((225, 225))])
    ds = MapData(ds, lambda dp: [np.dot(dp[0], [0.299, 0.587, 0.114])[:, :]])
    ds = BatchData(ds, 128)
    ds = PrefetchData(ds, 3, 2)

    batches = [batch[0].copy() for batch in ds]
    assert len(batches) == len(ds) == 2
    for batch in batches:
        assert batch.shape == (128, 225, 225) and batch.dtype == np.float64
    grey = np.concatenate(batches).mean(axis=(1, 2))
    # The weights add up to 1, and a row of one channel is brighter by 1.
    np.testing.assert_allclose(grey, np.arange(256) % 250, atol=0.1)
