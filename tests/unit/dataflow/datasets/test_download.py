"""Downloads: whole, checked, gone on with, fetched once."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest

from dataset_files import Served, serving
from towerpack._core.errors import ConfigError, DataFlowError, FormatError
from towerpack.dataflow.datasets import _http as http
from towerpack.dataflow.datasets import data_dir, download

DATA = np.random.default_rng(0).bytes(300_000)
SHA256 = f"sha256:{hashlib.sha256(DATA).hexdigest()}"
MD5 = f"md5:{hashlib.md5(DATA).hexdigest()}"
PROGRAM = """\
import sys
from towerpack.dataflow.datasets import download
url, path, checksum = sys.argv[1:]
download(url, path, checksum=checksum or None, backoff_s=0.01)
"""


@pytest.fixture
def served() -> Generator[Served]:
    with serving({"a.bin": DATA}) as served:
        yield served


def names(folder: Path) -> set[str]:
    """Files but locks."""
    return {path.name for path in folder.iterdir() if not path.name.endswith(".lock")}


class TestWhole:
    @pytest.mark.parametrize("checksum", [None, SHA256, MD5, SHA256.upper().replace("SHA", "sha")])
    def test_fetches(self, served: Served, tmp_path: Path, checksum: str | None) -> None:
        path = download(f"{served.url}/a.bin", tmp_path / "in" / "a.bin", checksum=checksum)
        assert path.read_bytes() == DATA
        assert names(path.parent) == {"a.bin"}

    def test_what_is_there_is_not_asked_for(self, served: Served, tmp_path: Path) -> None:
        (tmp_path / "a.bin").write_bytes(b"mine")
        download(f"{served.url}/a.bin", tmp_path / "a.bin", checksum=SHA256, size=3)
        assert not served.requests and (tmp_path / "a.bin").read_bytes() == b"mine"

    def test_without_length(self, served: Served, tmp_path: Path) -> None:
        served.length = False
        assert download(f"{served.url}/a.bin", tmp_path / "a").read_bytes() == DATA

    def test_empty_file(self, served: Served, tmp_path: Path) -> None:
        served.files["empty"] = b""
        assert download(f"{served.url}/empty", tmp_path / "a").read_bytes() == b""

    def test_wrong_checksum(self, served: Served, tmp_path: Path) -> None:
        wrong = "sha256:" + "0" * 64
        with pytest.raises(FormatError, match=rf"(?s)checksum is not {wrong}.*put it at .*a\.bin"):
            download(f"{served.url}/a.bin", tmp_path / "a.bin", checksum=wrong)
        assert names(tmp_path) == set()
        assert len(served.requests) == 1

    def test_wrong_size_is_not_even_read(self, served: Served, tmp_path: Path) -> None:
        with pytest.raises(DataFlowError, match="300,000 bytes, not 5"):
            download(f"{served.url}/a.bin", tmp_path / "a.bin", size=5)
        served.length = False
        with pytest.raises(DataFlowError, match="more than 5 bytes"):
            download(f"{served.url}/a.bin", tmp_path / "a.bin", size=5)
        with pytest.raises(DataFlowError, match="300,000 bytes instead of 300,001"):
            download(f"{served.url}/a.bin", tmp_path / "b.bin", size=300_001, retries=0)

    def test_limit(self, served: Served, tmp_path: Path) -> None:
        for length in (True, False):
            served.length = length
            with pytest.raises(DataFlowError, match="1,000"):
                download(f"{served.url}/a.bin", tmp_path / "a", max_bytes=1000, retries=0)


class TestMirrors:
    def test_next_one(self, served: Served, tmp_path: Path) -> None:
        urls = [f"{served.url}/none", "http://127.0.0.1:9/a.bin", f"{served.url}/a.bin"]
        assert download(urls, tmp_path / "a").read_bytes() == DATA

    def test_all_are_named_in_the_error(self, served: Served, tmp_path: Path) -> None:
        urls = [f"{served.url}/none", "http://127.0.0.1:9/a.bin"]
        with pytest.raises(DataFlowError) as caught:
            download(urls, tmp_path / "a", retries=1, backoff_s=0.01)
        message = str(caught.value)
        assert "HTTP 404" in message and "refused" in message and str(tmp_path / "a") in message
        assert len(served.requests) == 1  # what is not there will not be there a second later

    @pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://a/b", "/etc/passwd", "http://"])
    def test_other_addresses(self, tmp_path: Path, url: str) -> None:
        with pytest.raises(ConfigError, match="no address"):
            download(url, tmp_path / "a")

    @pytest.mark.parametrize("checksum", ["sha256:0", "sha1:" + "0" * 40, "md5:" + "g" * 32, ""])
    def test_other_checksums(self, tmp_path: Path, checksum: str) -> None:
        with pytest.raises(ConfigError, match="no checksum"):
            download("http://127.0.0.1:9/a", tmp_path / "a", checksum=checksum)

    def test_redirections(self, served: Served, tmp_path: Path) -> None:
        served.redirect = {"here": "/a.bin", "bad": "file:///etc/passwd", "loop": "/loop"}
        assert download(f"{served.url}/here", tmp_path / "a").read_bytes() == DATA
        for path in ("bad", "loop"):
            with pytest.raises(DataFlowError):
                download(f"{served.url}/{path}", tmp_path / "b", retries=0)

    def test_https_does_not_lead_to_http(self) -> None:
        from urllib.request import Request

        opener = http._opener()
        (handler,) = (h for h in opener.handlers if hasattr(h, "redirect_request"))
        request = Request("https://a/b")
        assert handler.redirect_request(request, None, 302, "", {}, "https://c/d") is not None
        with pytest.raises(http.Refused, match="less safe"):
            handler.redirect_request(request, None, 302, "", {}, "http://c/d")


class TestBroken:
    def test_goes_on(self, served: Served, tmp_path: Path) -> None:
        served.cut = 70_000
        assert download(f"{served.url}/a.bin", tmp_path / "a", backoff_s=0).read_bytes() == DATA
        assert len(served.requests) == 5 and served.sent == len(DATA)
        assert served.requests[1][1] == "bytes=70000-"

    def test_progress_is_no_failure(self, served: Served, tmp_path: Path) -> None:
        served.cut = 30_000
        download(f"{served.url}/a.bin", tmp_path / "a", backoff_s=0, retries=0)
        assert len(served.requests) == 10

    @pytest.mark.parametrize("checksum", [None, SHA256])
    def test_server_without_ranges(
        self, served: Served, tmp_path: Path, checksum: str | None
    ) -> None:
        served.cut, served.ranges = 70_000, False
        with pytest.raises(DataFlowError, match="70,000 of 300,000"):
            download(
                f"{served.url}/a.bin", tmp_path / "a", checksum=checksum, retries=2, backoff_s=0
            )
        assert len(served.requests) == 4
        served.cut = None
        assert download(f"{served.url}/a.bin", tmp_path / "a").read_bytes() == DATA

    def test_without_a_version_only_a_checksum_lets_it_go_on(
        self, served: Served, tmp_path: Path
    ) -> None:
        served.tag, served.cut = "", 200_000
        download(f"{served.url}/a.bin", tmp_path / "a", backoff_s=0, checksum=SHA256)
        assert served.requests[-1][1] == "bytes=200000-"
        with pytest.raises(DataFlowError):
            download(f"{served.url}/a.bin", tmp_path / "b", backoff_s=0, retries=1)
        assert served.requests[-1][1] is None

    @pytest.mark.parametrize("checksum", [None, SHA256])
    @pytest.mark.parametrize("conditions", [True, False])
    def test_the_file_changed_meanwhile(
        self, served: Served, tmp_path: Path, checksum: str | None, conditions: bool
    ) -> None:
        url = f"{served.url}/a.bin"
        served.conditions = conditions
        (tmp_path / ".a.part").write_bytes(bytes(100_000))
        (tmp_path / ".a.from").write_text(f'{url}\n"0"\n')
        download(url, tmp_path / "a", checksum=checksum, backoff_s=0)
        assert served.requests[0][1] == "bytes=100000-"
        assert len(served.requests) == (1 if conditions and checksum is None else 2)
        assert (tmp_path / "a").read_bytes() == DATA and names(tmp_path) == {"a"}

    def test_the_rest_from_a_mirror(self, served: Served, tmp_path: Path) -> None:
        served.files["b.bin"] = DATA
        served.cut = 160_000
        urls = [f"{served.url}/a.bin", f"{served.url}/b.bin"]
        download(urls, tmp_path / "a", checksum=SHA256, backoff_s=0)
        assert served.requests == [("a.bin", None), ("b.bin", "bytes=160000-")]

    def test_complete_but_not_renamed(self, served: Served, tmp_path: Path) -> None:
        (tmp_path / ".a.part").write_bytes(DATA)
        download(f"{served.url}/a.bin", tmp_path / "a", checksum=SHA256)
        assert names(tmp_path) == {"a"} and served.sent == 0

    @pytest.mark.parametrize("left", [bytes(1000), DATA + b"more", bytes(300_000)])
    def test_a_wrong_beginning_is_thrown_away(
        self, served: Served, tmp_path: Path, left: bytes
    ) -> None:
        (tmp_path / ".a.part").write_bytes(left)
        download(f"{served.url}/a.bin", tmp_path / "a", checksum=SHA256, backoff_s=0)
        assert (tmp_path / "a").read_bytes() == DATA and names(tmp_path) == {"a"}

    def test_busy_servers_are_asked_again(self, served: Served, tmp_path: Path) -> None:
        served.statuses = [503, 429, 500]
        assert download(f"{served.url}/a.bin", tmp_path / "a", backoff_s=0).read_bytes() == DATA
        served.statuses = [503] * 10
        with pytest.raises(DataFlowError, match="HTTP 503"):
            download(f"{served.url}/a.bin", tmp_path / "b", backoff_s=0, retries=3)
        assert len(served.statuses) == 10 - 4

    def test_silent_servers(self, served: Served, tmp_path: Path) -> None:
        served.pause_s = 30
        with pytest.raises(DataFlowError, match="timed out"):
            download(f"{served.url}/a.bin", tmp_path / "a", timeout_s=0.2, retries=1, backoff_s=0)
        assert len(served.requests) == 2

    def test_dripping_servers(
        self,
        served: Served,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr(http, "_SLOWEST_BYTES_PER_S", 1e9)
        served.pause_s = 0.05
        download(f"{served.url}/a.bin", tmp_path / "a", timeout_s=0.3, backoff_s=0)
        assert (tmp_path / "a").read_bytes() == DATA
        assert any("bytes in 0 s" in message for message in caplog.messages)


class TestProcesses:
    def start(self, url: str, path: Path, checksum: str = "") -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PROGRAM, url, str(path), checksum]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def test_killed_half_way(self, served: Served, tmp_path: Path) -> None:
        served.pause_s = 0.05
        process = self.start(f"{served.url}/a.bin", tmp_path / "a")
        part = tmp_path / ".a.part"
        deadline = time.monotonic() + 60
        while not (part.exists() and part.stat().st_size > 50_000):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        left = part.stat().st_size
        assert not (tmp_path / "a").exists()
        served.pause_s = 0
        download(f"{served.url}/a.bin", tmp_path / "a")
        assert (tmp_path / "a").read_bytes() == DATA and names(tmp_path) == {"a"}
        assert served.requests[-1][1] == f"bytes={left}-"

    def test_two_at_once_fetch_it_once(self, served: Served, tmp_path: Path) -> None:
        served.pause_s = 0.03
        processes = [self.start(f"{served.url}/a.bin", tmp_path / "a", SHA256) for _ in range(2)]
        for process in processes:
            assert process.wait(60) == 0, process.communicate()[1]
            process.communicate()
        assert len(served.requests) == 1 and (tmp_path / "a").read_bytes() == DATA

    def test_threads_too(self, served: Served, tmp_path: Path) -> None:
        served.pause_s = 0.01
        url = f"{served.url}/a.bin"
        threads = [threading.Thread(target=download, args=(url, tmp_path / "a")) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(served.requests) == 1 and (tmp_path / "a").read_bytes() == DATA

    def test_quiet_where_there_is_no_terminal(self, served: Served, tmp_path: Path) -> None:
        process = self.start(f"{served.url}/a.bin", tmp_path / "a")
        assert process.communicate(timeout=60)[1] == ""


class TestDisk:
    def test_no_room(self, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        class Usage:
            free = 299_999

        monkeypatch.setattr(http.shutil, "disk_usage", lambda path: Usage)
        with pytest.raises(DataFlowError, match="no room") as caught:
            download(f"{served.url}/a.bin", tmp_path / "a.bin")
        assert "TOWERPACK_DATA" in str(caught.value) and str(tmp_path / "a.bin") in str(
            caught.value
        )

    def test_full_while_writing(
        self, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*args: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(http.os, "fsync", full)
        with pytest.raises(DataFlowError, match=r"(?s)cannot be written.*No space.*free some"):
            download(f"{served.url}/a.bin", tmp_path / "a")

    def test_a_folder_that_cannot_be(self, served: Served, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(DataFlowError, match="cannot be written"):
            download(f"{served.url}/a.bin", tmp_path / "file" / "a")


class TestDataDir:
    def test_variables(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.delenv("TOWERPACK_DATA", raising=False)
        monkeypatch.delenv("TENSORPACK_DATASET", raising=False)
        assert data_dir() == Path.home() / "towerpack-data"
        monkeypatch.setenv("TENSORPACK_DATASET", str(tmp_path))
        assert data_dir("mnist_data") == tmp_path / "mnist_data"
        monkeypatch.setenv("TOWERPACK_DATA", "~/there")
        assert data_dir() == Path.home() / "there"
