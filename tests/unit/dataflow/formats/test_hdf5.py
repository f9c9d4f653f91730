from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bit_flips import errors_of_flipped_bits
from scaling import scaled
from towerpack import ConfigError, FormatError
from towerpack.dataflow.formats import HDF5Data

h5py: Any = pytest.importorskip("h5py")

X = np.arange(600, dtype=np.float32).reshape(100, 3, 2)
WORDS = [f"ä{i}" for i in range(100)]
NAMES = ["x", "packed/x", "i", "packed/words", "ragged"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["x"] = X
        file.create_dataset("packed/x", data=X, chunks=(7, 3, 2), compression="gzip")
        file["i"] = np.arange(100)
        file.create_dataset("packed/words", data=WORDS, chunks=(7,), compression="gzip")
        file["true"] = np.arange(100) > 50
        ragged = file.create_dataset("ragged", 100, dtype=h5py.vlen_dtype(np.int16))
        for i in range(100):
            ragged[i] = np.arange(i % 4)
        file["short"] = np.zeros(5)
        file["scalar"] = 3.0
        file["empty"] = np.zeros((0, 2))
    return tmp_path / "data.h5"


def test_rows(path: Path) -> None:
    ds = HDF5Data(path, NAMES, shuffle=False)
    assert len(ds) == 100
    assert str(ds) == "HDF5Data(data.h5, x, packed/x, i, packed/words, ragged)"
    for i, (x, packed, index, word, ragged) in enumerate(ds):
        assert np.array_equal(x, X[i]) and np.array_equal(packed, X[i])
        assert (index, word) == (i, WORDS[i])
        assert ragged.tolist() == list(range(i % 4))
    assert type(next(iter(ds))) is list
    assert next(iter(HDF5Data(path, ["true"], shuffle=False)))[0].dtype == bool
    assert list(HDF5Data(path, ["empty"])) == []


def test_rows_in_any_order(path: Path) -> None:
    order = [7, 3, 4, 5, 3, 99, 0]
    found = HDF5Data(path, ["packed/x", "i", "packed/words"], shuffle=False).plan().read(order)
    np.testing.assert_equal(found, [[X[i], i, WORDS[i]] for i in order])
    found[1][0][:] = -1  # the same row, read twice, is two rows
    assert np.array_equal(found[4][0], X[3])


def test_wrong_arguments(path: Path) -> None:
    for names, told in (
        (["y"], "no data set 'y'"),
        (["packed"], "has no rows"),
        (["scalar"], "has no rows"),
        (["x", "short"], "x: 100, short: 5"),
        ([], "data_paths must name"),
    ):
        with pytest.raises(ConfigError, match=told):
            HDF5Data(path, names)


def test_data_in_other_files_are_refused(path: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(800))
    with h5py.File(tmp_path / "evil.h5", "w") as file:
        file["link"] = h5py.ExternalLink(str(path), "x")
        file["group"] = h5py.ExternalLink(str(path), "/")
        file.create_dataset("storage", 100, np.int64, external=[(str(tmp_path / "secret"), 0, 800)])
        layout = h5py.VirtualLayout((100,), np.int64)
        layout[:] = h5py.VirtualSource(str(path), "i", (100,))
        file.create_virtual_dataset("virtual", layout)
    for name in ("link", "group/x", "storage", "virtual"):
        with pytest.raises(FormatError, match="is stored in another file"):
            HDF5Data(tmp_path / "evil.h5", [name])
        assert len(HDF5Data(tmp_path / "evil.h5", [name], trusted=True)) == 100


def test_damaged_files(path: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.h5"
    with h5py.File(cut, "w") as file:
        file.create_dataset("x", (1 << 40,), np.float64, chunks=(1024,))
    with pytest.raises(FormatError, match="claims 8,796"):
        HDF5Data(cut, ["x"])
    content = path.read_bytes()
    for size in (0, len(content) // 2, len(content) - 1):
        cut.write_bytes(content[:size])
        with pytest.raises(FormatError, match=r"cut\.h5"):
            list(HDF5Data(cut, ["x", "packed/x"]))


@pytest.mark.parametrize("names", [["x", "short"], ["nothing"]])
def test_a_refused_file_is_closed(path: Path, names: list[str]) -> None:
    """HDF5 gives what is open to whoever opens the path again, whatever was written there."""
    with pytest.raises(ConfigError) as caught:
        HDF5Data(path, names)
    with h5py.File(path, "w") as file:
        file["x"] = -X
    assert np.array_equal(next(iter(HDF5Data(path, ["x"], shuffle=False)))[0], -X[0])
    assert caught.tb is not None  # the error lives: it is not its end that closes the file


def test_flipped_bits(path: Path, tmp_path: Path) -> None:
    part, names, count = tmp_path / "part.h5", ["x", "packed/x", "i"], scaled(2000)
    with h5py.File(path) as whole, h5py.File(part, "w") as copy:
        for name in names:
            whole.copy(name, copy, name)
    assert errors_of_flipped_bits(part, "HDF5Data", f", {names}", count=count) > count // 20
