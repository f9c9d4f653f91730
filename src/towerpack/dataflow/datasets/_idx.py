"""IDX files, the format of MNIST: a magic number, the lengths of the axes, bytes."""

from __future__ import annotations

import gzip
import math
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import FormatError
from towerpack.dataflow._opening import check_expansion, reading

_UINT8 = 8


def read_idx(path: Path, *, num_axes: int) -> NDArray[np.uint8]:
    """The array in an IDX file of uint8, gzipped or not.

    Raises:
        FormatError: The file is damaged, or holds something else.
    """
    with open(path, "rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
    with (gzip.open if compressed else open)(path, "rb") as content:
        with reading(path, "an IDX file"):
            magic, *shape = struct.unpack(f">{1 + num_axes}I", content.read(4 * (1 + num_axes)))
        expected = _UINT8 << 8 | num_axes
        if magic != expected:
            raise FormatError(
                f"{path} is not an IDX file of uint8 with {num_axes} axes.",
                got=f"magic number {magic}",
                expected=str(expected),
                fix="delete it and fetch it again",
            )
        nbytes = math.prod(shape)
        check_expansion(nbytes, path.stat().st_size, "the array", path)
        with reading(path, "an IDX file"):
            data = content.read(nbytes + 1)
    if len(data) != nbytes:
        raise FormatError(
            f"{path} does not hold what its header says.",
            got=f"{len(data):,} bytes" if len(data) < nbytes else f"more than {nbytes:,} bytes",
            expected=f"{nbytes:,} bytes for {list(shape)}",
            fix="it was cut off or damaged; delete it and fetch it again",
        )
    return np.frombuffer(data, np.uint8).reshape(shape)
