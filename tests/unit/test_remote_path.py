"""Files behind URLs: what is read, written and listed, and which failures are tried again."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from towerpack import ConfigError, RemoteFileError
from towerpack._core.remote_path import RemotePath, is_url

DATA = bytes(range(256)) * 40


class _Unreliable(BaseHTTPRequestHandler):
    """Serves `DATA` by range. Failures wait in `faults`: statuses, "cut" or "drop"."""

    faults: ClassVar[list[int | str]] = []
    requests = 0

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        type(self).requests += 1
        fault = self.faults.pop(0) if self.faults else None
        if fault == "drop":
            self.close_connection = True
            return
        if isinstance(fault, int):
            self.send_error(fault)
            return
        first, last = 0, len(DATA) - 1
        if found := self.headers.get("Range"):
            first, last = (int(x) for x in found.removeprefix("bytes=").split("-"))
        self.send_response(206 if found else 200)
        self.send_header("Content-Length", str(last + 1 - first))
        self.send_header("ETag", '"1"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(DATA[first : last + 1][: 3 if fault == "cut" else None])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    _Unreliable.faults, _Unreliable.requests = [], 0
    with ThreadingHTTPServer(("127.0.0.1", 0), _Unreliable) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_address[1]}/a.bin"
        httpd.shutdown()


def test_a_folder_in_memory() -> None:
    folder = RemotePath(f"memory://{os.urandom(4).hex()}")
    (folder / "a/b.txt").write(b"hello")
    (folder / "c.txt").write(b"again")
    assert folder.files() == {"a/b.txt": 5, "c.txt": 5}
    assert [p.name for p in (folder / "*.txt").glob()] == ["c.txt"]
    assert (folder / "a/b.txt").read(1, 3) == b"ell"
    assert (folder / "a/b.txt").info().size == 5
    (folder / "a").remove()
    (folder / "a").remove()
    assert folder.files() == {"c.txt": 5}
    with pytest.raises(ConfigError, match="There is no memory://"):
        (folder / "a/b.txt").read()


@pytest.mark.parametrize("fault", [500, 503, 429, 408, "cut", "drop"])
def test_what_may_pass_is_tried_again(server: str, fault: int | str) -> None:
    path = RemotePath(server)
    _Unreliable.faults = [fault]
    assert path.read(100, 1000) == DATA[100:1100]
    assert _Unreliable.requests >= 2
    assert path.read() == DATA
    assert path.info().version == f'{len(DATA)} "1"'


@pytest.mark.parametrize(
    ("status", "text"), [(404, "There is no http"), (403, "denied"), (401, "denied")]
)
def test_what_will_not_pass_is_not(server: str, status: int, text: str) -> None:
    _Unreliable.faults = [status] * 9
    with pytest.raises(ConfigError, match=text):
        RemotePath(server).read()
    assert _Unreliable.requests == 1


def test_the_deadline_ends_the_attempts(server: str) -> None:
    _Unreliable.faults = [500] * 99
    with pytest.raises(RemoteFileError, match=r"after trying for 0\.6 seconds"):
        RemotePath(server, deadline=0.6).read()
    assert 2 <= _Unreliable.requests < 10


def test_after_a_fork(server: str) -> None:
    path = RemotePath(server)
    path.read()
    if (child := os.fork()) == 0:
        os._exit(path.read() != DATA)
    assert os.waitpid(child, 0)[1] == 0


def test_urls_without_a_file_system() -> None:
    assert is_url("s3://bucket/a") and not is_url("folder/a") and not is_url("C:/a")
    with pytest.raises(ConfigError, match="no file system for nothing://"):
        RemotePath("nothing://a").read()
