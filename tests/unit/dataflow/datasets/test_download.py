"""Downloads: whole, checked, from mirrors, fetched once."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataset_files import Served, serving
from towerpack._core.errors import ConfigError, DataFlowError, FormatError
from towerpack.dataflow.datasets import _download, data_dir, download

DATA = np.random.default_rng(0).bytes(300_000)
SHA256 = f"sha256:{hashlib.sha256(DATA).hexdigest()}"
MD5 = f"md5:{hashlib.md5(DATA).hexdigest()}"
PROGRAM = """\
import sys
from towerpack.dataflow.datasets import download
download(*sys.argv[1:], backoff_s=0.01)
"""


@pytest.fixture
def served() -> Generator[Served]:
    with serving({"a.bin": DATA, "empty": b""}) as served:
        served.redirect = {"here": "/a.bin", "bad": "file:///etc/passwd", "loop": "/loop"}
        yield served


def names(folder: Path) -> set[str]:
    """Files but locks."""
    return {path.name for path in folder.iterdir() if not path.name.endswith(".lock")}


@pytest.mark.parametrize(("checksum", "length"), [(None, True), (SHA256, False), (MD5, True)])
def test_fetches(served: Served, tmp_path: Path, checksum: str | None, length: bool) -> None:
    served.length = length
    path = tmp_path / "in" / "a.bin"
    assert download(f"{served.url}/here", path, checksum=checksum, size=300_000) == path
    assert path.read_bytes() == DATA and names(path.parent) == {"a.bin"}
    assert download(f"{served.url}/empty", tmp_path / "empty").read_bytes() == b""
    download(f"{served.url}/none", path, checksum="md5:0", size=3)  # it is there: nobody is asked
    assert len(served.requests) == 3


@pytest.mark.parametrize(
    ("url", "arguments", "error", "told"),
    [
        ("{}/a.bin", {"checksum": "sha256:" + "0" * 64}, FormatError, "does not match"),
        ("{}/a.bin", {"checksum": ""}, FormatError, "does not match"),
        ("{}/a.bin", {"checksum": "crc:12"}, FormatError, "not available"),
        ("{}/a.bin", {"size": 300_001}, FormatError, "300,000 bytes instead of 300,001"),
        ("{}/a.bin", {"max_bytes": 1000}, FormatError, "more than 1,000 bytes"),
        ("{}/none", {}, DataFlowError, "404"),
        ("{}/bad", {}, DataFlowError, "file:///etc/passwd"),
        ("file:///etc/passwd", {}, DataFlowError, "file:///etc/passwd"),
    ],
)
def test_what_no_other_attempt_would_make_better(
    served: Served, tmp_path: Path, url: str, arguments: Any, error: Any, told: str
) -> None:
    with pytest.raises(error, match=rf"(?s){told}.*copy the file to {tmp_path}/a\.bin"):
        download(url.format(served.url), tmp_path / "a.bin", **arguments)
    assert names(tmp_path) == set() and len(served.requests) <= 1


def test_mirrors(served: Served, tmp_path: Path) -> None:
    urls = [f"{served.url}/none", "http://127.0.0.1:9/a.bin"]
    assert download([*urls, f"{served.url}/a.bin"], tmp_path / "a").read_bytes() == DATA
    served.requests.clear()
    with pytest.raises(DataFlowError) as caught:
        download(urls, tmp_path / "b", retries=1, backoff_s=0.01)
    assert "404" in str(caught.value) and "refused" in str(caught.value)
    assert served.requests == ["none"]  # what is not there will not be there a second later


def test_what_breaks_off_begins_anew(served: Served, tmp_path: Path) -> None:
    served.cut = 70_000
    with pytest.raises(DataFlowError, match="70000"):
        download(f"{served.url}/a.bin", tmp_path / "a", retries=2, backoff_s=0)
    assert len(served.requests) == 3 and names(tmp_path) == set()
    served.cut, served.statuses = None, [503, 429, 500]  # busy servers are asked again
    assert download(f"{served.url}/a.bin", tmp_path / "a", backoff_s=0).read_bytes() == DATA
    served.pause_s = 30
    with pytest.raises(DataFlowError, match="timed out"):
        download(f"{served.url}/a.bin", tmp_path / "b", timeout_s=0.1, retries=1, backoff_s=0)
    assert len(served.requests) == 9


class TestProcesses:
    def start(self, url: str, path: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PROGRAM, url, str(path)]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def test_killed_half_way(self, served: Served, tmp_path: Path) -> None:
        served.pause_s = 0.1
        process = self.start(f"{served.url}/a.bin", tmp_path / "a")
        deadline = time.monotonic() + 60
        while not any(path.is_file() for path in tmp_path.glob(".a.arriving/*")):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert names(tmp_path) == {".a.arriving"}
        served.pause_s = 0
        download(f"{served.url}/a.bin", tmp_path / "a")
        assert (tmp_path / "a").read_bytes() == DATA and names(tmp_path) == {"a"}

    def test_two_at_once_fetch_it_once(self, served: Served, tmp_path: Path) -> None:
        served.pause_s = 0.01
        processes = [self.start(f"{served.url}/a.bin", tmp_path / "a") for _ in range(2)]
        for process in processes:
            errors = process.communicate(timeout=60)[1]
            assert process.returncode == 0 and errors == "", "quiet where there is no terminal"
        assert len(served.requests) == 1 and (tmp_path / "a").read_bytes() == DATA


def test_a_full_disk(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_download.os, "fsync", full)
    with pytest.raises(DataFlowError, match=r"(?s)cannot be written.*No space.*free disk space"):
        download(f"{served.url}/a.bin", tmp_path / "a")
    assert names(tmp_path) == set() and len(served.requests) == 1


def test_data_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TOWERPACK_DATA", raising=False)
    monkeypatch.delenv("TENSORPACK_DATASET", raising=False)
    assert data_dir() == Path.home() / "towerpack-data"
    monkeypatch.setenv("TENSORPACK_DATASET", str(tmp_path))
    assert data_dir("mnist_data") == tmp_path / "mnist_data"
    monkeypatch.setenv("TOWERPACK_DATA", "~/there")
    assert data_dir() == Path.home() / "there"


def test_directories_as_the_predecessor_took_them(served: Served, tmp_path: Path) -> None:
    url = f"{served.url}/a.bin"
    (tmp_path / "there").mkdir()
    for path in (tmp_path / "there", str(tmp_path / "there"), f"{tmp_path}/new/deep/"):
        assert download(url, path) == Path(path) / "a.bin"
        assert (Path(path) / "a.bin").read_bytes() == DATA
    with pytest.raises(ConfigError, match="directory or a file") as caught:
        download(url, f"{tmp_path}/data")
    assert f"{tmp_path}/data/" in str(caught.value) and not (tmp_path / "data").exists()
