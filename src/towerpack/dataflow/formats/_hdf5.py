"""HDF5 files, read by rows, and flows written to them."""

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
# Rows are read one by one or in runs, so a chunk that does not fit in HDF5's cache (1 MB by
# default) would be decompressed again for each of them.
_CACHE_BYTES: Final = 32 << 20


class HDF5Data(PlannedSource[Node]):
    """Datapoint i is row i of each data set, as a list.

    Nothing is loaded beforehand: rows are read where they lie, those of a batch in the order of the
    file, also when shuffled. Each process opens the file itself.

    Strings are `str`. Data that the file keeps in other files (external links and storage, virtual
    data sets) are read only if you trust it: these could be any file of yours.

    Contract: in order, or exactly shuffled; as long as the data sets; random if shuffled; thread-
    and fork-safe (HDF5 lets one thread read at a time); resumable at once.

    Args:
        path: The file.
        data_paths: Of the data sets in it, such as `["images", "train/labels"]`.
        shuffle: Give every pass another order, as `ShuffleData` does.
        seed: For the shuffle alone; by default the run's.
        trusted: Also read data in other files.

    Raises:
        ConfigError: There is no such file or data set, or they differ in length.
        FormatError: The file is damaged, or has data in other files.
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
        return f"{super().content()}, {content_of_files([self.path])}"

    def arguments(self) -> str:
        return f"{self.path.name}, {', '.join(self.data_paths)}"


class HDF5Node(Node):
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
        columns: list[NDArray[Any]] = []
        for name, data_set in zip(self._names, self._data.get(), strict=True):
            with reading(self._path, f"an HDF5 file (data set {name!r})"):
                columns.append(data_set.read(positions))
        return Columns(columns, len(positions))


class _DataSet:
    """One data set of an open file; its strings are decoded."""

    def __init__(self, h5py: Any, file: Any, path: Path, name: str, trusted: bool) -> None:
        if name not in file:
            names = ", ".join(_names(h5py, file)[:20])
            what = f"{path} has no data set {name!r}."
            raise ConfigError(what, got=names or "a file without any")
        data = file[name]
        if not isinstance(data, h5py.Dataset) or not data.shape:
            what = f"{name!r} of {path} has no rows."
            raise ConfigError(what, got=f"{data}", expected="a data set with rows")
        if not trusted:
            if data.file.filename != file.filename or data.external or data.is_virtual:
                raise FormatError(
                    f"{name!r} of {path} lies in another file.",
                    fix="trusted=True if you know where the file comes from",
                )
            check_expansion(data.nbytes, path.stat().st_size, f"the data set {name!r}", path)
        self.size = len(data)
        self.row_bytes = data.dtype.itemsize * math.prod(data.shape[1:])
        self._data = data
        strings = h5py.check_string_dtype(data.dtype) is not None
        self._reader = data.asstr() if strings else data
        self._dtype = np.dtype(object) if strings else data.dtype

    def read(self, positions: Positions) -> NDArray[Any]:
        """Rows, each read once, in the order of the file."""
        reader = self._reader
        if isinstance(positions, range):
            return reader[positions.start : positions.stop]
        wanted, back = np.unique(positions, return_inverse=True)
        out = np.empty((len(wanted), *self._data.shape[1:]), self._dtype)
        # h5py's own reading of lists of indices takes twice the time of this loop.
        for place, row in enumerate(wanted.tolist()):
            out[place] = reader[row]
        return out[back]


def _open(path: Path, names: list[str], trusted: bool) -> list[_DataSet]:
    h5py: Any = require("h5py", extra="formats", needed_for="HDF5Data")
    with reading(path, "an HDF5 file"):
        file: Any = h5py.File(path, "r", rdcc_nbytes=_CACHE_BYTES)
        try:
            data_sets = [_DataSet(h5py, file, path, name, trusted) for name in names]
            if len({one.size for one in data_sets}) != 1:
                sizes = zip(names, data_sets, strict=True)
                raise ConfigError(
                    f"The data sets of {path} differ in length.",
                    got=", ".join(f"{name}: {one.size}" for name, one in sizes),
                    expected="the same number of rows in each",
                )
        except BaseException:
            # The error's traceback would keep it open, and while it is, HDF5 gives what it knows of
            # it to whoever opens the path again, though another file was written there.
            file.close()
            raise
    return data_sets


def data_sets_of(path: PathLike) -> list[str]:
    """The paths of the data sets in a file that have rows."""
    h5py: Any = require("h5py", extra="formats", needed_for="HDF5Data")
    with reading(path, "an HDF5 file"), h5py.File(path, "r") as file:
        return _names(h5py, file)


def _names(h5py: Any, file: Any) -> list[str]:
    found: dict[str, Any] = {}
    file.visititems(found.__setitem__)
    return [name for name, it in found.items() if isinstance(it, h5py.Dataset) and it.shape]


class HDF5Serializer:
    """Write a flow to an HDF5 file of stacked components, and read it again.

    Strings are stored with their lengths. Bytes are refused: HDF5's would come back as `str`.
    """

    @staticmethod
    def save(df: DataFlow, path: PathLike, data_paths: Sequence[str]) -> None:
        """Write one pass of a flow, a few datapoints at a time.

        Args:
            df: Its datapoints have components that stack.
            path: The file; it appears, or replaces an older one, when it is whole.
            data_paths: Where each component goes, such as `["images", "labels"]`.

        Raises:
            BatchError: Datapoints do not stack.
            ConfigError: There are no datapoints, no end of them, components of a type that HDF5
                does not give back as it was, or other `data_paths` than components.
            DataFlowError: There are fewer or more datapoints than the flow's length says.
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
                        f"Datapoints do not have {len(names)} components, as data_paths has names.",
                        got=describe_datapoint(rows[0]),
                    )
                if size is not None and written + len(rows) > size:
                    raise _unlike(df, "has more", size)
                for name, component in zip(names, components, strict=True):
                    _append(file, name, _in_hdf5(h5py, name, component), written, size)
                written += len(rows)
            if not written:
                raise ConfigError(f"{df} has no datapoints, and so no components to store.")
            if size not in (None, written):
                raise _unlike(df, f"ended after {written}", size)

    @staticmethod
    def load(path: PathLike, data_paths: Sequence[str], shuffle: bool = True) -> DataFlow:
        """The flow that was saved; datapoints are lists. As `HDF5Data`."""
        return HDF5Data(path, data_paths, shuffle)


def _unlike(df: DataFlow, what: str, size: Length) -> DataFlowError:
    return DataFlowError(
        f"{df} {what} datapoints, although its length is {size}.",
        fix="correct its __len__, or let it raise TypeError if the length is not known",
    )


def _append(file: Any, name: str, column: NDArray[Any], written: int, size: Length) -> None:
    rest = column.shape[1:]
    if not written:
        # Of unknown length it grows, in chunks.
        options = {"maxshape": (None, *rest), "chunks": True} if size is None else {}
        file.create_dataset(name, (size or 0, *rest), column.dtype, **options)
    data_set = file[name]
    if data_set.dtype != column.dtype or data_set.shape[1:] != rest:
        raise BatchError(
            f"{data_set.name!r} changes from datapoint {written} on.",
            got=f"{column.dtype} {list(rest)}",
            expected=f"{data_set.dtype} {list(data_set.shape[1:])}, as before",
            fix=RAGGED,
        )
    if len(data_set) < written + len(column):
        data_set.resize(written + len(column), axis=0)
    data_set[written : written + len(column)] = column


def _in_hdf5(h5py: Any, name: str, component: Any) -> NDArray[Any]:
    """The array that a component is stored as; refuses what HDF5 would not give back as it is."""
    array: NDArray[Any] = np.asarray(component)
    if array.dtype.kind in "biufc":
        return array
    for item in array.ravel().tolist():
        if not isinstance(item, str) or not is_utf8(item):
            raise ConfigError(
                f"HDF5 does not store {describe(item)}, which {name!r} holds.",
                got=f"{item!r:.80}",
                expected="numbers, booleans, and strings without NUL",
                fix="LMDBSerializer; or convert them: dates with .astype('i8')",
            )
    return array.astype(h5py.string_dtype())
