from __future__ import annotations

import contextlib
import os
import random
import resource
import struct
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import lmdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling import scaled
from towerpack import ConfigError, DataFlowError, FormatError
from towerpack.dataflow import DataFromList, MapData
from towerpack.dataflow.formats import (
    LMDBData,
    LMDBDataDecoder,
    LMDBSerializer,
    _lmdb_writer,
)
from towerpack.dataflow.formats._lmdb_file import LMDBFile
from towerpack.dataflow.testing import check_flow

PAGE = 4096
Fill = Callable[[lmdb.Environment], None]


def database(path: Path, fill: Fill, **options: Any) -> Path:
    env = lmdb.open(str(path), subdir=False, map_size=1 << 28, lock=False, sync=False, **options)
    fill(env)
    env.close()
    return path


def put(env: lmdb.Environment, items: Any) -> None:
    with env.begin(write=True) as txn:
        for key, value in items:
            txn.put(key, value)


def numbered(count: int, nbytes: int = 20) -> Fill:
    return lambda env: put(env, ((b"%08d" % i, bytes([i % 256]) * nbytes) for i in range(count)))


def several(env: lmdb.Environment) -> None:
    """Changes in many transactions, so that pages are freed, reused and out of order."""
    rng = random.Random(5)
    for _ in range(30):
        with env.begin(write=True) as txn:
            for _ in range(40):
                key = b"%d" % rng.randrange(600)
                if rng.random() < 0.3:
                    txn.delete(key)
                else:
                    txn.put(key, rng.randbytes(rng.choice([0, 1, 100, 1900, 2100, 9000])))


SCATTERED = [(b"%05d" % i, b"v" * (i % 700)) for i in range(3000)]

KINDS: dict[str, Fill] = {
    "empty": lambda env: put(env, []),
    "one": lambda env: put(env, [(b"k", b"")]),
    "small": numbered(3000),
    "large": numbered(40, 30_000),
    "mixed": lambda env: put(env, ((b"%05d" % i, b"v" * (i * 53 % 9000)) for i in range(400))),
    "keys": lambda env: put(env, ((b"%03d" % i * 170, b"%d" % i) for i in range(300))),
    "changed": several,
    "shuffled": lambda env: put(env, random.Random(1).sample(list(SCATTERED), len(SCATTERED))),
}


@pytest.fixture(params=KINDS, scope="module")
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return database(tmp_path_factory.mktemp("lmdb") / "data.mdb", KINDS[request.param])


def by_library(path: Path) -> list[list[bytes]]:
    env = lmdb.open(str(path), subdir=False, readonly=True, lock=False)
    with env.begin() as txn:
        items = [[bytes(key), bytes(value)] for key, value in txn.cursor()]
    env.close()
    return items


def test_records_are_those_that_the_library_reads(kind: Path) -> None:
    expected = by_library(kind)
    ds = LMDBData(kind, shuffle=False)
    assert len(ds) == len(expected)
    assert list(ds) == expected
    assert list(LMDBData(kind.parent, shuffle=False)) == expected
    shuffled = LMDBData(kind)
    assert sorted(shuffled) == expected
    if len(expected) > 9:
        assert list(shuffled) != expected
        keys = [key for key, _ in expected[::-3]]
        assert list(LMDBData(kind, False, keys)) == expected[::-3]
        plan = ds.plan(seed=1)
        assert plan.read([5, 0, len(ds) - 1, 5]) == [expected[i] for i in (5, 0, -1, 5)]


def test_laws(kind: Path) -> None:
    check_flow(lambda: LMDBData(kind, shuffle=False), limit=50, epochs=1)
    check_flow(lambda: LMDBData(kind, shuffle=True), limit=50)


def test_the_library_is_not_needed_and_nothing_is_written(tmp_path: Path) -> None:
    kind = database(tmp_path / "d", several)
    before = sorted(kind.parent.iterdir())
    script = (
        "import sys; sys.modules['lmdb'] = None\n"
        "from towerpack.dataflow.formats import LMDBData\n"
        f"print(len(list(LMDBData({str(kind)!r}))))"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.stdout.split() == [str(len(by_library(kind)))], found.stderr
    assert sorted(kind.parent.iterdir()) == before


def test_many_readers_of_one_file(kind: Path) -> None:
    flows = [LMDBData(kind, shuffle=False) for _ in range(2)]
    expected = by_library(kind)
    found: list[list[Any]] = [[] for _ in range(4)]

    def read(index: int) -> None:
        order = list(range(len(expected)))
        random.Random(index).shuffle(order)
        found[index] = [flows[index % 2].plan(seed=0).get(i) == expected[i] for i in order]

    threads = [threading.Thread(target=read, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(len(one) == len(expected) and all(one) for one in found)
    copy = cloudpickle.loads(cloudpickle.dumps(flows[0]))
    assert list(copy) == expected


@pytest.mark.parametrize("others", [[b"a"], [b"~"], [b"a", b"~"], [b"__aa", b"__zz"]])
def test_the_predecessors_list_of_keys_is_no_datapoint(tmp_path: Path, others: list[bytes]) -> None:
    def fill(env: lmdb.Environment) -> None:
        put(env, [(b"__keys__", b"x" * 9000), *((key, b"o") for key in others)])
        numbered(500)(env)

    path = database(tmp_path / "d", fill)
    expected = [item for item in by_library(path) if item[0] != b"__keys__"]
    ds = LMDBData(path, shuffle=False)
    assert list(ds) == expected
    assert ds.plan(seed=0).read(np.arange(len(ds))) == expected
    check_flow(lambda: LMDBData(path), epochs=1, limit=20)


@pytest.mark.parametrize("keys", ["%08d", "{:0>8d}", "{:08}", [f"{i:08}" for i in range(500)]])
def test_keys(tmp_path: Path, keys: Any) -> None:
    path = database(tmp_path / "d", numbered(500))
    expected = by_library(path)
    assert list(LMDBData(path, False, keys)) == expected
    assert LMDBData(path, False, keys).plan(seed=0).read([3, 1]) == [expected[3], expected[1]]
    check_flow(lambda: LMDBData(path, True, keys), epochs=1, limit=20)
    # Where keys are not the numbers of the records, they are searched.
    database(path, lambda env: put(env, [(b"!", b"first")]))
    assert LMDBData(path, False, keys).plan(seed=0).read(range(500)) == expected


def test_keys_that_are_not_there(tmp_path: Path) -> None:
    path = database(tmp_path / "d", lambda env: put(env, ((b"%d" % i, b"") for i in range(500))))
    assert list(LMDBData(path, False, "%d"))[10] == [b"10", b""]
    for missing in (b"", b"!", b"5000", b"~", b"\xff"):
        with pytest.raises(ConfigError, match="has no record"):
            list(LMDBData(path, False, [missing]))
    with pytest.raises(ConfigError, match="has no record"):
        list(LMDBData(database(tmp_path / "e", KINDS["empty"]), False, ["k"]))
    assert list(LMDBData(path, False, ["7", b"7", "12"])) == [[k, b""] for k in (b"7", b"7", b"12")]
    for pattern in ("", "x", "%s%s", "{", "{a}", "%q", "{.x}"):
        with pytest.raises(ConfigError, match="no format"):
            LMDBData(path, False, pattern)


def test_memory_does_not_grow_with_the_records(tmp_path: Path) -> None:
    count = scaled(200_000)
    path = database(tmp_path / "d", numbered(count, 100))
    tracemalloc.start()
    ds = LMDBData(path)
    found = sum(1 for _ in ds)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == count and peak < 2_000_000 + count
    assert len(cloudpickle.dumps(ds)) < 3000 + count


def test_decoder(tmp_path: Path) -> None:
    path = database(tmp_path / "d", numbered(20))
    ds = LMDBDataDecoder(LMDBData(path, shuffle=False), lambda k, v: [int(k), len(v)])
    assert list(ds) == [[i, 20] for i in range(20)]
    check_flow(lambda: LMDBDataDecoder(LMDBData(path), lambda k, v: (k, v)), epochs=1)

    def odd(key: bytes, value: bytes) -> list[int] | None:
        return [int(key)] if int(key) % 2 else None

    with pytest.raises(DataFlowError, match="returned None"):
        list(LMDBDataDecoder(LMDBData(path), odd))
    assert sorted(LMDBDataDecoder(LMDBData(path), odd, on_error="skip")) == [
        [i] for i in range(1, 20, 2)
    ]


def read_all(path: Path) -> None:
    ds = LMDBData(path, shuffle=False)
    assert all(type(key) is bytes and type(value) is bytes for key, value in ds)
    LMDBData(path, False, ["00000007", "3"]).plan(seed=0).read([0])


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def fill(env: lmdb.Environment) -> None:
        numbered(300, 300)(env)
        put(env, [(b"large", b"L" * 9000)])

    return database(tmp_path_factory.mktemp("lmdb") / "d", fill)


@settings(max_examples=max(60, scaled(2000)), deadline=None)
@given(st.data())
def test_damaged_files(small: Path, tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    content = bytearray(small.read_bytes())
    path = tmp_path_factory.getbasetemp() / "damaged"
    for _ in range(data.draw(st.integers(1, 3))):
        page = data.draw(st.integers(0, len(content) // PAGE - 1))
        # Headers, offsets, and the nodes at the end of pages: the rest is keys and values.
        at = data.draw(st.one_of(st.integers(0, 200), st.integers(PAGE - 320, PAGE - 1)))
        content[page * PAGE + at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    tracemalloc.start()
    with contextlib.suppress(FormatError, ConfigError):
        read_all(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 24


@given(cut=st.integers(0, 1 << 20))
def test_truncated_files(small: Path, tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    content = small.read_bytes()
    path = tmp_path_factory.getbasetemp() / "truncated"
    path.write_bytes(content[: cut % len(content)])
    try:
        found = list(LMDBData(path, shuffle=False))
    except FormatError:
        return
    assert found == by_library(small)  # the end of the last page, or free pages, were missing


@given(st.binary(max_size=300))
def test_random_files(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "random"
    path.write_bytes(content * 40)
    with pytest.raises(FormatError):
        read_all(path)


META = 16  # where a meta page's content begins


def patched(path: Path, offset: int, form: str, value: int) -> Path:
    """Both meta pages changed alike."""
    content = bytearray(path.read_bytes())
    for page in (0, 1):
        struct.pack_into(form, content, page * PAGE + META + offset, value)
    other = path.with_name("patched")
    other.write_bytes(content)
    return other


@pytest.mark.parametrize(
    ("offset", "form", "value", "message"),
    [
        (0, "<I", 0xDEC0EFBE, "little-endian"),
        (4, "<I", 2, r"version 2(.|\n)*mdb_load"),
        (24, "<I", 0, "pages of 0 bytes"),
        (24, "<I", 5000, "pages of 5000 bytes"),
        (24, "<I", 1 << 30, "pages of"),
        (78, "<H", 0, "depth 0"),
        (78, "<H", 60000, "depth 60000"),
        (78, "<H", 1, "another"),
        (104, "<Q", 299, "301 entries"),
        (104, "<Q", 1 << 63, "301 entries"),
        (112, "<Q", 1 << 50, "missing"),
        (112, "<Q", 1 << 63, "missing"),
        (112, "<Q", (1 << 64) - 1, "depth"),
        (112, "<Q", 0, "another"),
        (76, "<H", 4, "several values"),
    ],
)
def test_impossible_headers(small: Path, offset: int, form: str, value: int, message: str) -> None:
    with pytest.raises((FormatError, ConfigError), match=message):
        read_all(patched(small, offset, form, value))


def test_a_tree_that_holds_itself(small: Path, tmp_path: Path) -> None:
    content = bytearray(small.read_bytes())
    root = LMDBFile(small).tree.root
    branch = root * PAGE
    (end,) = struct.unpack_from("<H", content, branch + 12)
    offsets = struct.unpack_from(f"<{(end - 16) // 2}H", content, branch + 16)
    for offset in offsets:  # each child is the root
        struct.pack_into("<HHH", content, branch + offset, root & 0xFFFF, root >> 16, 0)
    for page in (0, 1):
        struct.pack_into("<H", content, page * PAGE + META + 78, 32)
    path = tmp_path / "d"
    path.write_bytes(content)
    with pytest.raises(FormatError, match="no tree"):
        LMDBData(path)


def test_claims_are_not_believed(small: Path, tmp_path: Path) -> None:
    content = bytearray(small.read_bytes())
    node = content.rindex(b"large") - 8
    assert struct.unpack_from("<HHHH", content, node) == (9000, 0, 1, 5)
    struct.pack_into("<HH", content, node, 0xFFFF, 0xFFFF)
    (tmp_path / "d").write_bytes(content)
    tracemalloc.start()
    with pytest.raises(FormatError, match="a value of 4,294,967,295 bytes"):
        list(LMDBData(tmp_path / "d"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 24


def test_what_is_not_supported(tmp_path: Path) -> None:
    def named(env: lmdb.Environment) -> None:
        with env.begin(write=True, db=env.open_db(b"inner")) as txn:
            txn.put(b"k", b"v")

    path = database(tmp_path / "named", named, max_dbs=2)
    with pytest.raises(ConfigError, match="named databases"):
        list(LMDBData(path))

    path = patched(database(tmp_path / "integers", numbered(300)), 76, "<H", 8)
    assert list(LMDBData(path, False)) == by_library(tmp_path / "integers")
    with pytest.raises(ConfigError, match="rule of its own"):
        LMDBData(path, keys="%08d")


def test_a_file_that_changes_is_an_error(tmp_path: Path) -> None:
    path = database(tmp_path / "d", numbered(1000))
    ds = cloudpickle.loads(cloudpickle.dumps(LMDBData(path)))
    database(path, lambda env: put(env, [(b"more", b"")]))
    with pytest.raises(FormatError, match="changed"):
        next(iter(ds))
    (tmp_path / "e").write_bytes(path.read_bytes())
    ds = LMDBData(tmp_path / "e", shuffle=False)
    next(iter(ds))
    with open(tmp_path / "e", "r+b") as file:
        file.truncate(3 * PAGE)
    with pytest.raises(FormatError, match="missing"):
        list(ds)


def test_no_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "x"):
        with pytest.raises(ConfigError, match="There is no file"):
            LMDBData(path)


DATAPOINTS = [
    [np.full((i % 7, 300), i, np.float32), {"label": i, "name": f"ä{i}"}, None] for i in range(60)
]


def test_serializer(tmp_path: Path) -> None:
    path = tmp_path / "out.lmdb"
    LMDBSerializer.save(DataFromList(DATAPOINTS), path, write_frequency=7)
    assert sorted(tmp_path.iterdir()) == [path]
    np.testing.assert_equal(list(LMDBSerializer.load(path, shuffle=False)), DATAPOINTS)
    assert [key for key, _ in LMDBData(path, False)] == [b"%08d" % i for i in range(60)]
    check_flow(lambda: LMDBSerializer.load(path), limit=70)
    first = next(iter(LMDBSerializer.load(path)))
    first[0] += 1  # what is yielded is the reader's
    (tmp_path / "directory").mkdir()
    LMDBSerializer.save(DataFromList([]), tmp_path / "directory")
    assert list(LMDBSerializer.load(tmp_path / "directory")) == []
    LMDBSerializer.save(DataFromList([5]), path)
    assert list(LMDBSerializer.load(path)) == [5]


def test_pickle_only_by_name(tmp_path: Path) -> None:
    path = tmp_path / "d"
    ds = DataFromList([({1, 2}, i) for i in range(3)])
    with pytest.raises(ConfigError, match=r"set cannot be packed(.|\n)*datapoint 0"):
        LMDBSerializer.save(ds, path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match="no format='msgpack'"):
        LMDBSerializer.save(ds, path, format="msgpack")  # type: ignore[arg-type]
    LMDBSerializer.save(ds, path, format="pickle")
    assert list(LMDBSerializer.load(path, False, format="pickle")) == list(ds)
    with pytest.raises(DataFlowError, match="is a pickle"):
        list(LMDBSerializer.load(path))


def test_maps_grow_with_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_lmdb_writer, "_FIRST_MAP_BYTES", 1 << 17)
    monkeypatch.setattr(_lmdb_writer, "_COMMIT_BYTES", 1 << 16)
    sizes = [i * 997 % 5000 for i in range(500)] + [1 << 20] + [2035] * 500 + [0] * 500
    for frequency in (1, 5000):
        ds = DataFromList([bytes([i % 256]) * size for i, size in enumerate(sizes)])
        LMDBSerializer.save(ds, tmp_path / "d", frequency)
        assert list(LMDBSerializer.load(tmp_path / "d", shuffle=False)) == list(ds)


def test_a_save_that_fails_leaves_the_older_file(tmp_path: Path) -> None:
    path = tmp_path / "d"
    LMDBSerializer.save(DataFromList([1, 2]), path)

    def broken(datapoint: int) -> int:
        if datapoint == 50:
            raise KeyError("gone")
        return datapoint

    with pytest.raises(DataFlowError, match="gone"):
        LMDBSerializer.save(MapData(DataFromList(list(range(100))), broken), path)
    assert list(tmp_path.iterdir()) == [path]
    assert list(LMDBSerializer.load(path, False)) == [1, 2]


def test_anything_that_iterates_can_be_saved(tmp_path: Path) -> None:
    def generate() -> Iterator[Any]:
        yield from (1, 2.5)

    LMDBSerializer.save(generate(), tmp_path / "d")  # type: ignore[arg-type]
    assert sorted(LMDBSerializer.load(tmp_path / "d")) == [1, 2.5]


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    path = tmp_path / "d"
    LMDBSerializer.save(DataFromList([1, 2]), path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for rows, frequency in ((400, 5000), (4000, 5)):
        ds = DataFromList([bytes(10_000)] * rows)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
        try:
            with pytest.raises(DataFlowError, match=r"/d cannot be written(.|\n)*bytes free"):
                LMDBSerializer.save(ds, path, frequency)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert list(tmp_path.iterdir()) == [path]
        assert list(LMDBSerializer.load(path, False)) == [1, 2]
    assert not [one for one in os.listdir("/proc/self/fd") if _names(one, tmp_path)]


def _names(fd: str, folder: Path) -> bool:
    try:
        return str(folder) in os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return False


@pytest.mark.parametrize("keys", [[1], [b"a", None], 5])
def test_keys_of_another_type(tmp_path: Path, keys: Any) -> None:
    LMDBSerializer.save(DataFromList([1, 2]), tmp_path / "d")
    with pytest.raises(ConfigError, match="keys="):
        LMDBData(tmp_path / "d", keys=keys)


def test_what_cannot_be_pickled_is_told(tmp_path: Path) -> None:
    ds = DataFromList([1, lambda: 2])
    with pytest.raises(ConfigError, match=r"cannot be pickled(.|\n)*datapoint 1"):
        LMDBSerializer.save(ds, tmp_path / "d", format="pickle")
    assert list(tmp_path.iterdir()) == []
