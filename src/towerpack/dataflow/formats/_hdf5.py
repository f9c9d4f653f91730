from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import BatchError, ConfigError, DataFlowError, FormatError
from towerpack._core.extras import require
from towerpack.dataflow._flow import DataFlow, length_of, read_pass
from towerpack.dataflow._plan import Node
from towerpack.dataflow._user_files import PathLike, PerProcess, check_expansion, file_of, reading
from towerpack.dataflow.arguments import names_of
from towerpack.dataflow.content import content_of_files
from towerpack.dataflow.datapoints import (
    Block,
    Columns,
    Positions,
    describe,
    describe_datapoint,
    values_of,
)
from towerpack.dataflow.formats._writing import (
    RAGGED,
    check_finite,
    is_utf8,
    stack_for_file,
    whole_file,
)
from towerpack.dataflow.pipeline_names import Length
from towerpack.dataflow.sources._memory import PlannedSource

_CHUNK: Final = 256
_CHUNK_BYTES: Final = 1 << 20
# A chunk that does not fit in HDF5's cache (1 MB by default) is decompressed for every row.
_CACHE_BYTES: Final = 32 << 20


class HDF5Data(PlannedSource[Node]):
    """Source of an HDF5 file: datapoint i is a list with row i of each data set.

    Rows are read on demand. Rows of a batch are read in the order of the file, even if shuffled.
    Strings are returned as `str`. Data in other files (external links and storage, virtual data
    sets) are an error unless `trusted`, because they could point to any file of the user.

    Thread- and fork-safe (HDF5 lets one thread read at a time); resumes at once.

    Args:
        path: The file.
        data_paths: Paths of the data sets in the file, such as `["images", "train/labels"]`.
        shuffle: Shuffle every pass differently, as `ShuffleData` does.
        seed: Seed of the shuffle (default: the seed of the run).
        trusted: Also read data that the file stores in other files.

    Raises:
        ConfigError: The file or a data set does not exist, or data sets differ in length.
        FormatError: The file is damaged, or stores data in other files.
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
            raise ConfigError("data_paths must name at least one data set, got none.")
        node = HDF5Node(self.path, self.data_paths, trusted)
        super().__init__(node, shuffle=shuffle, seed=seed)

    def content(self) -> str:
        return f"{super().content()}, {content_of_files([self.path])}"

    def arguments(self) -> str:
        return f"{self.path.name}, {', '.join(self.data_paths)}"


class HDF5Node(Node):
    def __init__(self, path: Path, names: list[str], trusted: bool) -> None:
        self._path = path
        self._names = names
        self._data = PerProcess(partial(_open, path, names, trusted))
        data_sets = _open(path, names, trusted)
        self.size = data_sets[0].size
        row_bytes = sum(data_set.row_bytes for data_set in data_sets)
        self.chunk = max(1, min(_CHUNK, _CHUNK_BYTES // max(1, row_bytes)))

    def read(self, epoch: int, positions: Positions) -> Block:
        columns: list[NDArray[Any]] = []
        for name, data_set in zip(self._names, self._data.get(), strict=True):
            with reading(self._path, f"an HDF5 file (data set {name!r})"):
                columns.append(data_set.read(positions))
        return Columns(columns, len(positions))


class _DataSet:
    def __init__(self, h5py: Any, file: Any, path: Path, name: str, trusted: bool) -> None:
        if name not in file:
            names = ", ".join(_names(h5py, file)[:20])
            what = f"{path} has no data set {name!r}."
            raise ConfigError(what, got=names or "a file without data sets")
        data = file[name]
        if not isinstance(data, h5py.Dataset) or not data.shape:
            what = f"{name!r} of {path} has no rows."
            raise ConfigError(what, got=f"{data}", expected="a data set with rows")
        if not trusted:
            if data.file.filename != file.filename or data.external or data.is_virtual:
                raise FormatError(
                    f"The data set {name!r} of {path} is stored in another file.",
                    fix="pass trusted=True if you trust the source of the file",
                )
            check_expansion(data.nbytes, path.stat().st_size, f"the data set {name!r}", path)
        self.size = len(data)
        self.row_bytes = data.dtype.itemsize * math.prod(data.shape[1:])
        self._data = data
        strings = h5py.check_string_dtype(data.dtype) is not None
        self._reader = data.asstr() if strings else data
        self._dtype = np.dtype(object) if strings else data.dtype

    def read(self, positions: Positions) -> NDArray[Any]:
        reader = self._reader
        if isinstance(positions, range):
            return reader[positions.start : positions.stop]
        rows, inverse = np.unique(positions, return_inverse=True)
        out = np.empty((len(rows), *self._data.shape[1:]), self._dtype)
        # Indexing with a list in h5py takes twice as long as this loop.
        for index, row in enumerate(rows.tolist()):
            out[index] = reader[row]
        return out[inverse]


def _open(path: Path, names: list[str], trusted: bool) -> list[_DataSet]:
    h5py: Any = require("h5py", extra="formats", needed_for="HDF5Data")
    with reading(path, "an HDF5 file"):
        file: Any = h5py.File(path, "r", rdcc_nbytes=_CACHE_BYTES)
        try:
            data_sets = [_DataSet(h5py, file, path, name, trusted) for name in names]
            if len({data_set.size for data_set in data_sets}) != 1:
                sizes = zip(names, (data_set.size for data_set in data_sets), strict=True)
                raise ConfigError(
                    f"The data sets of {path} must have the same number of rows.",
                    got=", ".join(f"{name}: {size}" for name, size in sizes),
                )
        except BaseException:
            # The traceback would keep the file open, and HDF5 would return its cached contents
            # to the next open of this path, even if the file was replaced.
            file.close()
            raise
    return data_sets


def data_sets_of(path: PathLike) -> list[str]:
    """Return the paths of the data sets of a file that have rows."""
    h5py: Any = require("h5py", extra="formats", needed_for="HDF5Data")
    with reading(path, "an HDF5 file"), h5py.File(path, "r") as file:
        return _names(h5py, file)


def _names(h5py: Any, file: Any) -> list[str]:
    items: dict[str, Any] = {}
    file.visititems(items.__setitem__)
    return [name for name, it in items.items() if isinstance(it, h5py.Dataset) and it.shape]


class HDF5Serializer:
    """Serializer of flows to HDF5 files with one data set per component.

    Strings have variable length. Bytes are an error, because HDF5 would return them as `str`.
    """

    @staticmethod
    def save(df: DataFlow, path: PathLike, data_paths: Sequence[str]) -> None:
        """Write one pass of a flow, a few datapoints at a time.

        Args:
            df: Finite flow of datapoints whose components stack.
            path: File to write. It appears, or replaces an older file, when it is complete.
            data_paths: Data set of each component, such as `["images", "labels"]`.

        Raises:
            BatchError: Datapoints do not stack.
            ConfigError: The flow is empty or infinite, the number of components differs from
                `data_paths`, or HDF5 would not return a component unchanged.
            DataFlowError: The flow has fewer or more datapoints than its length says.
        """
        h5py: Any = require("h5py", extra="formats", needed_for="HDF5Serializer.save")
        check_finite(df)
        names = names_of(data_paths)
        size = length_of(df)
        with whole_file(path) as temporary, h5py.File(temporary, "w") as file:
            written, datapoints = 0, read_pass(df, keep=True)
            while rows := list(islice(datapoints, _CHUNK)):
                components = values_of(stack_for_file(rows))
                if len(components) != len(names):
                    raise ConfigError(
                        f"Datapoints must have {len(names)} components, one for each data path.",
                        got=describe_datapoint(rows[0]),
                    )
                if size is not None and written + len(rows) > size:
                    raise _unlike(df, "has more", size)
                for name, component in zip(names, components, strict=True):
                    _append(file, name, _in_hdf5(h5py, name, component), written, size)
                written += len(rows)
            if not written:
                raise ConfigError(f"{df} has no datapoints to save.")
            if size not in (None, written):
                raise _unlike(df, f"ended after {written}", size)

    @staticmethod
    def load(path: PathLike, data_paths: Sequence[str], shuffle: bool = True) -> DataFlow:
        """Return the saved flow. Datapoints are lists.

        Args:
            path, data_paths, shuffle: See `HDF5Data`.
        """
        return HDF5Data(path, data_paths, shuffle)


def _unlike(df: DataFlow, what: str, size: Length) -> DataFlowError:
    return DataFlowError(
        f"{df} {what} datapoints, although its length is {size}.",
        fix="correct its __len__, or raise TypeError there if the length is unknown",
    )


def _append(file: Any, name: str, column: NDArray[Any], written: int, size: Length) -> None:
    rest = column.shape[1:]
    if not written:
        # A flow of unknown length needs a data set that can grow.
        options = {"maxshape": (None, *rest), "chunks": True} if size is None else {}
        file.create_dataset(name, (size or 0, *rest), column.dtype, **options)
    data_set = file[name]
    if data_set.dtype != column.dtype or data_set.shape[1:] != rest:
        raise BatchError(
            f"{data_set.name!r} has another dtype or shape from datapoint {written} on.",
            got=f"{column.dtype} {list(rest)}",
            expected=f"{data_set.dtype} {list(data_set.shape[1:])}, as before",
            fix=RAGGED,
        )
    if len(data_set) < written + len(column):
        data_set.resize(written + len(column), axis=0)
    data_set[written : written + len(column)] = column


def _in_hdf5(h5py: Any, name: str, component: Any) -> NDArray[Any]:
    """Convert a component for HDF5. Raise an error for values that HDF5 would change."""
    array: NDArray[Any] = np.asarray(component)
    if array.dtype.kind in "biufc":
        return array
    for item in array.ravel().tolist():
        if not isinstance(item, str) or not is_utf8(item):
            raise ConfigError(
                f"HDF5 cannot store the type {describe(item)}, which {name!r} contains.",
                got=f"{item!r:.80}",
                expected="numbers, booleans, and strings without NUL",
                fix="use LMDBSerializer, or convert the values (dates with .astype('i8'))",
            )
    return array.astype(h5py.string_dtype())
