from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from towerpack import ConfigError, FormatError
from towerpack.dataflow import BatchData, ShuffleData
from towerpack.dataflow.formats import NumpyData

X = np.arange(60, dtype=np.float32).reshape(10, 3, 2)
Y = np.arange(10)


@pytest.fixture(params=["stored", "compressed"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    save = np.savez if request.param == "stored" else np.savez_compressed
    save(tmp_path / "data.npz", x=np.asfortranarray(X), y=Y, two=np.zeros(2), none=np.zeros((0, 3)))
    return tmp_path / "data.npz"


def test_rows(path: Path) -> None:
    ds = NumpyData(path, ["y", "x"])
    y, x = ds[3]
    assert y == 3 and np.array_equal(x, X[3])
    for batch in BatchData(ShuffleData(ds), 5):
        assert np.array_equal(X[batch[0]], batch[1])
    assert str(ds) == "NumpyData(data.npz)"
    assert list(NumpyData(path, ["none"])) == []


def test_stored_arrays_stay_in_the_file(path: Path, request: pytest.FixtureRequest) -> None:
    stored = request.node.name.endswith("[stored]")
    ds = NumpyData(path, ["x", "y"])
    assert all(isinstance(array.base, np.memmap) == stored for array in ds.arrays)
    pickled = cloudpickle.dumps(ds)
    assert all(array.tobytes() not in pickled for array in (X, X.T, Y))
    copy = cloudpickle.loads(pickled)
    np.testing.assert_equal(list(copy), list(ds))


def test_all_arrays_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=X, y=Y)
    datapoint = next(iter(NumpyData(tmp_path / "data.npz")))
    assert list(datapoint) == ["x", "y"]


def test_npy(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    ds = NumpyData(tmp_path / "x.npy")
    assert isinstance(ds.arrays[0].base, np.memmap) and np.array_equal(ds.arrays[0], X)
    assert np.array_equal(ds[1][0], X[1])
    with pytest.raises(ConfigError, match="one array without a name"):
        NumpyData(tmp_path / "x.npy", ["x"])


def test_dtypes(tmp_path: Path) -> None:
    record = np.zeros(3, [("a", "<i4"), ("ü", "S3", (2,))])
    arrays = [np.array(["a", "bcd", ""]), np.zeros(3, bool), np.zeros(3, ">f8"), record]
    arrays += [np.zeros(3, "datetime64[s]"), np.zeros(3, complex)]
    for i, array in enumerate(arrays):
        np.savez_compressed(tmp_path / f"{i}.npz", array)
        (found,) = NumpyData(tmp_path / f"{i}.npz", ["arr_0"]).arrays
        assert found.dtype == array.dtype and np.array_equal(found, array)


def test_wrong_arguments(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no array 'z'"):
        NumpyData(path, ["z"])
    with pytest.raises(ConfigError, match="differ in length"):
        NumpyData(path)
    with pytest.raises(ConfigError, match="There is no file"):
        NumpyData(tmp_path / "absent.npz")
    with pytest.raises(ConfigError, match="a directory"):
        NumpyData(tmp_path)


class Bomb:
    def __reduce__(self) -> Any:
        return (print, ("unpickled",))


def test_objects_are_not_unpickled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    objects = np.array([Bomb(), None], object)
    np.savez(tmp_path / "o.npz", o=objects, x=X)
    np.save(tmp_path / "o.npy", objects)
    for arguments in (("o.npz",), ("o.npz", ["o"]), ("o.npy",)):
        with pytest.raises(FormatError, match="Python objects"):
            NumpyData(tmp_path / arguments[0], *arguments[1:])
    assert len(NumpyData(tmp_path / "o.npz", ["x"])) == 10
    assert capsys.readouterr().out == ""


def npy(header: str, content: bytes = b"", version: int = 1) -> bytes:
    text = header.encode("latin1")
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + content


HEADERS = [
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (True,)}",
    "{'descr': '<f4', 'fortran_order': False, 'shape': 3}",
    "{'descr': '<f4', 'fortran_order': 0, 'shape': (0,)}",
    "{'descr': 'S0', 'fortran_order': False, 'shape': (1000000000000,)}",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,0)}",
    "{'descr': 'x', 'fortran_order': False, 'shape': (0,)}",
    "{'descr': ('<f4', (1000000000,)), 'fortran_order': False, 'shape': (1,)}",
    "{'shape': (0,)}",
    "[]",
    "",
    "__import__('os').system('true')",
    "(" * 5000,
    "-" * 9000 + "1",
]


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("container", ["npy", "npz", "compressed"])
def test_headers_that_lie(tmp_path: Path, header: str, container: str) -> None:
    content = npy(header, bytes(8))
    path = tmp_path / f"x.{container}"
    if container == "npy":
        path.write_bytes(content)
    else:
        kind = zipfile.ZIP_STORED if container == "npz" else zipfile.ZIP_DEFLATED
        with zipfile.ZipFile(path, "w", kind) as archive:
            archive.writestr("x.npy", content)
    with pytest.raises(FormatError, match=rf"x\.{container}"):
        NumpyData(path)


def test_zip_bomb(tmp_path: Path) -> None:
    header = npy("{'descr': '|u1', 'fortran_order': False, 'shape': (100000000,)}")
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("x.npy", header + bytes(100_000_000))
    with pytest.raises(FormatError, match="claims 100,0"):
        NumpyData(tmp_path / "x.npz")


def test_checksums_of_compressed_arrays(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", x=X)
    content = (tmp_path / "x.npz").read_bytes()
    start = content.index(b"x.npy") + 5 + 20  # name, extra field
    damaged = 0
    for position in range(start + 30, start + 130):
        flipped = bytearray(content)
        flipped[position] ^= 4
        (tmp_path / "x.npz").write_bytes(flipped)
        try:
            NumpyData(tmp_path / "x.npz")
        except FormatError:
            damaged += 1
    assert damaged == 100
