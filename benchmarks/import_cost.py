"""What importing costs: time and memory in fresh interpreters.

    python benchmarks/import_cost.py [repeats]

The aim for `towerpack` and `towerpack.dataflow` is 0.3 s and 60 MB, the interpreter included.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from importlib.util import find_spec

PROGRAM = """
import resource, sys, time
start = time.perf_counter()
{statement}
seconds = time.perf_counter() - start
unit = 1 if sys.platform == "darwin" else 1024
print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6)
"""
CASES = ["numpy", "towerpack", "towerpack.dataflow", "towerpack.cli", "tensorflow"]


def measure(statement: str) -> tuple[float, float]:
    """Seconds for the statement, and the largest memory of the process in MB."""
    command = [sys.executable, "-c", PROGRAM.format(statement=statement)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, megabytes = done.stdout.split()
    return float(seconds), float(megabytes)


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    print(f"{'median of ' + str(repeats):<22}{'s':>8}{'MB':>8}")
    for module in CASES:
        if find_spec(module) is None:
            continue
        measure(f"import {module}")  # the first import writes byte code and fills disk caches
        rows = [measure(f"import {module}") for _ in range(repeats)]
        seconds, megabytes = (statistics.median(column) for column in zip(*rows, strict=True))
        print(f"{module:<22}{seconds:>8.3f}{megabytes:>8.0f}")


if __name__ == "__main__":
    main()
