"""HTTP server of files in memory, which answers range requests late, wrongly or not at all."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class RangeServer:
    """Server of `files`, by name. Each answer fails with the probability `faults`.

    Attributes:
        files: Content of each file. A test may change it.
        delay: Longest delay of an answer in seconds.
        ranges: Whether the server supports range requests.
        requests: Method, name and range of each request.
    """

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.faults = 0.0
        self.delay = 0.0
        self.ranges = True
        self.requests: list[tuple[str, str, str | None]] = []
        self.url = ""

    def answer(self, handler: BaseHTTPRequestHandler, rng: random.Random) -> None:
        name, wanted = handler.path.lstrip("/"), handler.headers.get("Range")
        self.requests.append((handler.command, name, wanted))
        time.sleep(self.delay * rng.random())
        fault = rng.choice([500, 503, 429, "cut", "drop"]) if rng.random() < self.faults else None
        if fault == "drop":
            handler.close_connection = True
            return
        data = self._listing() if name in ("", "index.html") else self.files.get(name)
        if data is None or isinstance(fault, int):
            handler.send_error(404 if data is None else int(fault or 0))
            return
        start, stop = 0, len(data)
        if wanted and self.ranges:
            first, last = wanted.removeprefix("bytes=").split("-")
            start, stop = int(first), min(stop, int(last) + 1)
        handler.send_response(206 if wanted and self.ranges else 200)
        handler.send_header("Content-Length", str(stop - start))
        handler.send_header("Content-Type", "text/html" if data == self._listing() else "x/y")
        handler.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        handler.send_header("ETag", f'"{hashlib.md5(data).hexdigest()}"')
        handler.end_headers()
        if handler.command == "GET":
            handler.wfile.write(data[start : (start + stop) // 2 if fault == "cut" else stop])
        handler.close_connection = handler.close_connection or fault == "cut"

    def _listing(self) -> bytes:
        return "".join(f'<a href="/{name}">{name}</a>' for name in self.files).encode()


@contextmanager
def serving(files: dict[str, bytes], seed: int = 0) -> Iterator[RangeServer]:
    """Serve files at `server.url` during a `with` block."""
    server, rng = RangeServer(files), random.Random(seed)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            server.answer(self, rng)

        do_HEAD = do_GET  # noqa: N815 - as the base class calls it

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # clients that were killed

    with Server(("127.0.0.1", 0), Handler) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        server.url = f"http://127.0.0.1:{httpd.server_address[1]}"
        yield server
        httpd.shutdown()
