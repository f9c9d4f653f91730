from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from towerpack import ConfigError, FormatError
from towerpack.dataflow import BatchData, ShuffleData, _user_files
from towerpack.dataflow.formats import NumpyData

X = np.arange(60, dtype=np.float32).reshape(10, 3, 2)
Y = np.arange(10)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_rows(tmp_path: Path, save: Any) -> None:
    path = tmp_path / "data.npz"
    save(path, x=np.asfortranarray(X), y=Y, none=np.zeros((0, 3)))
    ds = NumpyData(path, ["y", "x"])
    assert ds[3][0] == 3 and np.array_equal(ds[3][1], X[3]) and str(ds) == "NumpyData(data.npz)"
    for batch in BatchData(ShuffleData(ds), 5):
        assert np.array_equal(X[batch[0]], batch[1])
    assert list(NumpyData(path, ["none"])) == []
    # What is stored as it is stays in the file.
    assert all(isinstance(array.base, np.memmap) == (save is np.savez) for array in ds.arrays)
    pickled = cloudpickle.dumps(ds)
    assert all(array.tobytes() not in pickled for array in (X, X.T, Y))
    np.testing.assert_equal(list(cloudpickle.loads(pickled)), list(ds))
    with pytest.raises(ConfigError, match="no array 'z'"):
        NumpyData(path, ["z"])
    with pytest.raises(ConfigError, match="same number of rows"):
        NumpyData(path)


def test_npy_and_all_arrays_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=X, y=Y)
    assert list(next(iter(NumpyData(tmp_path / "data.npz")))) == ["x", "y"]
    np.save(tmp_path / "x.npy", X)
    (mapped,) = NumpyData(tmp_path / "x.npy").arrays
    assert isinstance(mapped.base, np.memmap) and np.array_equal(mapped, X)
    with pytest.raises(ConfigError, match="one unnamed array"):
        NumpyData(tmp_path / "x.npy", ["x"])


def test_dtypes(tmp_path: Path) -> None:
    record = np.zeros(3, [("a", "<i4"), ("ü", "S3", (2,))])
    arrays = [np.array(["a", "bcd", ""]), np.zeros(3, bool), np.zeros(3, ">f8"), record]
    for array in [*arrays, np.zeros(3, "datetime64[s]"), np.zeros(3, complex)]:
        np.savez_compressed(tmp_path / "a.npz", array)
        (found,) = NumpyData(tmp_path / "a.npz", ["arr_0"]).arrays
        assert found.dtype == array.dtype and np.array_equal(found, array)


class Bomb:
    def __reduce__(self) -> Any:
        return (print, ("unpickled",))


def test_objects_are_not_unpickled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    objects = np.array([Bomb(), None], object)
    np.savez(tmp_path / "o.npz", o=objects, x=X)
    np.save(tmp_path / "o.npy", objects)
    for name in ("o.npz", "o.npy"):
        with pytest.raises(FormatError, match="Python objects"):
            NumpyData(tmp_path / name)
    assert len(NumpyData(tmp_path / "o.npz", ["x"])) == 10
    assert capsys.readouterr().out == ""


def npy(header: str, content: bytes = b"") -> bytes:
    text = header.encode("latin1")
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + content


HEADERS = [
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
    "{'descr': 'S0', 'fortran_order': False, 'shape': (1000000000000,)}",
    "{'descr': ('<f4', (1000000000,)), 'fortran_order': False, 'shape': (1,)}",
    "__import__('os').system('true')",
    "(" * 5000,
    "-" * 9000 + "1",
]


@pytest.mark.parametrize("kind", [None, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_headers_that_lie(tmp_path: Path, kind: int | None) -> None:
    path = tmp_path / ("x.npy" if kind is None else "x.npz")
    for header in HEADERS:
        content = npy(header, bytes(8))
        if kind is None:
            path.write_bytes(content)
        else:
            with zipfile.ZipFile(path, "w", kind) as archive:
                archive.writestr("x.npy", content)
        with pytest.raises(FormatError, match=r"x\.np[yz]"):
            NumpyData(path)


def test_zip_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_user_files, "_ALWAYS_ALLOWED", 1 << 20)
    header = npy("{'descr': '|u1', 'fortran_order': False, 'shape': (5000000,)}")
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("x.npy", header + bytes(5_000_000))
    with pytest.raises(FormatError, match="claims 5,000"):
        NumpyData(tmp_path / "x.npz")


def test_checksums_of_compressed_arrays(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez_compressed(path, x=X)
    content = path.read_bytes()
    start = content.index(b"x.npy") + 55  # after name, extra field and a header of numbers
    for position in range(start, start + 100, 9):
        path.write_bytes(
            content[:position] + bytes([content[position] ^ 4]) + content[position + 1 :]
        )
        with pytest.raises(FormatError):
            NumpyData(path)
