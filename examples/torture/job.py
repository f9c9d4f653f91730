"""The task of the four programs: data, faults that `torture.py` plants, progress. NumPy only.

python by_LIBRARY.py DIRECTORY [--workers N] [--epochs N] [--width N] [--ranks N]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import numpy as np

ROWS, BATCH = 640, 32
STEPS = ROWS // BATCH  # of an epoch


class Job:
    """Arguments and data of a start: fit a line whose slope in the validation data is half."""

    def __init__(self, arguments: list[str] | None = None) -> None:
        parser = argparse.ArgumentParser()
        parser.add_argument("directory", type=Path)
        for name, default in (("workers", 2), ("epochs", 6), ("width", 16), ("ranks", 1)):
            parser.add_argument(f"--{name}", type=int, default=default)
        parser.parse_args(arguments, namespace=self)
        self.run_dir = self.directory / "run"
        rng = np.random.default_rng(0)
        self.x, self.x_val = rng.normal(size=(2, ROWS, self.width)).astype(np.float32)
        slope = rng.normal(size=(self.width, 1)).astype(np.float32) / self.width**0.5
        self.y, self.y_val = self.x @ slope, self.x_val @ slope / 2

    def say(self, step: int) -> None:
        if step % 5 == 0:
            print(f"step {step}", flush=True)

    def finish(self, weights: list[np.ndarray], best: float) -> None:
        """Leave the final weights, and the validation cost of the best checkpoint."""
        np.savez(self.directory / "weights.npz", *weights)
        print(f"best {best:.6f}\ndone", flush=True)


def work(directory: Path, row: np.ndarray) -> np.ndarray:
    """Stand for the work that a data worker does with a row."""
    time.sleep(0.003)
    (directory / "workers" / str(os.getpid())).touch()
    for fault in ("nan", "error"):
        try:
            (directory / fault).unlink()  # by the first worker that comes
        except FileNotFoundError:
            continue
        if fault == "error":
            raise ValueError("this row is bad")
        print("A worker returns NaN.", file=sys.stderr, flush=True)
        return row * np.float32(np.nan)
    return row
