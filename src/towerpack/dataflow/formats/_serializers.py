"""Whole flows in NumPy's and HDF5's files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import BatchError, ConfigError
from towerpack._core.extras import require
from towerpack.dataflow._arguments import names_of
from towerpack.dataflow._datapoints import (
    Datapoint,
    describe_datapoint,
    is_datapoint,
    keys_of,
    values_of,
)
from towerpack.dataflow._flow import DataFlow, length_of
from towerpack.dataflow._opening import PathLike
from towerpack.dataflow._stacking import stack_rows
from towerpack.dataflow.formats._codecs import check_finite
from towerpack.dataflow.formats._hdf5 import HDF5Data
from towerpack.dataflow.formats._npz import NumpyData
from towerpack.dataflow.formats._whole_file import whole_file
from towerpack.dataflow.stages._shuffle import ShuffleData

_BLOCK: Final = 256
_RAGGED: Final = "LMDBSerializer or TFRecordSerializer, which take datapoints of any shapes"


class NumpySerializer:
    """Writes a flow to an `.npz` file of stacked components, and reads it again.

    All of it is held in memory while it is written, not while it is read.
    """

    @staticmethod
    def save(df: DataFlow, path: PathLike) -> None:
        """Write one pass of a flow.

        Args:
            df: Its datapoints are dicts, lists or tuples, with components that stack. Those of
                dicts are stored under their names, others as `arr_0`, `arr_1`, ...
            path: The file; it appears, or replaces an older one, when it is whole.

        Raises:
            BatchError: They do not stack.
            ConfigError: There are no datapoints, or no end of them, or they hold what `.npz` cannot
                without pickle.
        """
        check_finite(df)
        rows = list(df)
        if not rows:
            raise ConfigError(f"{df} has no datapoints, and so no components to store.")
        stacked = stack_rows(rows)
        names = [name if isinstance(name, str) else f"arr_{name}" for name in keys_of(stacked)]
        columns = [_storable(column) for column in values_of(stacked)]
        with whole_file(path) as temporary, open(temporary, "wb") as file:
            np.savez(file, allow_pickle=False, **dict(zip(names, columns, strict=True)))

    @staticmethod
    def load(path: PathLike, shuffle: bool = True) -> DataFlow:
        """The flow that was saved, mapped into memory; lists come back as tuples.

        Args:
            path: The file.
            shuffle: Give every pass another order.

        Raises:
            ConfigError: There is no such file.
            FormatError: It is no `.npz` file, or a damaged one.
        """
        ds = NumpyData(path)
        names = list(ds[0]) if len(ds) else []
        ds = NumpyData(path, names) if names[:1] == ["arr_0"] else ds
        return ShuffleData(ds) if shuffle else ds


class HDF5Serializer:
    """Writes a flow to an HDF5 file of stacked components, and reads it again."""

    @staticmethod
    def save(df: DataFlow, path: PathLike, data_paths: Sequence[str]) -> None:
        """Write one pass of a flow, a few datapoints at a time.

        Args:
            df: Its datapoints have components that stack.
            path: The file; it appears, or replaces an older one, when it is whole.
            data_paths: Where each component goes, such as `["images", "labels"]`.

        Raises:
            BatchError: Datapoints do not stack.
            ConfigError: There are no datapoints or no end of them, or more or fewer components
                than `data_paths`.
        """
        h5py: Any = require("h5py", extra="formats", needed_for="HDF5Serializer.save")
        check_finite(df)
        data_paths = names_of(data_paths)
        size = length_of(df)
        with whole_file(path) as temporary, h5py.File(temporary, "w") as file:
            written = 0
            for columns in _blocks(df, len(data_paths)):
                if not written:
                    _create(file, data_paths, columns, size if isinstance(size, int) else None)
                _append(file, data_paths, columns, written)
                written += len(columns[0])
            if not written:
                raise ConfigError(f"{df} has no datapoints, and so no components to store.")

    @staticmethod
    def load(path: PathLike, data_paths: Sequence[str], shuffle: bool = True) -> DataFlow:
        """The flow that was saved; datapoints are lists. As `HDF5Data`."""
        return HDF5Data(path, data_paths, shuffle)


def _blocks(ds: DataFlow, components: int) -> Iterator[list[NDArray[Any]]]:
    """The components of a pass, stacked some datapoints at a time."""
    iterator = iter(ds)
    while rows := list(islice(iterator, _BLOCK)):
        for row in rows:
            if not is_datapoint(row) or len(cast("Sequence[Any]", row)) != components:
                raise ConfigError(
                    f"Datapoints do not have {components} components, as data_paths has names.",
                    got=describe_datapoint(row),
                )
        yield [_storable(column) for column in values_of(stack_rows(rows))]


def _create(file: Any, names: Sequence[str], columns: list[NDArray[Any]], size: int | None) -> None:
    for name, column in zip(names, columns, strict=True):
        rest = column.shape[1:]
        if size is not None:
            file.create_dataset(name, (size, *rest), column.dtype)
        else:
            file.create_dataset(name, (0, *rest), column.dtype, maxshape=(None, *rest), chunks=True)


def _append(file: Any, names: Sequence[str], columns: list[NDArray[Any]], written: int) -> None:
    for name, column in zip(names, columns, strict=True):
        data_set = file[name]
        if data_set.dtype != column.dtype or data_set.shape[1:] != column.shape[1:]:
            raise BatchError(
                f"{name!r} changes from datapoint {written} on.",
                got=f"{column.dtype} {list(column.shape[1:])}",
                expected=f"{data_set.dtype} {list(data_set.shape[1:])}, as before",
                fix=_RAGGED,
            )
        if len(data_set) < written + len(column):
            data_set.resize(written + len(column), axis=0)
        data_set[written : written + len(column)] = column


def _storable(column: Any) -> NDArray[Any]:
    """A column that needs no pickle: strings become those of a fixed length."""
    array: NDArray[Any] = np.asarray(column)
    if array.dtype.kind != "O":
        return array
    items: list[Datapoint] = array.ravel().tolist()
    for kind in (str, bytes):
        if all(type(item) is kind for item in items):
            return np.array(items).reshape(array.shape)
    raise ConfigError(
        "A component holds Python objects, which only pickle could store.",
        got=describe_datapoint(tuple(items[:3])),
        fix=_RAGGED,
    )
