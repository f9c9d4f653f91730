"""Rows per second of a Hugging Face data set: `HFData`, `to_tf_dataset` and PyTorch's loader.

    python benchmarks/huggingface.py FOLDER [--rows 1000000] [--batch 128] [--seconds 3] [--turns 5]

Each contender reads the same Arrow files in a process of its own, shuffled and in order: columns
of numbers (an integer, a float and a list of 8 integers), or an integer and 400 bytes. PyTorch's
loader runs if the interpreter has PyTorch. Contenders take turns, and the medians count. The time
of all threads counts for `rows_per_cpu_s`, so that other programs disturb it less. `anonymous_mb`
is the growth of the process's own memory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np


def make(folder: Path, rows: int) -> None:
    """Write the data sets."""
    import datasets

    datasets.disable_progress_bars()

    def numbers() -> Iterator[dict[str, Any]]:
        rng = np.random.default_rng(0)
        for i in range(rows):
            yield {"id": i, "x": float(i), "tokens": rng.integers(0, 999, 8)}

    def images() -> Iterator[dict[str, Any]]:
        rng = np.random.default_rng(0)
        for i in range(rows):
            yield {"id": i, "image": rng.bytes(400)}

    for name, rows_of in {"numbers": numbers, "images": images}.items():
        made: Any = datasets.Dataset.from_generator(rows_of, cache_dir=str(folder / "cache"))
        made.save_to_disk(str(folder / name))


def towerpack(data: Any, batch: int, shuffle: bool) -> Iterable[Any]:
    from towerpack.dataflow import BatchData, HFData, ShuffleData

    flow = HFData(data)
    return BatchData(ShuffleData(flow) if shuffle else flow, batch)


def tensorflow(data: Any, batch: int, shuffle: bool) -> Iterable[Any]:
    return data.to_tf_dataset(batch_size=batch, shuffle=shuffle, drop_remainder=True)


def pytorch(data: Any, batch: int, shuffle: bool) -> Iterable[Any]:
    from torch.utils.data import DataLoader

    return DataLoader(data.with_format("torch"), batch, shuffle=shuffle, drop_last=True)


CONTENDERS: dict[str, Callable[[Any, int, bool], Iterable[Any]]] = {
    "towerpack": towerpack,
    "tensorflow": tensorflow,
    "pytorch": pytorch,
}


def anonymous_mb() -> float:
    """Memory of this process without mapped files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def measure(folder: Path, contender: str, batch: int, seconds: float) -> None:
    """Read batches for some time, and print the rates."""
    import datasets

    name, order, loader = contender.split()
    data: Any = datasets.load_from_disk(str(folder / name))
    batches = CONTENDERS[loader](data, batch, order == "shuffled")
    iterator = iter(batches)
    for _ in range(20):
        next(iterator)
    count, memory, wall, cpu = 0, anonymous_mb(), time.perf_counter(), time.process_time()
    while time.perf_counter() < wall + seconds:
        if next(iterator, None) is None:
            iterator = iter(batches)
        count += batch
    rates = count / (time.perf_counter() - wall), count / (time.process_time() - cpu)
    print(json.dumps([*map(round, rates), round(anonymous_mb() - memory)]))


def main() -> None:
    """Measure all contenders."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only:
        measure(args.folder, args.only, args.batch, args.seconds)
        return
    if not (args.folder / "images").exists():
        make(args.folder, args.rows)
    for case in ("numbers shuffled", "numbers in-order", "images shuffled", "images in-order"):
        results: dict[str, list[list[int]]] = {name: [] for name in CONTENDERS}
        for _ in range(args.turns):
            for name, turns in results.items():
                command = [sys.executable, __file__, *sys.argv[1:], "--only", f"{case} {name}"]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode == 0:
                    turns.append(json.loads(done.stdout.splitlines()[-1]))
        for name, turns in results.items():
            medians = [statistics.median(column) for column in zip(*turns, strict=True)]
            columns = zip(("rows_per_s", "rows_per_cpu_s", "anonymous_mb"), medians, strict=False)
            print(f"{case} {name}:", dict(columns) or "not available", flush=True)


if __name__ == "__main__":
    main()
