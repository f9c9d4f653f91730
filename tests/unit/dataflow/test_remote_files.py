"""Sources over URLs give the same datapoints as over local files, whatever the network does."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from typer.testing import CliRunner

from range_server import RangeServer, serving
from scaling import scaled
from towerpack import ConfigError, FormatError
from towerpack._core.block_cache import BlockCache
from towerpack.cli import app
from towerpack.dataflow import (
    BatchData,
    DataFlow,
    ImageCSV,
    ImageFolder,
    ImageFromFile,
    LMDBData,
    PrefetchData,
    ShuffleData,
)
from towerpack.dataflow.formats import (
    ParquetData,
    TarData,
    TarWriter,
    TFRecordData,
    TFRecordSerializer,
    TFRecordWriter,
)

ROWS, LIMIT = 90, 3 << 20
SOURCES: dict[str, Callable[[Any], DataFlow]] = {
    "tar": TarData,
    "tfrecord": TFRecordData,
    "parquet": ParquetData,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards of each format, with some rows larger than a block of the cache."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder, rng = tmp_path_factory.mktemp("shards"), np.random.default_rng(0)
    rows = [rng.bytes(1_500_000 if i % 40 == 7 else 30_000 + i) for i in range(ROWS)]
    for shard in range(3):
        part = rows[shard * 30 : (shard + 1) * 30]
        with TarWriter(folder / f"d-{shard}.tar") as tar:
            for row in part:
                tar.write({"bin": row})
        with TFRecordWriter(folder / f"d-{shard}.tfrecord") as records:
            for row in part:
                records.write(row)
        pq.write_table(pa.table({"a": part}), folder / f"d-{shard}.parquet", row_group_size=10)
    return folder


@pytest.fixture
def server(folder: Path) -> Iterator[RangeServer]:
    with serving({path.name: path.read_bytes() for path in folder.iterdir()}) as server:
        yield server


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOWERPACK_CACHE", f"{tmp_path / 'cache'}:{LIMIT}")
    return tmp_path / "cache"


def nbytes_in(cache: Path) -> int:
    return sum(path.stat().st_size for path in cache.iterdir())


@pytest.mark.parametrize("format", SOURCES)
def test_random_epochs_over_an_unreliable_server(
    format: str, folder: Path, server: RangeServer, cache: Path
) -> None:
    local = ShuffleData(SOURCES[format](str(folder / f"d-*.{format}")))
    remote = ShuffleData(SOURCES[format](f"{server.url}/d-{{0..2}}.{format}"))
    assert len(remote) == ROWS
    server.faults, server.delay = 0.05, 0.02
    rng = random.Random(1)
    for _ in range(scaled(67, at_least=3)):
        epoch, workers = rng.randrange(1000), rng.choice([0, 0, 2])
        flow = PrefetchData(remote, workers) if workers else remote
        found = list(flow.iterate(seed=5, epoch=epoch))
        assert repr(found) == repr(list(local.iterate(seed=5, epoch=epoch)))
        assert nbytes_in(cache) <= LIMIT


READER = """
import sys, hashlib
from towerpack.dataflow import BatchData, PrefetchData, ShuffleData
from towerpack.dataflow.formats import TarData
ds = BatchData(ShuffleData(TarData(sys.argv[1])), 4)
ds = PrefetchData(ds, 2)
iterator = ds.iterate(seed=3, epoch=0)
for batch in iterator:
    print(iterator.state()["at"], hashlib.md5(repr(batch).encode()).hexdigest(), flush=True)
"""


def test_killed_readers_leave_a_whole_cache(folder: Path, server: RangeServer, cache: Path) -> None:
    whole = BatchData(ShuffleData(TarData(str(folder / "d-*.tar"))), 4)
    iterator = whole.iterate(seed=3, epoch=0)
    states = [(iterator.state(), repr(batch)) for batch in iterator]
    url = f"{server.url}/d-{{0..2}}.tar"
    rng = random.Random(2)
    for _ in range(scaled(40, at_least=3)):
        with subprocess.Popen([sys.executable, "-c", READER, url], stdout=-1) as child:
            assert child.stdout is not None
            for _ in range(rng.randrange(1, 6)):
                assert child.stdout.readline()
            time.sleep(rng.random() / 50)
            child.send_signal(signal.SIGKILL)
        assert nbytes_in(cache) <= LIMIT
        remote = BatchData(ShuffleData(TarData(url)), 4)
        state, _ = rng.choice(states)
        place = [s for s, _ in states].index(state)
        found = remote.iterate(state=state)
        assert [repr(batch) for batch in found] == [text for _, text in states[place + 1 :]]


def test_damaged_blocks_are_fetched_again(folder: Path, server: RangeServer, cache: Path) -> None:
    source = SOURCES["tfrecord"]
    expected = repr(list(source(f"{server.url}/d-0.tfrecord")))
    for block in cache.iterdir():
        if block.name != "lock":
            block.write_bytes(block.read_bytes()[:-9] + bytes(9))
    (cache / "lock").write_bytes(b"123")
    code = "print(list(TFRecordData(sys.argv[1])))"
    program = f"import sys; from towerpack.dataflow.formats import *; {code}"
    command = [sys.executable, "-c", program, f"{server.url}/d-0.tfrecord"]
    done = subprocess.run(command, stdout=-1, check=True, text=True)
    assert done.stdout.strip() == expected


def test_a_cache_is_least_recently_used_first(tmp_path: Path) -> None:
    cache = BlockCache(tmp_path, 1000)
    for i in range(9):
        cache.put(f"{i:032x}", bytes([i]) * 96)
        assert cache.read(f"{0:032x}") == bytes(96)
        os.utime(tmp_path / f"{i:032x}", (i, i + 1000 * (not i)))
    cache.put(f"{9:032x}", bytes(200))
    assert nbytes_in(tmp_path) <= 1000
    assert [i for i in range(10) if cache.read(f"{i:032x}")] == [0, 3, 4, 5, 6, 7, 8, 9]
    cache.put(f"{10:032x}", bytes(2000))
    assert cache.read(f"{10:032x}") is None


def test_a_full_disk_ends_the_cache_with_one_warning(
    folder: Path,
    server: RangeServer,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(path: Path, mode: str) -> IO[bytes]:
        if mode == "wb":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return open(path, mode)

    monkeypatch.setattr(Path, "open", full)
    local, remote = (TarData(f"{place}/d-0.tar") for place in (folder, server.url))
    assert list(remote) == list(local) == list(remote)
    assert caplog.text.count("No space left") == 1


def test_a_changed_shard_is_an_error(server: RangeServer, cache: Path) -> None:
    remote = TarData([f"{server.url}/d-{i}.tar" for i in range(3)])
    server.files["d-2.tar"] = server.files["d-1.tar"]
    with pytest.raises(FormatError, match=r"d-2.tar was changed after it was opened"):
        list(remote)


def test_a_server_without_ranges_is_an_error(server: RangeServer) -> None:
    server.ranges = False
    with pytest.raises(ConfigError, match="cannot send parts of a file"):
        len(TarData(f"{server.url}/d-0.tar"))


def test_reading_in_order_fetches_each_block_once(
    server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for workers in (0, 2):
        monkeypatch.setenv("TOWERPACK_CACHE", str(tmp_path / f"cache-{workers}"))
        ds = TFRecordData([f"{server.url}/d-{i}.tfrecord" for i in range(3)])
        server.requests.clear()
        sum(1 for _ in (PrefetchData(ds, workers) if workers else ds))
        ranges = [request for request in server.requests if request[2]]
        assert len(ranges) == len(set(ranges)) == 9


def test_local_files_import_nothing_for_urls(folder: Path) -> None:
    code = (
        "import sys; from towerpack.dataflow.formats import *; list(TarData(sys.argv[1])); "
        "assert not {'fsspec', 'aiohttp', 's3fs'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code, str(folder / "d-0.tar")], check=True)


def run(*words: str) -> str:
    result = CliRunner().invoke(app, ["data", *words], env={"COLUMNS": "200"})
    if result.exception is not None:
        raise result.exception
    return result.output


@pytest.mark.parametrize("format", ["tar", "tfrecord"])
def test_index_files(
    format: str, folder: Path, tmp_path: Path, server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOWERPACK_CACHE", f"{tmp_path}/cache")
    for path in folder.glob(f"d-*.{format}"):
        shutil.copy(path, tmp_path)
    names = [f"d-{i}.{format}" for i in range(3)]
    run("index", str(tmp_path / f"d-*.{format}"))
    server.files |= {path.name: path.read_bytes() for path in tmp_path.glob("*.index")}
    expected = repr(list(SOURCES[format](str(folder / f"d-*.{format}"))))
    for place in (tmp_path, server.url):
        server.requests.clear()
        ds = SOURCES[format]([f"{place}/{name}" for name in names])
        assert len(ds) == ROWS
        assert all(request[2] in (None, "bytes=0-4095") for request in server.requests)
        assert repr(list(ds)) == expected
    server.requests.clear()
    assert len(SOURCES[format](f"{server.url}/{names[0]}")) == 30
    assert [request[0] for request in server.requests] == ["HEAD"]

    shutil.copy(tmp_path / f"{names[1]}.index", tmp_path / f"{names[0]}.index")
    server.files[f"{names[0]}.index"] = server.files[f"{names[1]}.index"]
    monkeypatch.setenv("TOWERPACK_CACHE", "off")
    for place in (tmp_path, server.url):
        with pytest.raises(FormatError, match="belongs to another shard"):
            len(SOURCES[format](f"{place}/{names[0]}"))


def test_shards(folder: Path, tmp_path: Path) -> None:
    local, url = str(tmp_path / "new"), f"memory://{tmp_path.name}"
    for source in (f"{folder}/d-*.tar", f"{folder}/d-0.tfrecord", f"{folder}/d-0.parquet"):
        for dest in (f"{local}/{Path(source).suffix}", f"{url}/{Path(source).suffix}"):
            run("shard", source, dest, "--size", "800KB")
            if dest.startswith(local):
                subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=dest, check=True)
            shards = f"{dest}/shard-*.{'tar' if 'tar' in source else 'tfrecord'}"
            if "parquet" in source:
                found, expected = TFRecordSerializer.load(shards), ParquetData(source)
            else:
                read = SOURCES[Path(source).suffix[1:]]
                found, expected = read(shards), read(source)
            assert repr(list(found)) == repr(list(expected))
        with pytest.raises(ConfigError, match="contains files"):
            run("shard", source, dest)
    with pytest.raises(ConfigError, match="needs no index"):
        run("index", str(folder / "d-0.parquet"))
    run("index", f"{url}/.tar/shard-00000.tar")


def test_images_and_lists(tmp_path: Path) -> None:
    fsspec, cv2 = pytest.importorskip("fsspec"), pytest.importorskip("cv2")
    url = f"memory://{tmp_path.name}-images"
    for i in range(20):
        path = tmp_path / "data" / "ab"[i % 2] / f"x{i % 3}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), np.full((4, 5, 3), i, np.uint8))
    (tmp_path / "data" / "a" / "notes.txt").touch()
    table = "".join(f"a/x{i % 3}/{i}.png,{i}\n" for i in range(0, 20, 2))
    (tmp_path / "data" / "list.csv").write_text(table)
    fsspec.filesystem("memory").put(str(tmp_path / "data"), url, recursive=True)

    for options in ({}, {"classes": ["b", "a"]}, {"extensions": [".png"], "shuffle": True}):
        local, remote = (ImageFolder(place, **options) for place in (tmp_path / "data", url))
        assert (remote.classes, remote.left_out) == (local.classes, local.left_out)
        found, expected = (list(BatchData(ds, 5).iterate(seed=1)) for ds in (remote, local))
        assert repr(found) == repr(expected)
    assert repr(list(ImageCSV(f"{url}/list.csv"))) == repr(
        list(ImageCSV(tmp_path / "data/list.csv"))
    )
    (tmp_path / "urls.csv").write_text(f"{url}/b/x1/1.png,7\n")
    assert [label for _, label in ImageCSV(tmp_path / "urls.csv")] == [7]
    (image,) = next(iter(ImageFromFile([f"{url}/b/x1/1.png"])))
    assert (image == 1).all()
    run("shard", url, f"{url}-shards")
    shards = TarData(f"{url}-shards/shard-*.tar", decode=True)
    assert repr([(dp["png"], dp["cls"]) for dp in shards]) == repr(list(ImageFolder(url)))
    with pytest.raises(ConfigError, match="There are no images in memory://nothing"):
        ImageFolder("memory://nothing")
    with pytest.raises(ConfigError, match="A local path is needed, got the URL"):
        LMDBData(url)


def test_s3(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moto_server = pytest.importorskip("moto.server")
    s3fs = pytest.importorskip("s3fs")
    monkeypatch.setattr("werkzeug._internal._log", lambda *args, **kwargs: None)
    moto = moto_server.ThreadedMotoServer(port=0)
    moto.start()
    try:
        host, port = moto.get_host_and_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "test")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        s3fs.S3FileSystem.clear_instance_cache()
        fs = s3fs.S3FileSystem()
        fs.mkdir("data")
        for path in folder.iterdir():
            fs.put_file(str(path), f"data/{path.name}")
        for format, source in SOURCES.items():
            local = source(str(folder / f"d-*.{format}"))
            remote = source(f"s3://data/d-*.{format}")
            assert repr(list(remote)) == repr(list(local))
            assert remote.content() == source(f"s3://data/d-*.{format}").content()
        with pytest.raises(ConfigError, match="There are no files 's3://data/x-"):
            TarData("s3://data/x-*.tar")
        with pytest.raises(ConfigError, match="There is no s3://nothing/a"):
            TarData("s3://nothing/a.tar")
        monkeypatch.setenv("TOWERPACK_CACHE", "off")
        changed = TarData("s3://data/d-0.tar")
        fs.pipe_file("data/d-0.tar", (folder / "d-1.tar").read_bytes())
        with pytest.raises(FormatError, match="was changed after it was opened"):
            list(changed)
    finally:
        moto.stop()
        s3fs.S3FileSystem.clear_instance_cache()
