"""JPEG tar shards over HTTP with a delay, beside the same shards on the local disk.

    python benchmarks/remote_data.py [--rounds 5] [--delay-ms 20] [--shards 4] [--images 250]
        [--peers PYTHON]

Each reader is a process of its own: two workers decode the images, crop them to 224 x 224 pixels
and make batches of 32. Local files, URLs with an empty cache and URLs with the full cache of the
reader before take turns. Printed are the medians of ratios within a round, of the images per second
after the first shard; the processor time of an image, which a busy machine disturbs less; and the
seconds to the first batch, without the time to import. `--peers` names the interpreter of an
environment with webdataset and torch, whose reader has the same function.
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

WORKERS, BATCH = 2, 32


def cropped(jpeg: bytes) -> np.ndarray:
    """The function of each item: decode, and cut out 224 x 224 pixels."""
    import simplejpeg

    return simplejpeg.decode_jpeg(jpeg)[:224, :224]


def serve(folder: str, delay_s: float) -> None:
    """Serve the ranges of the files of a folder, each after a delay. Print the port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            time.sleep(delay_s)
            path = Path(folder, self.path.lstrip("/"))
            if not path.is_file():
                self.send_error(404)
                return
            size = path.stat().st_size
            first, last = 0, size - 1
            if wanted := self.headers.get("Range"):
                start, stop = wanted.removeprefix("bytes=").split("-")
                first, last = int(start), min(last, int(stop or last))
            self.send_response(206 if wanted else 200)
            self.send_header("Content-Length", str(last + 1 - first))
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
            self.send_header("ETag", f'"{path.stat().st_mtime_ns}"')
            self.end_headers()
            if self.command == "GET":
                with open(path, "rb") as file:
                    self.connection.sendfile(file, first, last + 1 - first)

        do_HEAD = do_GET  # noqa: N815 - as the base class calls it

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        request_queue_size = 128  # a connection beyond it tries again after a second

    with Server(("127.0.0.1", 0), Handler) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()


def ours(place: str) -> Iterable[np.ndarray]:
    """Batches of Towerpack."""
    from towerpack.dataflow import BatchData, MapData, PrefetchData, TarData

    ds = MapData(TarData(place), lambda dp: (cropped(dp["jpg"]),))
    for (images,) in PrefetchData(BatchData(ds, BATCH, remainder=True), WORKERS):
        yield images


def webdataset(place: str) -> Iterable[np.ndarray]:
    """Batches of WebDataset and PyTorch's loader."""
    import torch
    import webdataset as wds

    ds = wds.WebDataset(place, shardshuffle=False, nodesplitter=wds.split_by_worker)
    ds = ds.map(lambda sample: torch.from_numpy(cropped(sample["jpg"]).copy()))
    return torch.utils.data.DataLoader(ds, BATCH, num_workers=WORKERS)


def read(reader: str, place: str, first_shard: int) -> None:
    """Print the seconds to the first batch, and the images per second after the first shard."""
    if reader == "ours":
        from towerpack.dataflow import BatchData, PrefetchData, TarData  # noqa: F401
    start = time.perf_counter()
    first_s = since = 0.0
    count = counted = 0
    for images in globals()[reader](place):
        count += len(images)
        first_s = first_s or time.perf_counter() - start
        if count >= first_shard and not since:
            since, counted = time.perf_counter(), count
    rate = (count - counted) / (time.perf_counter() - since)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_ms = sum(u.ru_utime + u.ru_stime for u in used) * 1000 / count
    total_s = time.perf_counter() - start
    print(json.dumps({"first_s": first_s, "rate": rate, "cpu_ms": cpu_ms, "total_s": total_s}))


def write(folder: Path, shards: int, images: int) -> None:
    """Write shards of noisy JPEGs of about 100 KB with their indexes."""
    import cv2

    from towerpack.dataflow import DataFromList, MapData, TarSerializer
    from towerpack.dataflow.formats.shards import index_shards

    def jpeg(i: int) -> dict[str, Any]:
        rng = np.random.default_rng(i)
        image = cv2.resize(rng.integers(0, 256, (190, 250, 3), np.uint8), (500, 375))
        return {"jpg": cv2.imencode(".jpg", image)[1].tobytes(), "cls": i}

    ds = MapData(DataFromList(range(shards * images)), jpeg)
    TarSerializer.save(ds, folder / "d-%03d.tar", datapoints_per_file=images)
    list(index_shards(f"{folder}/d-*.tar"))


def main() -> None:
    """Write, serve and read."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in {"rounds": 5, "delay-ms": 20, "shards": 4, "images": 250}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--peers")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder, cache = Path(temporary, "data"), Path(temporary, "cache")
        folder.mkdir()
        write(folder, args.shards, args.images)
        command = [sys.executable, __file__, "serve", str(folder), str(args.delay_ms / 1000)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            url = f"http://127.0.0.1:{int(server.stdout.readline())}"
            files = f"d-{{000..{args.shards - 1:03d}}}.tar"

            def run(reader: str, place: str, python: str = sys.executable) -> dict[str, float]:
                command = [python, __file__, "read", reader, place, str(args.images)]
                env = {**os.environ, "TOWERPACK_CACHE": f"{cache}:8GB"}
                done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE)
                return json.loads(done.stdout.splitlines()[-1])

            found: dict[str, list[dict[str, float]]] = {}
            for number in range(args.rounds):
                shutil.rmtree(cache, ignore_errors=True)
                found.setdefault("local", []).append(run("ours", f"{folder}/{files}"))
                found.setdefault("cold", []).append(run("ours", f"{url}/{files}"))
                found.setdefault("warm", []).append(run("ours", f"{url}/{files}"))
                if args.peers:
                    result = run("webdataset", f"{url}/{files}", args.peers)
                    found.setdefault("webdataset", []).append(result)
                print(number, {k: [round(x, 2) for x in v[-1].values()] for k, v in found.items()})
            server.terminate()
    for name, turns in found.items():
        ratios = [t["rate"] / base["rate"] for t, base in zip(turns, found["local"], strict=True)]
        rate = statistics.median(t["rate"] for t in turns)
        first = statistics.median(t["first_s"] for t in turns)
        ratio = statistics.median(ratios)
        cpu = statistics.median(t["cpu_ms"] for t in turns)
        total = statistics.median(t["total_s"] for t in turns)
        print(
            f"{name:10} {rate:7.0f} images/s, {ratio:.2f} of local; {cpu:.2f} ms of processor time "
            f"per image; first batch {first:.2f} s, all {total:.2f} s"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2], float(sys.argv[3]))
    elif sys.argv[1:2] == ["read"]:
        read(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        main()
