"""Where the records of TFRecord files are."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import FormatError
from towerpack.dataflow._opening import PathLike
from towerpack.dataflow.formats._indexed_files import Version, version_of
from towerpack.dataflow.formats._npy import parse_npy
from towerpack.dataflow.formats._tfrecord_file import OVERHEAD, record_offsets
from towerpack.dataflow.formats._whole_file import whole_file


@dataclass(frozen=True)
class RecordIndex:
    """Flat arrays over all records of some files.

    Attributes:
        offsets: For each file where its records begin, and the last one ends.
        ends: For each file how many records there are up to its end.
        versions: For each file what it was when it was indexed.
    """

    offsets: NDArray[np.int64]
    ends: NDArray[np.int64]
    versions: list[Version]

    def find(self, position: int) -> tuple[int, int, int]:
        """Which file holds a record, where it begins, and where it ends."""
        file = int(self.ends.searchsorted(position, "right"))
        # Each file before this one has an offset more than records.
        start, stop = self.offsets[position + file : position + file + 2].tolist()
        return file, start, stop


def index_files(paths: Sequence[Path], index_dir: PathLike | None) -> RecordIndex:
    """Index files, or read what was kept in `index_dir` about them."""
    versions = [version_of(path) for path in paths]
    parts = [
        _indexed(path, version, index_dir) for path, version in zip(paths, versions, strict=True)
    ]
    ends = np.cumsum([len(part) - 1 for part in parts], dtype=np.int64)
    return RecordIndex(np.concatenate(parts), ends, versions)


def _indexed(path: Path, version: Version, index_dir: PathLike | None) -> NDArray[np.int64]:
    if index_dir is None:
        return record_offsets(path)
    name = hashlib.blake2b(os.fsencode(path.resolve()), digest_size=8).hexdigest()
    kept = Path(index_dir, f"{path.name}.{name}.npy")
    offsets = _kept(kept, version)
    if offsets is None:
        offsets = record_offsets(path)
        with whole_file(kept) as temporary, open(temporary, "wb") as file:
            np.save(file, np.concatenate((np.array(version, np.int64), offsets)))
    return offsets


def _kept(path: Path, version: Version) -> NDArray[np.int64] | None:
    """An index of this version of the file; `None` if there is none that is whole."""
    try:
        content = parse_npy(path.read_bytes(), path)
    except (FileNotFoundError, FormatError):
        return None
    if content.dtype != np.int64 or content.shape < (3,):
        return None
    offsets = content[2:]
    fits = (*content[:2].tolist(), offsets[0], offsets[-1]) == (*version, 0, version[0])
    return offsets if fits and (np.diff(offsets) >= OVERHEAD).all() else None
