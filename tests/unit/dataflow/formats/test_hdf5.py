from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from bit_flips import errors_of_flipped_bits
from scaling import scaled
from towerpack import ConfigError, FormatError
from towerpack.dataflow import BatchData
from towerpack.dataflow.formats import HDF5Data, _hdf5_strings
from towerpack.dataflow.testing import check_flow

h5py: Any = pytest.importorskip("h5py")

X = np.arange(600, dtype=np.float32).reshape(100, 3, 2)
WORDS = [f"ä{i}" for i in range(100)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["x"] = X
        file.create_dataset("packed/x", data=X, chunks=(7, 3, 2), compression="gzip")
        file["i"] = np.arange(100)
        file["words"] = WORDS
        file.create_dataset("packed/words", data=WORDS, chunks=(7,), compression="gzip")
        file["true"] = np.arange(100) > 50
        ragged = file.create_dataset("ragged", 100, dtype=h5py.vlen_dtype(np.int16))
        for i in range(100):
            ragged[i] = np.arange(i % 4)
        file["short"] = np.zeros(5)
        file["scalar"] = 3.0
        file["empty"] = np.zeros((0, 2))
        file["references"] = np.array([file["x"].ref] * 100, h5py.ref_dtype)
    return tmp_path / "data.h5"


NAMES = ["x", "packed/x", "i", "words", "ragged"]


def test_rows(path: Path) -> None:
    ds = HDF5Data(path, NAMES, shuffle=False, trusted=True)
    assert len(ds) == 100
    assert str(ds) == "HDF5Data(data.h5, x, packed/x, i, words, ragged)"
    for i, (x, packed, index, word, ragged) in enumerate(ds):
        assert np.array_equal(x, X[i]) and np.array_equal(packed, X[i])
        assert (index, word) == (i, WORDS[i])
        assert ragged.tolist() == list(range(i % 4))
    assert type(next(iter(ds))) is list
    assert next(iter(HDF5Data(path, ["true"], shuffle=False)))[0].dtype == bool
    assert list(HDF5Data(path, ["empty"])) == []


def test_shuffled_batches(path: Path) -> None:
    seen: list[int] = []
    for x, packed, index, words, _ in BatchData(HDF5Data(path, NAMES, trusted=True), 25, pad=0):
        assert np.array_equal(X[index], x) and np.array_equal(x, packed)
        assert words.tolist() == [WORDS[i] for i in index]
        seen += index.tolist()
    assert sorted(seen) == list(range(100)) and seen != sorted(seen)


def test_laws(path: Path) -> None:
    check_flow(lambda: HDF5Data(path, NAMES, trusted=True))
    check_flow(lambda: BatchData(HDF5Data(path, "packed/x", shuffle=False), 8, remainder=True))


def test_any_positions(path: Path) -> None:
    plan = HDF5Data(path, ["packed/x", "i"], shuffle=False).plan()
    found = plan.read([7, 3, 4, 5, 3, 99, 0])
    assert [int(dp[1]) for dp in found] == [7, 3, 4, 5, 3, 99, 0]
    found[1][0][:] = -1  # the same row, read twice, is two rows
    assert np.array_equal(found[4][0], X[3])


def test_processes_and_threads(path: Path) -> None:
    ds = HDF5Data(path, NAMES, seed=1, trusted=True)
    first = list(ds.iterate(seed=0, epoch=0))
    program = """
import cloudpickle, sys
ds = cloudpickle.loads(bytes.fromhex(sys.argv[1]))
print([int(dp[2]) for dp in ds.iterate(seed=0, epoch=0)])
"""
    command = [sys.executable, "-c", program, cloudpickle.dumps(ds).hex()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"{[int(dp[2]) for dp in first]}\n"
    plan, results = ds.plan(seed=0), []
    threads = [
        threading.Thread(target=lambda: results.append(plan.read(range(100)))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        np.testing.assert_equal(result, first)


def test_wrong_arguments(path: Path, tmp_path: Path) -> None:
    for names, told in (
        (["y"], "no data set 'y'"),
        (["packed"], "has no rows"),
        (["scalar"], "has no rows"),
        (["x", "short"], "x: 100, short: 5"),
        (["references"], "references"),
        ([], "no data_paths"),
    ):
        with pytest.raises(ConfigError, match=told):
            HDF5Data(path, names)
    with pytest.raises(ConfigError, match="There is no file"):
        HDF5Data(tmp_path / "absent.h5", ["x"])


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
        with pytest.raises(FormatError, match="lies in another file"):
            HDF5Data(tmp_path / "evil.h5", [name])
        assert len(HDF5Data(tmp_path / "evil.h5", [name], trusted=True)) == 100


def strings(path: Path, **options: Any) -> Path:
    """A file with some data sets of strings."""
    text, long = h5py.string_dtype(), ["", "ö" * 100_000, "z"] * 5
    with h5py.File(path, "w", **options) as file:
        file["words"] = WORDS
        file.create_dataset("two", data=[["a", "b"], ["", "d"]], dtype=text)
        file.create_dataset("none", (5,), dtype=text)
        file.create_dataset("empty", (0,), dtype=text)
        file.create_dataset("long", data=long, dtype=text)
        file.create_dataset("ascii", data=["a", "bc"], dtype=h5py.string_dtype("ascii"))
        file.create_dataset("chunks", data=WORDS, chunks=(7,), maxshape=(None,))
        file.create_dataset("gzip", data=WORDS, chunks=(30,), compression="gzip", shuffle=True)
        file.create_dataset("rows", data=[["a", "b"]] * 9, dtype=text, chunks=(2, 2))
        some = file.create_dataset("some", (1000,), dtype=text, chunks=(10,))
        some[55] = "here"
    return path


@pytest.mark.parametrize("options", [{}, {"libver": "latest"}], ids=["usual", "latest"])
def test_strings_are_those_that_the_library_reads(tmp_path: Path, options: Any) -> None:
    path = strings(tmp_path / "strings.h5", **options)
    with h5py.File(path) as file:
        expected = {name: file[name].asstr()[:] for name in file}
    for name, rows in expected.items():
        for trusted in (False, True):
            ds = HDF5Data(path, [name], shuffle=False, trusted=trusted)
            np.testing.assert_equal([row for (row,) in ds], list(rows))
            assert all(type(text) is str for (row,) in ds for text in np.ravel(row).tolist())
        if len(rows):
            order = [i % len(rows) for i in (7, 3, 4, 5, 3, 0)]
            found = HDF5Data(path, [name], shuffle=False).plan().read(order)
            np.testing.assert_equal([row for (row,) in found], list(rows[order]))


def test_other_data_of_variable_length_need_trust(path: Path) -> None:
    with h5py.File(path, "a") as file:
        text = h5py.string_dtype()
        file.create_dataset("filled", (100,), dtype=text, fillvalue="x")
        file.create_dataset("other", data=WORDS, chunks=(7,), compression="lzf")
        file.create_dataset("columns", data=[["a", "b"]] * 9, dtype=text, chunks=(2, 1))
        file.create_dataset("mixed", (9,), np.dtype([("i", int), ("s", text)]))
    for name in ("ragged", "filled", "other", "columns", "mixed"):
        with pytest.raises(FormatError, match="variable length"):
            HDF5Data(path, [name])
    assert next(iter(HDF5Data(path, ["filled"], trusted=True))) == ["x"]
    with h5py.File(path.with_name("block.h5"), "w", userblock_size=512) as file:
        file["words"] = WORDS
    with pytest.raises(FormatError, match="variable length"):
        HDF5Data(path.with_name("block.h5"), ["words"])


def damaged(path: Path, of: bytes, to: bytes) -> Path:
    """The file with other bytes."""
    content = path.read_bytes()
    assert content.count(of) == 1
    path.write_bytes(content.replace(of, to))
    return path


def test_strings_that_cannot_be(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "words.h5", "w") as file:
        file["words"] = ["one", "other"]
        at = file["words"].id.get_offset()
    whole = (tmp_path / "words.h5").read_bytes()
    row = whole[at : at + 16]
    heap = whole.index(b"GCOL")
    object_1 = whole[heap + 16 : heap + 40]
    for of, to in (
        (row, b"\xff\xff\xff\xff" + row[4:]),  # longer than the file
        (row, b"\x02" + row[1:]),
        (row, row[:4] + b"\x01\x00\x00\x00\x00\x00\x00\x00" + row[12:]),
        (row, row[:4] + b"\x01" + b"\xff" * 7 + row[12:]),
        (row, row[:12] + b"\x09\x00\x00\x00"),
        (b"GCOL", b"GCOM"),
        (b"GCOL\x01", b"GCOL\x02"),
        (whole[heap : heap + 16], whole[heap : heap + 8] + b"\xff" * 8),
        (whole[heap : heap + 16], whole[heap : heap + 8] + (1 << 42).to_bytes(8, "little")),
        (object_1, object_1[:8] + b"\xff" * 8 + object_1[16:]),
        (object_1, b"\x02" + object_1[1:]),  # the number of the next one
        (b"other", b"oth\xff\xff"),
    ):
        (tmp_path / "words.h5").write_bytes(whole)
        with pytest.raises(FormatError, match=r"words\.h5"):
            list(HDF5Data(damaged(tmp_path / "words.h5", of, to), ["words"]))


def test_strings_of_one_number(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "words.h5", "w") as file:
        file["words"] = ["one", "two"]
    content = (tmp_path / "words.h5").read_bytes()
    second = content.index(b"GCOL") + 40
    assert content[second] == 2
    (tmp_path / "words.h5").write_bytes(content[:second] + b"\x01" + content[second + 1 :])
    with pytest.raises(FormatError, match="overlap"):
        HDF5Data(tmp_path / "words.h5", ["words"], shuffle=False).plan().read([0])


def test_no_more_is_kept_than_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(tmp_path / "words.h5", "w") as file:
        words = [f"{i}" * 100 for i in range(900)]
        file.create_dataset("words", data=words, chunks=(10,), compression="gzip")
    monkeypatch.setattr(_hdf5_strings, "_KEPT_CHUNK_BYTES", 3 * 160)
    monkeypatch.setattr(_hdf5_strings, "_KEPT_COLLECTIONS", 2)
    plan = HDF5Data(tmp_path / "words.h5", ["words"], shuffle=False).plan()
    for i in np.random.default_rng(0).integers(0, 900, 300).tolist():
        assert plan.read([i]) == [[words[i]]]
    (strings,) = plan.root._data.get()
    assert len(strings._elements._kept) == 3
    assert len(strings._heap._kept) == 2


def test_strings_that_many_rows_share(tmp_path: Path) -> None:
    """They would take more memory than the file has bytes."""
    path = tmp_path / "many.h5"
    with h5py.File(path, "w") as file:
        file["words"] = ["x" * 5000] * 2 + [""] * 200
        at = file["words"].id.get_offset()
    content = bytearray(path.read_bytes())
    content[at : at + 202 * 16] = content[at : at + 16] * 202  # all rows are the first one
    path.write_bytes(content)
    with pytest.raises(FormatError, match="larger than the file"):
        list(HDF5Data(path, ["words"]))


def test_sizes_that_cannot_be(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "big.h5", "w") as file:
        file.create_dataset("x", (1 << 40,), np.float64, chunks=(1024,))
    with pytest.raises(FormatError, match="claims 8,796"):
        HDF5Data(tmp_path / "big.h5", ["x"])


def test_garbage_and_truncation(path: Path, tmp_path: Path) -> None:
    content = path.read_bytes()
    for size in (0, 7, 100, 2000, len(content) // 2, len(content) - 1):
        (tmp_path / "cut.h5").write_bytes(content[:size])
        with pytest.raises(FormatError, match=r"cut\.h5"):
            list(HDF5Data(tmp_path / "cut.h5", ["x", "packed/x"]))
    (tmp_path / "cut.h5").write_bytes(b"not HDF5" * 100)
    with pytest.raises(FormatError, match=r"cut\.h5"):
        HDF5Data(tmp_path / "cut.h5", ["x"])


@pytest.mark.parametrize(
    ("names", "wrong_bytes"),
    [(["x", "short"], b""), (["nothing"], b""), (["ragged"], b""), (["packed/x"], b"HEAP")],
)
def test_a_refused_file_is_closed(path: Path, names: list[str], wrong_bytes: bytes) -> None:
    """HDF5 gives what is open to whoever opens the path again, whatever was written there."""
    content = path.read_bytes()
    if wrong_bytes:  # of the group "packed", which is read when the file is open
        content = content[:1000] + content[1000:].replace(wrong_bytes, bytes(len(wrong_bytes)))
        path.write_bytes(content)
    with pytest.raises((ConfigError, FormatError)) as caught:
        HDF5Data(path, names)
    with h5py.File(path, "w") as file:
        file["x"] = -X
    assert np.array_equal(next(iter(HDF5Data(path, ["x"], shuffle=False)))[0], -X[0])
    assert caught.tb is not None  # the error lives: it is not its end that closes the file


@pytest.mark.parametrize(
    ("names", "latest"),
    [
        (["x", "packed/x", "i"], False),
        (["words"], False),
        (["packed/words"], False),
        (["packed/words"], True),
    ],
)
def test_flipped_bits(path: Path, tmp_path: Path, names: list[str], latest: bool) -> None:
    """Strings have a file of their own, so that most wrong bits are in what is read."""
    with h5py.File(path) as whole:
        kinds = {"libver": "latest"} if latest else {}
        with h5py.File(tmp_path / "part.h5", "w", **kinds) as part:
            for name in names:
                whole.copy(name, part, name)
    count = scaled(2000)
    found = errors_of_flipped_bits(tmp_path / "part.h5", "HDF5Data", f", {names}", count=count)
    assert found > count // 20
