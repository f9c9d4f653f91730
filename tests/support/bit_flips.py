"""Damaged files, read in another process, because a library might crash or hang over them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# SIGALRM ends the process even inside a library that loops for ever.
_PROGRAM = """
import random, resource, signal, sys
from towerpack import ConfigError, FormatError
from towerpack.dataflow.formats import {reader}
resource.setrlimit(resource.RLIMIT_AS, ({memory_gb} << 30, {memory_gb} << 30))
content = open(sys.argv[1], "rb").read()
errors = 0
for seed in range({count}):
    rng = random.Random(seed)
    damaged = bytearray(content)
    for _ in range(rng.randint(1, 8)):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    path = sys.argv[2]
    open(path, "wb").write(damaged)
    print("seed", seed, file=sys.stderr, flush=True)
    signal.alarm(20)
    try:
        list({reader}(path{arguments}))
    except (ConfigError, FormatError):
        errors += 1
    signal.alarm(0)
print(errors)
"""


def errors_of_flipped_bits(
    path: Path, reader: str, arguments: str = "", *, count: int, memory_gb: int = 4
) -> int:
    """How many copies of a file, each with one to eight wrong bits, a reader refuses.

    Args:
        path: The whole file.
        reader: A name in `towerpack.dataflow.formats`.
        arguments: Further ones, as in a program, with a comma before them.
        count: How many copies.
        memory_gb: What the process may take.

    Raises:
        AssertionError: One of the copies crashed it, took 20 seconds, or raised anything but a
            `ConfigError` or a `FormatError`.
    """
    program = _PROGRAM.format(reader=reader, arguments=arguments, count=count, memory_gb=memory_gb)
    command = [sys.executable, "-c", program, str(path), str(path.with_name("flipped"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, f"status {done.returncode}\n{done.stderr[-2000:]}"
    return int(done.stdout)
