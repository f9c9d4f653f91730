from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from towerpack import ConfigError, FormatError
from towerpack.dataflow import DataFromList, ShuffleData, _user_files
from towerpack.dataflow.formats import TarData, TarSerializer, TarWriter


def archive(path: Path, files: Mapping[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def samples(count: int, start: int = 0) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for i in range(start, start + count):
        files[f"d/{i:04d}.bin"] = bytes([i % 256]) * (i * 37 % 1500)
        files[f"d/{i:04d}.cls"] = str(i).encode()
    return files


def test_files_of_one_stem_are_one_datapoint(tmp_path: Path) -> None:
    files = {"a/7.jpg": b"J", "a/7.seg.png": b"P", "b.x/7.jpg": b"Q", "8.cls": b"3"}
    ds = TarData(archive(tmp_path / "t.tar", files))
    assert list(ds) == [
        {"__key__": "a/7", "jpg": b"J", "seg.png": b"P"},
        {"__key__": "b.x/7", "jpg": b"Q"},
        {"__key__": "8", "cls": b"3"},
    ]
    assert str(ds) == "TarData(t.tar)"


def test_what_is_no_sample_is_left_out_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "t.tar"
    with tarfile.open(path, "w") as tar:
        for name, kind in (("d", tarfile.DIRTYPE), ("l.jpg", tarfile.SYMTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
        for name in ("README", ".DS_Store", "d/._1.jpg", "d/1.jpg"):
            tar.addfile(tarfile.TarInfo(name))
    with caplog.at_level("INFO"):
        assert list(TarData(path)) == [{"__key__": "d/1", "jpg": b""}]
    assert "skipped 3 files" in caplog.text


def test_any_names(tmp_path: Path) -> None:
    name = b"caf\xe9.txt".decode("utf-8", "surrogateescape")
    files = {"a-long-directory/" * 20 + "ä" * 60 + ".txt": b"long", name: b"", "x.txt": b"p" * 600}
    ds = TarData(archive(tmp_path / "t.tar", files))
    assert {f"{dp['__key__']}.txt": dp["txt"] for dp in ds} == files


def signed(header: bytes, size: bytes) -> bytes:
    """A header with another size field, its checksum made to fit."""
    changed = bytearray(header)
    changed[124:136] = size
    changed[148:156] = b"%06o\0 " % (sum(changed) - sum(changed[148:156]) + 256)
    return bytes(changed)


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_several_archives(tmp_path: Path, mode: str) -> None:
    archive(tmp_path / "0.tar", samples(7), mode)
    archive(tmp_path / "1.tar", {})
    archive(tmp_path / "2.tar", samples(5, 7))
    ds = TarData(str(tmp_path / "?.tar"), decode=True)
    assert [dp["cls"] for dp in ds] == list(range(12))
    if mode == "w":
        assert len(ds) == 12
        assert [dp["cls"] for dp in ds.plan().read([11, 0, 7])] == [11, 0, 7]
        return
    with pytest.raises(TypeError, match="not known"):
        len(ds)
    with pytest.raises(ConfigError, match="random access"):
        ShuffleData(ds)


def test_contents_by_extension(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    arrays = {"npy": array, "t.npy": np.asfortranarray(array), "mask.npy": array > 2}
    datapoint = {"cls": 3, "json": {"a": [1]}, "txt": "ä", **arrays}
    with TarWriter(tmp_path / "t.tar") as writer:
        writer.write(datapoint)
        writer.write({**datapoint, "__key__": "x/y", "bin": b"\0"})
    first, second = TarData(tmp_path / "t.tar", decode=True)
    assert first.pop("__key__") == "00000000" and second["__key__"] == "x/y"
    assert second["bin"] == b"\0" and second["mask.npy"].dtype == bool
    np.testing.assert_equal(first, datapoint)
    first["npy"] += 1  # what is yielded is the reader's


def test_contents_that_are_not_what_they_are_called(tmp_path: Path) -> None:
    wrong = {"cls": b"x", "json": b"{", "txt": b"\xff", "npy": b"\x93NUMPY", "png": b""}
    for kind, content in wrong.items():
        path = archive(tmp_path / "t.tar", {f"1.{kind}": content})
        with pytest.raises(FormatError, match=rf"t\.tar: 1\.{kind}"):
            list(TarData(path, decode=True))


@pytest.mark.parametrize(("each", "count"), [(2, 2), (4, 1), (3, 2), (1, 4), (None, 1)])
def test_serializer(tmp_path: Path, each: int | None, count: int) -> None:
    value = {"a": np.int64(3), "b": [np.float32(0.5), np.bool_(True), np.str_("x")]}
    ds = DataFromList([{"__key__": f"k{i}", "cls": i, "json": value} for i in range(4)])
    written = TarSerializer.save(ds, tmp_path / "t%d.tar", datapoints_per_file=each)
    assert sorted(written) == sorted(tmp_path.iterdir()) and len(written) == count
    assert list(TarSerializer.load(tmp_path / "t*.tar")) == list(ds)
    shuffled = [dp["cls"] for dp in TarSerializer.load(tmp_path / "t*.tar", shuffle=True)]
    assert sorted(shuffled) == list(range(4))
    with pytest.raises(ConfigError, match="pattern"):
        TarSerializer.save(ds, tmp_path / "t.tar", datapoints_per_file=2)
    (empty,) = TarSerializer.save(DataFromList([]), tmp_path / "e%d.tar", datapoints_per_file=each)
    assert list(TarData(empty)) == []


def test_writer_leaves_nothing_half_written(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        with TarWriter(tmp_path / "t.tar") as writer:
            writer.write({"cls": 1})
            raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match="must be open"):
        TarWriter(tmp_path / "t.tar").write({"cls": 1})


ITSELF: list[Any] = []
ITSELF.append(ITSELF)


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ({"__key__": "a.b", "cls": 1}, "not be read back"),
        ({"__key__": "a", "x/y": b""}, "not be read back"),
        ({"__key__": None, "txt": "a"}, "not be read back"),
        ({"__key__": "\ud800", "txt": "a"}, "not be read back"),
        ({"__key__": "a"}, "at least one file"),
        ({"__key__": "last", "cls": 1}, "Two consecutive datapoints"),
        ({"cls": "three"}, "cannot be written as a .cls"),
        ({"jpg": np.zeros((2, 2, 3))}, "cannot be written as a .jpg"),
        ({"json": {"a": {1}}}, "dict cannot"),
        ({"json": ITSELF}, "list cannot"),
        ({"npy": np.array([None, {}], object)}, "ndarray cannot"),
        ({"txt": "\ud800"}, "str cannot"),
        ((1, 2), "dicts"),
    ],
)
def test_what_would_not_come_back_is_refused(tmp_path: Path, bad: Any, told: str) -> None:
    good = [{"txt": "0"}, {"txt": "1"}, {"__key__": "last", "txt": "2"}]
    with pytest.raises(ConfigError, match=told) as caught:
        TarSerializer.save(DataFromList([*good, bad]), tmp_path / "t.tar")
    assert "datapoint 3" in str(caught.value) and list(tmp_path.iterdir()) == []


@pytest.fixture
def whole(tmp_path: Path) -> bytes:
    return archive(tmp_path / "whole.tar", samples(3)).read_bytes()


def read(path: Path, data: bytes) -> list[Any]:
    path.write_bytes(data)
    return list(TarData(path))


def test_every_truncation(tmp_path: Path, whole: bytes) -> None:
    path, end = tmp_path / "t.tar", len(whole.rstrip(b"\0")) // 512 * 512 + 512 + 1024
    assert len(read(path, whole[:end])) == 3
    for size in (*range(0, end, 512), end - 1, 700, 5):
        with pytest.raises(FormatError, match=r"t\.tar"):
            read(path, whole[:size])
    with pytest.raises(FormatError, match="data follow it"):
        read(path, whole + whole)


def test_changed_while_it_is_read(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "t.tar"
    path.write_bytes(whole)
    ds = TarData(path)
    assert len(ds) == 3
    path.write_bytes(whole[:1000])
    with pytest.raises(FormatError, match=r"t\.tar was changed"):
        list(ds)
    path.write_bytes(whole)
    iterator = iter(TarData(path))
    next(iterator)
    os.truncate(path, 2100)
    with pytest.raises(FormatError, match=r"ends within 'd/0001\.cls'"):
        list(iterator)


def test_headers_that_cannot_be(tmp_path: Path, whole: bytes) -> None:
    path, sparse = tmp_path / "t.tar", tarfile.TarInfo("1.cls")
    for field in (b"77777777777\0", b"\x80" + b"\xff" * 11, b"-0000000001\0"):
        with pytest.raises(FormatError):
            read(path, signed(whole[:512], field) + bytes(1024))
    with pytest.raises(FormatError, match="twice"):
        read(path, 2 * sparse.tobuf() + bytes(1024))
    sparse.type = tarfile.GNUTYPE_SPARSE
    with pytest.raises(FormatError, match="sparse"):
        read(path, sparse.tobuf() + bytes(1024))


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz"])
def test_compressed_archives_cut_off(tmp_path: Path, mode: str) -> None:
    content = archive(tmp_path / "whole", samples(9), mode).read_bytes()
    for size in range(8, len(content), 37):
        with pytest.raises(FormatError, match=r"t\.tar"):
            read(tmp_path / "t.tar", content[:size])


def test_a_member_no_compression_can_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_user_files, "_ALWAYS_ALLOWED", 1 << 20)
    path = archive(tmp_path / "bomb.tar", {"1.bin": bytes(5_000_000)}, "w:bz2")
    with pytest.raises(FormatError, match=r"claims 5,000,000 bytes"):
        list(TarData(path))


def write_members(path: Path, names: list[str], mode: Any = "w") -> Path:
    with tarfile.open(path, mode) as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 1
            archive.addfile(info, io.BytesIO(b"1"))
    return path


@pytest.mark.parametrize("mode", ["w", "w:gz"])
@pytest.mark.parametrize(
    "names",
    [
        ["a.jpg", "b.jpg", "a.cls", "b.cls"],
        ["a.jpg", "a.cls", "b.jpg", "b.cls", "a.json"],
        ["a/1.jpg", "a/2.jpg", "a/1.seg.png"],
    ],
)
def test_files_of_a_stem_that_lie_apart_are_refused(
    tmp_path: Path, names: list[str], mode: str
) -> None:
    path = write_members(tmp_path / "a.tar", names, mode)
    with pytest.raises(FormatError, match="are not consecutive"):
        list(TarData(path))


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_stem_that_comes_again_with_all_of_its_files(tmp_path: Path, mode: str) -> None:
    path = write_members(tmp_path / "a.tar", ["a.jpg", "a.cls", "b.cls", "a.jpg", "a.cls"], mode)
    assert [dp["__key__"] for dp in TarData(path)] == ["a", "b", "a"]


def shards(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_fewer_shards_replace_all_of_the_older_ones(tmp_path: Path) -> None:
    pattern = tmp_path / "train-%03d.tar"
    rows = [{"cls": i} for i in range(9)]
    TarSerializer.save(DataFromList(rows), pattern, datapoints_per_file=2)
    (tmp_path / "train-other.tar").write_bytes(b"mine")
    saved = TarSerializer.save(DataFromList(rows), pattern, datapoints_per_file=4)
    assert shards(tmp_path) == [*(path.name for path in saved), "train-other.tar"]
    found = TarSerializer.load(tmp_path / "train-0*.tar")
    assert [dp["cls"] for dp in found] == list(range(9))


def test_a_writer_that_fails_leaves_older_shards_as_they_were(tmp_path: Path) -> None:
    pattern = tmp_path / "train-%d.tar"
    bad = DataFromList([{"cls": i} for i in range(5)] + [{"cls": "no number"}])
    with pytest.raises(ConfigError, match="cannot be written"):
        TarSerializer.save(bad, pattern, datapoints_per_file=2)
    assert shards(tmp_path) == []
    TarSerializer.save(DataFromList([{"cls": 7}] * 9), pattern, datapoints_per_file=2)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ConfigError, match="cannot be written"):
        TarSerializer.save(bad, pattern, datapoints_per_file=2)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
