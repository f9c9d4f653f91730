"""Parts of `data_loading.py` that measure no rate: memory over epochs, and a large LMDB.

    python _loading_special.py memory towerpack|torch|... [--rows N]
    python _loading_special.py lmdb DIRECTORY [--rows N]

Both print one line of JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import _measure as measure
import numpy as np

ROW = 1024
WORKERS = 4
EPOCHS = 5


def memory_mb(kinds: tuple[str, ...] = ("Pss",)) -> float:
    """Memory of this process and its workers, shared pages counted once, in MB."""
    return sum(
        _rollup(pid, kind)
        for pid in [os.getpid(), *measure.descendants(os.getpid())]
        for kind in kinds
    )


def _rollup(pid: int, kind: str) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith(f"{kind}:")) / 1024


def make_rows(rows: int) -> np.ndarray:
    """A data set in memory."""
    array = np.empty((rows, ROW), np.uint8)
    rng = np.random.default_rng(0)
    for start in range(0, rows, 65536):
        part = array[start : start + 65536]
        part[:] = rng.integers(0, 256, part.shape, np.uint8)
    return array


def towerpack_epochs(rows: int) -> Callable[[int], Iterator[Any]]:
    from towerpack.dataflow import BatchData, DataFromArrays, MapData, PrefetchData, ShuffleData

    flow = ShuffleData(DataFromArrays(make_rows(rows)))
    flow = MapData(flow, lambda dp: (dp[0] ^ 1,))
    flow = PrefetchData(BatchData(flow, 256), num_proc=WORKERS)
    return lambda epoch: flow.iterate(seed=0, epoch=epoch)


class _Rows:
    def __init__(self, rows: int) -> None:
        self.rows = make_rows(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.rows[index] ^ 1


def torch_epochs(rows: int) -> Callable[[int], Iterator[Any]]:
    from torch.utils.data import DataLoader

    loader = DataLoader(
        _Rows(rows), batch_size=256, shuffle=True, num_workers=WORKERS, persistent_workers=True
    )
    return lambda epoch: iter(loader)


def grain_epochs(rows: int) -> Callable[[int], Iterator[Any]]:
    import grain
    from absl import flags

    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["benchmark"])
    data = grain.MapDataset.source(_Rows(rows)).shuffle(seed=0).batch(256).to_iter_dataset()
    data = data.mp_prefetch(grain.MultiprocessingOptions(num_workers=WORKERS))
    return lambda epoch: iter(data)


MEMORY = {"towerpack": towerpack_epochs, "torch": torch_epochs, "grain": grain_epochs}


def memory(name: str, rows: int) -> dict[str, Any]:
    """MB in all at the last batch of each epoch, and of the data alone."""
    epochs = MEMORY[name](rows)
    gc.collect()
    seen = []
    for epoch in range(EPOCHS):
        last = rows // 256 - 1
        for index, _ in enumerate(epochs(epoch)):
            if index == last:
                seen.append(round(memory_mb()))
    return {"data_mb": rows * ROW / 2**20, "epochs_mb": seen}


def lmdb(directory: Path, rows: int) -> dict[str, Any]:
    """Seconds to open and to the first shuffled record; memory of our own over an epoch."""
    path = directory / f"{rows}.lmdb"
    if not path.exists():
        write_lmdb(path, rows)
    from towerpack.dataflow import LMDBData, ShuffleData

    start = time.perf_counter()
    flow = ShuffleData(LMDBData(str(path), shuffle=False))
    length = len(flow)
    opened = time.perf_counter() - start
    iterator = flow.iterate(seed=0)
    next(iterator)
    first = time.perf_counter() - start
    private = ("Pss_Anon", "Pss_Shmem")
    begin, seen = memory_mb(private), []
    start = time.perf_counter()
    for count, _ in enumerate(iterator):
        if count % (rows // 10) == 0:
            seen.append(round(memory_mb(private) - begin, 1))
    rate = (length - 1) / (time.perf_counter() - start)
    return {"length": length, "open_s": opened, "first_s": first, "growth_mb": seen, "rate": rate}


def write_lmdb(path: Path, rows: int) -> None:
    """Keys as Caffe's tools and Tensorpack write them, values of 100 bytes."""
    import lmdb as library

    path.parent.mkdir(parents=True, exist_ok=True)
    environment = library.open(str(path), subdir=False, map_size=2 << 30, sync=False, lock=False)
    rng = np.random.default_rng(0)
    with environment.begin(write=True) as transaction, transaction.cursor() as cursor:
        cursor.putmulti(((b"%08d" % i, rng.bytes(100)) for i in range(rows)), append=True)
    environment.close()


def main() -> None:
    """Parse and measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["memory", "lmdb"])
    parser.add_argument("argument")
    parser.add_argument("--rows", type=int, default=1 << 20)
    arguments = parser.parse_args()
    if arguments.part == "memory":
        found = memory(arguments.argument, arguments.rows)
    else:
        found = lmdb(Path(arguments.argument), arguments.rows)
    print(json.dumps(found), flush=True)
    os._exit(0)  # how each ends is not what is measured


if __name__ == "__main__":
    main()
