"""Whole flows in NumPy's and HDF5's files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, cast
from zipfile import ZipFile

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from towerpack._core.errors import BatchError, ConfigError
from towerpack._core.extras import require
from towerpack.dataflow._arguments import names_of
from towerpack.dataflow._datapoints import (
    Datapoint,
    describe,
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
                without pickle, or strings that end in NUL, which NumPy would cut off.
        """
        check_finite(df)
        with whole_file(path) as temporary:
            rows = list(df)
            if not rows:
                raise _no_datapoints(df)
            stacked = _stacked(rows)
            names = _member_names(stacked)
            columns = [_fixed(column) for column in values_of(stacked)]
            _write_npz(temporary, dict(zip(names, columns, strict=True)))

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
    """Writes a flow to an HDF5 file of stacked components, and reads it again.

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
            ConfigError: There are no datapoints or no end of them, or more or fewer components
                than `data_paths`, or these exclude each other, or components are of a type that
                HDF5 does not give back as it was.
        """
        h5py: Any = require("h5py", extra="formats", needed_for="HDF5Serializer.save")
        check_finite(df)
        names = names_of(data_paths)
        size = length_of(df)
        with whole_file(path) as temporary, h5py.File(temporary, "w") as file:
            written = 0
            for stacked in _blocks(df, len(names)):
                columns = [_in_hdf5(h5py, column, written) for column in stacked]
                if not written:
                    _create(file, names, columns, size if isinstance(size, int) else None)
                _append(file, names, columns, written)
                written += len(columns[0])
            if not written:
                raise _no_datapoints(df)

    @staticmethod
    def load(path: PathLike, data_paths: Sequence[str], shuffle: bool = True) -> DataFlow:
        """The flow that was saved; datapoints are lists. As `HDF5Data`."""
        return HDF5Data(path, data_paths, shuffle)


def _stacked(rows: list[Datapoint]) -> Datapoint:
    """As `stack_rows`, whose errors are about batches."""
    try:
        return stack_rows(rows)
    except BatchError as error:
        if "batching" in (error.fix or ""):
            error.fix = f"convert components, or leave some out, before saving; or {_RAGGED}"
        raise


def _no_datapoints(df: DataFlow) -> ConfigError:
    return ConfigError(f"{df} has no datapoints, and so no components to store.")


def _member_names(stacked: Datapoint) -> list[str]:
    """What the arrays of an `.npz` file are called."""
    names = [name if isinstance(name, str) else f"arr_{name}" for name in keys_of(stacked)]
    for name in names:
        if names.count(name) > 1 or "\0" in name or not _encodable(name):
            raise ConfigError(
                f"No array, or two, can be called {name!r}.", fix="rename the component"
            )
    return names


def _write_npz(path: Path, columns: dict[str, NDArray[Any]]) -> None:
    # `numpy.savez` takes names as keywords, and so none that are parameters of its own.
    with ZipFile(path, "w") as archive:
        for name, column in columns.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                npy_format.write_array(member, column, allow_pickle=False)


def _blocks(ds: DataFlow, components: int) -> Iterator[list[Any]]:
    """The components of a pass, stacked some datapoints at a time."""
    iterator = iter(ds)
    while rows := list(islice(iterator, _BLOCK)):
        for row in rows:
            if not is_datapoint(row) or len(cast("Sequence[Any]", row)) != components:
                raise ConfigError(
                    f"Datapoints do not have {components} components, as data_paths has names.",
                    got=describe_datapoint(row),
                )
        yield values_of(_stacked(rows))


def _create(file: Any, names: Sequence[str], columns: list[NDArray[Any]], size: int | None) -> None:
    for name, column in zip(names, columns, strict=True):
        rest = column.shape[1:]
        # Of unknown length it grows, in chunks.
        options = {} if size is not None else {"maxshape": (None, *rest), "chunks": True}
        try:
            if not name.strip("/."):
                raise ValueError(f"{name!r} is no name")
            file.create_dataset(name, (size or 0, *rest), column.dtype, **options)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"HDF5 does not store {name!r} of data_paths, of dtype {column.dtype}: {error}.",
                expected="numbers, booleans and strings, under names none of which is in another",
                fix=f"rename it, or use {_RAGGED}",
            ) from error


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


def _fixed(column: Any) -> NDArray[Any]:
    """A column for `.npz`: strings as NumPy's, which are of one length, filled up with NULs."""
    array: NDArray[Any] = np.asarray(column)
    if not array.dtype.hasobject:
        return array
    items: list[Any] = array.ravel().tolist()
    fixed: NDArray[Any] = np.array(items) if all(map(_is_text, items)) else array
    for place, (item, other) in enumerate(zip(items, fixed.ravel().tolist(), strict=True)):
        if fixed is array or item != other:
            raise ConfigError(
                f"Datapoint {_row(array, place)} holds {describe(item)} that NumPy would not give "
                "back without pickle: an object, a mixture, or strings and bytes that end in NUL.",
                fix=_RAGGED,
            )
    return fixed.reshape(array.shape)


def _in_hdf5(h5py: Any, column: Any, first: int) -> NDArray[Any]:
    """A column as HDF5 stores it, if it comes back as it was.

    Args:
        h5py: The module.
        column: Stacked.
        first: The number of its first datapoint.
    """
    array: NDArray[Any] = np.asarray(column)
    if array.dtype.kind in "biufc":
        return array
    items: list[Any] = array.ravel().tolist() if array.size else []
    for place, item in enumerate(items):
        if not isinstance(item, str) or "\0" in item or not _encodable(item):
            raise ConfigError(
                f"Datapoint {first + _row(array, place)} holds {describe(item)}, which "
                "HDF5 does not store.",
                got=f"{item!r:.80}",
                expected="numbers, booleans, and strings without NUL",
                fix="LMDBSerializer, which keeps any of these; or convert them: dates with "
                ".astype('i8')",
            )
    return array.astype(h5py.string_dtype())


def _is_text(item: object) -> bool:
    return isinstance(item, (str, bytes))


def _row(array: NDArray[Any], place: int) -> int:
    """The datapoint that an item of a flat column belongs to."""
    return place // (array.size // len(array))


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
