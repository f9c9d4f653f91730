"""Small data sets in the true formats, and a server for them on the loopback."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np


@dataclass
class Served:
    """What the server gives, and how badly.

    Args:
        files: Content by path.
        cut: After how many bytes each answer breaks off.
        pause_s: Before each piece of 16 kB.
        length: Whether the length is told.
        statuses: Answers before the true ones.
        redirect: Where a path leads.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    cut: int | None = None
    pause_s: float = 0
    length: bool = True
    statuses: list[int] = field(default_factory=list)
    redirect: dict[str, str] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    url: str = ""


@contextmanager
def serving(files: Mapping[str, bytes]) -> Generator[Served]:
    """Serve files until the block ends."""
    served = Served(dict(files))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _answer(self, served)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _answer(handler: BaseHTTPRequestHandler, served: Served) -> None:
    path = handler.path.lstrip("/")
    served.requests.append(path)
    data = served.files.get(path)
    if served.statuses:
        handler.send_error(served.statuses.pop(0))
    elif path in served.redirect:
        handler.send_response(302)
        handler.send_header("Location", served.redirect[path])
        handler.end_headers()
    elif data is None:
        handler.send_error(404)
    else:
        handler.send_response(200)
        if served.length:
            handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        with suppress(OSError):  # nobody listens any more
            for at in range(0, len(data[: served.cut]), 1 << 14):
                time.sleep(served.pause_s)
                handler.wfile.write(data[: served.cut][at : at + (1 << 14)])


def tar_bytes(files: Mapping[str, bytes], mode: str = "w:gz") -> bytes:
    """A tar archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def zip_bytes(files: Mapping[str, bytes]) -> bytes:
    """A zip archive."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


def idx_bytes(array: np.ndarray) -> bytes:
    """A gzipped IDX file."""
    header = struct.pack(f">{1 + array.ndim}I", 8 << 8 | array.ndim, *array.shape)
    return gzip.compress(header + array.tobytes())


def mat_bytes(variables: Mapping[str, Any]) -> bytes:
    """A MAT-file, written by SciPy."""
    from scipy.io import savemat

    out = io.BytesIO()
    savemat(out, dict(variables), do_compression=True)
    return out.getvalue()


def picture(height: int, width: int, colour: tuple[int, int, int], kind: str = ".jpg") -> bytes:
    """An image file of one colour, given as RGB."""
    import cv2

    image = np.full((height, width, 3), colour[::-1], np.uint8)
    return cv2.imencode(kind, image)[1].tobytes()


def damaged(data: bytes, draw: Callable[[int], int]) -> bytes:
    """Some bytes changed, and perhaps the end cut off.

    Args:
        data: At least one byte.
        draw: A number below its argument.
    """
    out = bytearray(data)
    for _ in range(1 + draw(4)):
        out[draw(len(out))] = draw(256)
    return bytes(out[: len(out) - draw(len(out))] if draw(3) == 0 else out)
