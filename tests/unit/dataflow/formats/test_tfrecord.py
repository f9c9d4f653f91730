from __future__ import annotations

import gzip
import itertools
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from towerpack import ConfigError, DataFlowError, FormatError
from towerpack.dataflow import DataFromList, ShuffleData
from towerpack.dataflow.formats import (
    FixedFeature,
    TFRecordData,
    TFRecordSerializer,
    TFRecordWriter,
    VariableFeature,
    encode_example,
)
from towerpack.dataflow.formats import _indexed_files as file_pool
from towerpack.dataflow.formats._tfrecord_format import masked_crc

# Sizes that end in, at and beyond the windows in which a file is indexed.
RECORDS = [bytes([i % 256]) * size for i, size in enumerate([0, 1, 7, 300, 1 << 15, 1 << 18, 5, 0])]
COMPRESSIONS: list[Any] = [None, "gzip", "zlib"]


def written(path: Path, records: list[bytes], compression: Any = None) -> Path:
    with TFRecordWriter(path, compression=compression) as writer:
        for record in records:
            writer.write(record)
    return path


def small(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % i * (i * 7 % 30) for i in range(start, start + count)]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_records_of_several_files(tmp_path: Path, compression: Any) -> None:
    written(tmp_path / "0", small(7))
    written(tmp_path / "1", [], compression)
    written(tmp_path / "2", RECORDS, compression)
    assert len(list(tmp_path.iterdir())) == 3
    ds = TFRecordData(str(tmp_path / "?"))
    expected = [[record] for record in [*small(7), *RECORDS]]
    assert list(ds) == expected and str(ds) == "TFRecordData(0 and 2 more)"
    if compression is None:
        assert len(ds) == 15
        assert ds.plan(seed=0).read([12, 0, 7]) == [expected[i] for i in (12, 0, 7)]
        return
    with pytest.raises(TypeError, match="not known"):
        len(ds)
    with pytest.raises(ConfigError, match="random access"):
        ShuffleData(ds)


def test_no_records_and_no_files(tmp_path: Path) -> None:
    assert len(TFRecordData([written(tmp_path / "t", []), tmp_path / "t"])) == 0
    for length in (0x9C78, 0x8B1F):  # the file begins like a compressed one
        assert list(TFRecordData(written(tmp_path / "t", [bytes(length)]))) == [[bytes(length)]]
    for paths in (tmp_path / "x", str(tmp_path / "*.x"), [], [tmp_path]):
        with pytest.raises(ConfigError, match=r"There (is|are) no file|is a directory"):
            TFRecordData(paths)


def test_many_files_do_not_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_pool, "_MOST_OPEN", 3)
    for i in range(20):
        written(tmp_path / f"{i:02}", small(3, 3 * i))
    ds = TFRecordData(str(tmp_path / "*"))
    before = len(os.listdir("/proc/self/fd"))
    assert sorted(ShuffleData(ds)) == sorted([record] for record in small(60))
    assert len(os.listdir("/proc/self/fd")) <= before + 3


def test_indexes_can_be_kept(tmp_path: Path) -> None:
    path = written(tmp_path / "t", small(50))
    kept = tmp_path / "index"
    kept.mkdir()

    def lengths() -> list[int]:
        return [len(record) for (record,) in TFRecordData(path, index_dir=kept)]

    expected = list(map(len, small(50)))
    assert lengths() == expected
    (index,) = kept.iterdir()
    whole = index.read_bytes()
    # It is used: a file of the same size and time whose lengths are damaged is not walked again.
    content, times = path.read_bytes(), os.stat(path)
    path.write_bytes(content[:-20] + b"\xff" * 20)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert len(TFRecordData(path, index_dir=kept)) == 50
    with pytest.raises(FormatError, match="damaged record"):
        lengths()
    path.write_bytes(content)
    # Damaged, or of another file, it is made anew.
    for wrong in (whole[:-8], whole[:-8] + bytes(8), whole[:200] + bytes(len(whole) - 200)):
        index.write_bytes(wrong)
        assert lengths() == expected
    written(path, small(9))
    assert lengths() == expected[:9]
    assert list(kept.iterdir()) == [index]


def test_a_file_that_changes_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path / "t", small(5))
    ds = TFRecordData(path)
    assert len(ds) == 5
    written(path, small(9))
    with pytest.raises(FormatError, match="changed"):
        list(ds)
    written(path, [bytes(100)] * 5)
    ds = TFRecordData(path)
    next(iter(ds))
    os.truncate(path, 150)
    with pytest.raises(FormatError, match="its length has changed"):
        list(ds)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_flipped_bit_and_cut_is_found(tmp_path: Path, compression: Any) -> None:
    path = written(tmp_path / "bad", small(6), compression)
    ends = {0, *itertools.accumulate(len(record) + 16 for record in small(6))}
    content = path.read_bytes()
    for at in range(len(content)):
        flipped = bytearray(content)
        flipped[at] ^= 1 << at % 8
        path.write_bytes(flipped)
        try:
            # gzip's header holds a time and flags, zlib's a level, that change nothing.
            assert list(TFRecordData(path)) == [[record] for record in small(6)] and compression
        except FormatError as error:
            assert "bad" in str(error)
        path.write_bytes(content[:at])
        if at == 0 or (compression is None and at in ends):
            assert len(list(TFRecordData(path))) < 6  # the format does not say where it ends
            continue
        with pytest.raises(FormatError):
            list(TFRecordData(path))


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zlib.compress])
def test_claims_are_not_believed(tmp_path: Path, pack: Any) -> None:
    length = struct.pack("<Q", 1 << 40)
    (tmp_path / "t").write_bytes(pack(length + struct.pack("<I", masked_crc(length)) + b"x" * 50))
    with pytest.raises(FormatError, match=r"cut off|claims"):
        list(TFRecordData(tmp_path / "t"))


FEATURES = {
    "id": FixedFeature((), np.int32),
    "box": FixedFeature((2, 2), np.float32),
    "name": VariableFeature(str),
}


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_examples(tmp_path: Path, compression: Any) -> None:
    names = [np.array(["ä"] * i, object) for i in range(4)]
    boxes = [np.full((2, 2), i, np.float32) for i in range(4)]
    datapoints = [{"id": i, "box": boxes[i], "name": names[i]} for i in range(4)]
    records = list(map(encode_example, datapoints))
    path = written(tmp_path / "t", records, compression)
    found = list(TFRecordData(path, FEATURES))
    np.testing.assert_equal(found, datapoints)
    assert list(found[0]) == list(FEATURES) and found[0]["id"].dtype == np.int32
    written(path, [*records, encode_example({"id": 1})], compression)
    with pytest.raises(FormatError, match=r"'box' of .* does not match features=: it has 0 values"):
        list(TFRecordData(path, FEATURES))


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_serializer(tmp_path: Path, compression: Any) -> None:
    ds = DataFromList([[np.arange(i, dtype=np.int16), {"a": (i, None)}] for i in range(7)])
    for name in "ab":
        TFRecordSerializer.save(ds, tmp_path / name, compression=compression)
    np.testing.assert_equal(list(TFRecordSerializer.load(tmp_path / "a")), list(ds))
    assert len(TFRecordSerializer.load(tmp_path / "a", 5)) == 5
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_serializer_of_examples_and_pickles(tmp_path: Path) -> None:
    path = tmp_path / "t"
    ds = DataFromList([{"x": np.arange(i, i + 3), "s": [b"a", b"b"]} for i in range(5)])
    TFRecordSerializer.save(ds, path, format="example")
    np.testing.assert_equal(list(TFRecordSerializer.load(path, format="example")), list(ds))
    features = {"x": FixedFeature((3,), np.uint8)}
    found = list(TFRecordSerializer.load(path, format="example", features=features))
    assert [dp["x"].tolist() for dp in found] == [dp["x"].tolist() for dp in ds]
    for arguments, told in (
        ({"format": "x"}, "wire or example or pickle"),
        ({"format": "wire", "features": features}, 'format="example"'),
        ({"format": "example", "features": {"x": int}}, "must be a dict"),
    ):
        with pytest.raises(ConfigError, match=told):
            TFRecordSerializer.load(path, **arguments)
    with pytest.raises(ConfigError, match=r"must be a dict of features(.|\n)*datapoint 0"):
        TFRecordSerializer.save(DataFromList([[1]]), path, format="example")
    TFRecordSerializer.save(DataFromList([{1, 2}]), path, format="pickle")
    assert list(TFRecordSerializer.load(path, format="pickle")) == [{1, 2}]
    with pytest.raises(DataFlowError, match="is pickled"):
        list(TFRecordSerializer.load(path))


def test_writer_that_fails_leaves_the_older_file(tmp_path: Path) -> None:
    path = written(tmp_path / "t", [b"old"])
    for compression in COMPRESSIONS:
        with pytest.raises(KeyError), TFRecordWriter(path, compression=compression) as writer:
            writer.write(b"new")
            raise KeyError
    assert list(tmp_path.iterdir()) == [path] and list(TFRecordData(path)) == [[b"old"]]
    with TFRecordWriter(path) as writer:
        writer.write(memoryview(np.arange(3, dtype="<i2")))
        with pytest.raises(TypeError, match="bytes-like"):
            writer.write("text")  # type: ignore[arg-type]
    assert list(TFRecordData(path)) == [[b"\0\0\1\0\2\0"]]
    with pytest.raises(ConfigError, match="must be open"):
        TFRecordWriter(path).write(b"")
    with pytest.raises(ConfigError, match="got 'lz4'"):
        TFRecordWriter(path, compression="lz4")  # type: ignore[arg-type]
