"""A program that loads data with workers, to be killed, interrupted and starved.

    python loading_program.py forever|interrupt|big

It says on stdout which workers it has. There is no `if __name__ == "__main__"`, on purpose.
"""

import os
import sys

import numpy as np

from processes import children_of
from towerpack.dataflow import BatchData, DataFromArrays, MapData, PrefetchData, RepeatedData

what = sys.argv[1]
rows = 1 << 20 if what == "big" else 64


def widen(dp):
    return (np.full(rows, dp[0], np.uint8), dp[0])


ds = MapData(DataFromArrays(np.arange(200)), lambda dp: widen(dp))
ds = PrefetchData(BatchData(ds, 20), num_proc=2)
ds = RepeatedData(ds, 1 if what == "big" else -1)
try:
    total = 0
    for count, (block, index) in enumerate(ds.iterate(seed=0)):
        assert (block[:, 0] == index.astype(np.uint8)).all()
        total += int(block[:, -1].sum(dtype=np.int64))
        if count == 3:
            print("workers", *children_of(os.getpid()), flush=True)
    print("sum", total, flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
