from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import cloudpickle
import lmdb
import numpy as np
import pytest

from scaling import only_in_full
from towerpack import ConfigError, DataFlowError, FormatError
from towerpack.dataflow import DataFromList
from towerpack.dataflow.formats import LMDBData, LMDBDataDecoder, LMDBSerializer, _lmdb

Fill = Callable[[lmdb.Environment], None]


def database(path: Path, fill: Fill, **options: Any) -> Path:
    env = lmdb.open(str(path), subdir=False, map_size=1 << 28, lock=False, sync=False, **options)
    fill(env)
    env.close()
    return path


def put(env: lmdb.Environment, items: Iterable[tuple[bytes, bytes]]) -> None:
    with env.begin(write=True) as txn:
        for key, value in items:
            txn.put(key, value)


def numbered(count: int, nbytes: int = 20) -> Fill:
    return lambda env: put(env, ((b"%08d" % i, bytes([i % 256]) * nbytes) for i in range(count)))


def test_records(tmp_path: Path) -> None:
    expected = [[b"%d" % i * (i % 50 + 1), bytes(i)] for i in range(300)]
    # The predecessor's list of keys is no datapoint.
    path = database(tmp_path / "data.mdb", lambda env: put(env, [*expected, (b"__keys__", b"x")]))
    expected.sort()
    ds = LMDBData(path, shuffle=False)
    assert len(ds) == len(expected)
    assert list(ds) == list(LMDBData(tmp_path, shuffle=False)) == expected
    assert all(type(key) is bytes and type(value) is bytes for key, value in ds)
    shuffled = list(LMDBData(path))
    assert sorted(shuffled) == expected != shuffled
    keys = [key for key, _ in expected[::-3]]
    assert list(LMDBData(path, False, keys)) == expected[::-3]
    assert list(tmp_path.iterdir()) == [path]  # nothing is written, not even a lock
    assert list(LMDBData(database(tmp_path / "empty", lambda env: None))) == []


@only_in_full
def test_forked_workers_while_the_file_is_open_here(tmp_path: Path) -> None:
    path = database(tmp_path / "d", numbered(500))
    script = f"""
from towerpack.dataflow import BatchData, LMDBData, PrefetchData
ds = LMDBData({str(path)!r}, shuffle=False)
expected = [key for key, _ in ds]
for start in ("fork", "fresh"):
    workers = PrefetchData(BatchData(ds, 50), num_proc=2, backend="process", start=start)
    assert [key for batch in workers for key in batch[0]] == expected
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_keys(tmp_path: Path) -> None:
    path = database(tmp_path / "d", numbered(200))
    expected = list(LMDBData(path, False))
    for keys in ("%08d", "{:0>8d}", "{:08}", [f"{i:08}" for i in range(200)]):
        assert list(LMDBData(path, False, keys)) == expected
        assert LMDBData(path, False, keys).plan(seed=0).read([3, 1]) == [expected[3], expected[1]]
    for missing in (b"", b"!", b"5000", b"\xff"):
        with pytest.raises(ConfigError, match="has no record"):
            list(LMDBData(path, False, [missing]))
    for keys in ("", "x"):  # the same record again and again
        with pytest.raises(ConfigError, match="keys="):
            LMDBData(path, keys=keys)


def test_decoder(tmp_path: Path) -> None:
    path = database(tmp_path / "d", numbered(20))
    ds = LMDBDataDecoder(LMDBData(path, shuffle=False), lambda k, v: [int(k), len(v)])
    assert list(ds) == [[i, 20] for i in range(20)]

    def odd(key: bytes, value: bytes) -> int | None:
        return int(key) if int(key) % 2 else None

    found = sorted(LMDBDataDecoder(LMDBData(path), odd, on_error="skip"))
    assert found == list(range(1, 20, 2))


def test_files_that_are_no_databases(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "x"):
        with pytest.raises(ConfigError, match="There is no file"):
            LMDBData(path)
    content = database(tmp_path / "whole", numbered(300, 300)).read_bytes()
    bad = tmp_path / "bad"
    sizes = (0, 100, 4096, 9000, len(content) // 2, len(content) - 4096, len(content) - 1)
    for wrong in (*[content[:size] for size in sizes], random.Random(0).randbytes(9000)):
        bad.write_bytes(wrong)
        with pytest.raises(FormatError, match="bad cannot be read as an LMDB database"):
            LMDBData(bad)


def test_a_file_that_changes_is_an_error(tmp_path: Path) -> None:
    path = database(tmp_path / "d", numbered(1000))
    pickled = cloudpickle.dumps(LMDBData(path))
    database(path, lambda env: put(env, [(b"more", b"")]))
    with pytest.raises(FormatError, match="changed"):
        next(iter(cloudpickle.loads(pickled)))


def test_serializer(tmp_path: Path) -> None:
    path = tmp_path / "out.lmdb"
    rows = [[np.full((i % 7, 300), i), {"label": i, "name": f"ä{i}"}, None] for i in range(60)]
    LMDBSerializer.save(DataFromList(rows), path, write_frequency=7)
    assert sorted(tmp_path.iterdir()) == [path]
    np.testing.assert_equal(list(LMDBSerializer.load(path, shuffle=False)), rows)
    assert [key for key, _ in LMDBData(path, False)] == [b"%08d" % i for i in range(60)]
    (tmp_path / "directory").mkdir()
    LMDBSerializer.save(DataFromList([]), tmp_path / "directory")
    assert list(LMDBSerializer.load(tmp_path / "directory")) == []
    LMDBSerializer.save(DataFromList([5]), path)
    assert list(LMDBSerializer.load(path)) == [5]


def test_pickle_only_by_name(tmp_path: Path) -> None:
    path = tmp_path / "d"
    ds = DataFromList([({1, 2}, i) for i in range(3)])
    LMDBSerializer.save(DataFromList([1]), path)
    with pytest.raises(ConfigError, match=r"set cannot be packed(.|\n)*datapoint 0"):
        LMDBSerializer.save(ds, path)
    assert list(tmp_path.iterdir()) == [path]
    assert list(LMDBSerializer.load(path)) == [1]  # the older file
    with pytest.raises(ConfigError, match="got 'msgpack'"):
        LMDBSerializer.save(ds, path, format="msgpack")  # type: ignore[arg-type]
    LMDBSerializer.save(ds, path, format="pickle")
    assert list(LMDBSerializer.load(path, False, format="pickle")) == list(ds)
    with pytest.raises(DataFlowError, match="is pickled"):
        list(LMDBSerializer.load(path))


def test_records_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_lmdb, "_COMMIT_BYTES", 1 << 16)
    sizes = [i * 997 % 5000 for i in range(200)] + [1 << 20] + [2035] * 200 + [0] * 200
    for frequency in (7, 5000):
        ds = DataFromList([bytes([i % 256]) * size for i, size in enumerate(sizes)])
        LMDBSerializer.save(ds, tmp_path / "d", frequency)
        assert list(LMDBSerializer.load(tmp_path / "d", shuffle=False)) == list(ds)
