"""HDF5 files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, FormatError
from towerpack._core.extras import require
from towerpack.dataflow._arguments import names_of
from towerpack.dataflow._blocks import Block, Columns, Positions
from towerpack.dataflow._content import content_of_files
from towerpack.dataflow._opening import PathLike, PerProcess, check_expansion, file_of, reading
from towerpack.dataflow._plan import Node
from towerpack.dataflow.formats._hdf5_strings import StringRows, string_rows
from towerpack.dataflow.sources._planned import PlannedSource

_CHUNK = 256
_CHUNK_BYTES = 1 << 20
# Rows are read one by one or in runs, so a chunk that does not fit in HDF5's cache (1 MB by
# default) would be decompressed again for each of them.
_CACHE_BYTES = 32 << 20


class HDF5Data(PlannedSource[Node]):
    """Datapoint i is row i of each data set, as a list.

    Nothing is loaded beforehand: rows are read where they lie, those of a batch in the order of the
    file, also when shuffled. Each process opens the file itself.

    Strings are `str`; those of variable length are read without the HDF5 library, which loops for
    ever over some wrong bytes among them. Two things are read only from files that you trust. Other
    data of variable length (ragged arrays; strings that are compressed by anything but gzip, have a
    fill value, or lie in the header), for that reason. And data that the file keeps in other files
    (external links and storage, virtual data sets): these could be any file of yours.

    Contract: in order, or exactly shuffled; as long as the data sets; random if shuffled; thread-
    and fork-safe (HDF5 lets one thread read at a time); resumable at once.

    Args:
        path: The file.
        data_paths: Of the data sets in it, such as `["images", "train/labels"]`.
        shuffle: Give every pass another order, as `ShuffleData` does.
        seed: For the shuffle alone; by default the run's.
        trusted: The file is known to be whole and honest: read all data of variable length, and
            data in other files.

    Raises:
        ConfigError: There is no such file or data set, or they differ in length.
        FormatError: The file is damaged, or has data that need `trusted`.
    """

    def __init__(
        self,
        path: PathLike,
        data_paths: Sequence[str],
        shuffle: bool = True,
        *,
        seed: int | None = None,
        trusted: bool = False,
    ) -> None:
        self.path = file_of(path)
        self.data_paths = names_of(data_paths)
        if not self.data_paths:
            raise ConfigError("HDF5Data was given no data_paths.", expected="one or more")
        node = HDF5Node(self.path, self.data_paths, trusted)
        super().__init__(node, shuffle=shuffle, seed=seed)

    def content(self) -> str:
        return f"{super().content()}, {self.data_paths}, {content_of_files([self.path])}"

    def arguments(self) -> str:
        return f"{self.path.name}, {', '.join(self.data_paths)}"


class HDF5Node(Node):
    """Reads rows as columns."""

    def __init__(self, path: Path, names: list[str], trusted: bool) -> None:
        self._path = path
        self._names = names
        self._data = PerProcess(partial(_open, path, names, trusted))
        # Closed again at once: this process may never read.
        data_sets = _open(path, names, trusted)
        self.size = data_sets[0].size
        row_bytes = sum(one.row_bytes for one in data_sets)
        self.chunk = max(1, min(_CHUNK, _CHUNK_BYTES // max(1, row_bytes)))

    def read(self, epoch: int, positions: Positions) -> Block:
        data_sets = self._data.get()
        if isinstance(positions, range):
            runs, back = [(positions.start, positions.stop)], None
        else:
            wanted, back = np.unique(positions, return_inverse=True)
            runs = _runs(wanted)
        columns: list[NDArray[Any]] = []
        for name, data_set in zip(self._names, data_sets, strict=True):
            with reading(self._path, f"an HDF5 file (data set {name!r})"):
                column = data_set.read(runs)
            columns.append(column if back is None else column[back])
        return Columns(columns, len(positions))


class DataSet:
    """One data set of an open file.

    Args:
        data: The h5py data set.
        text: Its strings are to be decoded.
    """

    def __init__(self, data: Any, text: bool) -> None:
        self.data = data
        self.size = len(data)
        self.row_bytes = data.dtype.itemsize * math.prod(data.shape[1:])
        self._reader = data.asstr() if text else data

    def read(self, runs: list[tuple[int, int]]) -> NDArray[Any]:
        """The rows of some ranges, one after another."""
        reader = self._reader
        if len(runs) == 1:
            return reader[slice(*runs[0])]
        count = sum(stop - start for start, stop in runs)
        out = np.empty((count, *self.data.shape[1:]), self.data.dtype)
        done = 0
        for start, stop in runs:
            # h5py's own reading of lists of indices takes twice the time of this loop.
            if stop == start + 1:
                out[done] = reader[start]
            else:
                out[done : done + stop - start] = reader[start:stop]
            done += stop - start
        return out


def _runs(wanted: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Increasing positions as ranges."""
    breaks = np.flatnonzero(np.diff(wanted) != 1) + 1
    starts = wanted[np.concatenate(([0], breaks))]
    stops = wanted[np.concatenate((breaks - 1, [len(wanted) - 1]))] + 1
    return list(zip(starts.tolist(), stops.tolist(), strict=True))


def _open(path: Path, names: list[str], trusted: bool) -> list[DataSet | StringRows]:
    h5py: Any = require("h5py", extra="formats", needed_for="HDF5Data")
    with reading(path, "an HDF5 file"):
        file: Any = h5py.File(path, "r", rdcc_nbytes=_CACHE_BYTES)
        try:
            data_sets = [_data_set(h5py, file, path, name, trusted) for name in names]
            _check_sizes(path, names, data_sets)
        except BaseException:
            # The error's traceback would keep it open, and while it is, HDF5 gives what it knows of
            # it to whoever opens the path again, though another file was written there.
            file.close()
            raise
    return data_sets


def _check_sizes(path: Path, names: list[str], data_sets: list[DataSet | StringRows]) -> None:
    sizes = {name: one.size for name, one in zip(names, data_sets, strict=True)}
    if len(set(sizes.values())) != 1:
        raise ConfigError(
            f"The data sets of {path} differ in length.",
            got=", ".join(f"{name}: {size}" for name, size in sizes.items()),
            expected="the same number of rows in each",
        )


def _data_set(h5py: Any, file: Any, path: Path, name: str, trusted: bool) -> DataSet | StringRows:
    if name not in file:
        names = _names(h5py, file)
        raise ConfigError(
            f"{path} has no data set {name!r}.", got=", ".join(names[:20]) or "a file without any"
        )
    data = file[name]
    if not isinstance(data, h5py.Dataset) or not data.shape:
        raise ConfigError(
            f"{name!r} of {path} has no rows.", got=f"{data}", expected="a data set with rows"
        )
    if h5py.check_ref_dtype(data.dtype) is not None:
        raise ConfigError(f"{name!r} of {path} holds references, not data.")
    elsewhere = data.file.filename != file.filename or data.external or data.is_virtual
    if not trusted:
        if elsewhere:
            raise _needs_trust(path, name, "lies in another file")
        check_expansion(data.nbytes, path.stat().st_size, f"the data set {name!r}", path)
    strings = None if elsewhere else string_rows(h5py, data, path)
    if strings is not None:
        return strings
    if data.dtype.hasobject and not trusted:
        problem = "has elements of variable length, on which HDF5 can hang if they are damaged"
        raise _needs_trust(path, name, problem)
    return DataSet(data, h5py.check_string_dtype(data.dtype) is not None)


def _needs_trust(path: Path, name: str, problem: str) -> FormatError:
    return FormatError(
        f"{name!r} of {path} {problem}.", fix="trusted=True if you know where the file comes from"
    )


def data_sets_of(path: PathLike) -> list[str]:
    """The paths of the data sets in a file that have rows.

    Raises:
        FormatError: The file is damaged.
    """
    h5py: Any = require("h5py", extra="formats", needed_for="HDF5Data")
    with reading(path, "an HDF5 file"), h5py.File(path, "r") as file:
        return _names(h5py, file)


def _names(h5py: Any, file: Any) -> list[str]:
    found: list[str] = []

    def visit(name: str, thing: Any) -> None:
        if isinstance(thing, h5py.Dataset) and getattr(thing, "shape", None):
            found.append(name)

    file.visititems(visit)
    return found
