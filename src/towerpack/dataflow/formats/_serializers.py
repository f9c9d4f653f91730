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
            columns = [_fixed(_strings_or_numbers(column)) for column in values_of(stacked)]
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
        data_paths = _checked_data_paths(data_paths)
        size = length_of(df)
        with whole_file(path) as temporary, h5py.File(temporary, "w") as file:
            written = 0
            for stacked in _blocks(df, len(data_paths)):
                columns = [_in_hdf5(h5py, column, written) for column in stacked]
                if not written:
                    _create(file, data_paths, columns, size if isinstance(size, int) else None)
                _append(file, data_paths, columns, written)
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
    """What the arrays of an `.npz` file are called.

    Raises:
        ConfigError: Two of them alike, or one as no member of a zip file can be.
    """
    names = [name if isinstance(name, str) else f"arr_{name}" for name in keys_of(stacked)]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"Two components are called {name!r}.", fix="rename one of them")
        if "\0" in name or not _encodable(name):
            raise ConfigError(f"No array can be called {name!r}.", fix="rename the component")
    return names


def _write_npz(path: Path, columns: dict[str, NDArray[Any]]) -> None:
    # `numpy.savez` takes names as keywords, and so none that are parameters of its own.
    with ZipFile(path, "w") as archive:
        for name, column in columns.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                npy_format.write_array(member, column, allow_pickle=False)


def _checked_data_paths(data_paths: Sequence[str]) -> list[str]:
    """Where components go, if none of them is in the way of another."""
    names = names_of(data_paths)
    seen: dict[str, str] = {}
    for name in names:
        parts = [part for part in name.split("/") if part not in ("", ".")]
        whole = "/".join(parts)
        for other in seen:
            if f"{whole}/".startswith(f"{other}/") or f"{other}/".startswith(f"{whole}/"):
                raise ConfigError(
                    f"data_paths has {seen[other]!r} and {name!r}, which exclude each other.",
                    expected="one data set for each component, none of them within another",
                )
        if not parts:
            raise ConfigError(f"{name!r} in data_paths is no name of a data set.")
        seen[whole] = name
    return names


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
        # Strings in chunks of whole rows are those that `HDF5Data` reads by itself.
        chunks = (_BLOCK, *rest) if column.dtype.hasobject else True
        try:
            if size is not None:
                file.create_dataset(name, (size, *rest), column.dtype)
            else:
                every = (None, *rest)
                file.create_dataset(name, (0, *rest), column.dtype, maxshape=every, chunks=chunks)
        except TypeError as error:
            raise _not_in_hdf5(f"{name!r} is of dtype {column.dtype}") from error


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


def _strings_or_numbers(column: Any) -> NDArray[Any]:
    """A column that needs no pickle: if of objects, of strings or of bytes alone."""
    array: NDArray[Any] = np.asarray(column)
    if not array.dtype.hasobject:
        return array
    items: list[Any] = array.ravel().tolist()
    for kind in (str, bytes):
        if all(isinstance(item, kind) for item in items):
            return array
    raise ConfigError(
        "A component holds Python objects, which only pickle could store.",
        got=describe_datapoint(tuple(items[:3])),
        fix=_RAGGED,
    )


def _fixed(array: NDArray[Any]) -> NDArray[Any]:
    """Strings as those of NumPy's, which are of one length, filled up with NULs."""
    if not array.dtype.hasobject:
        return array
    items: list[Any] = array.ravel().tolist()
    for place, item in enumerate(items):
        if item[-1:] in ("\0", b"\0"):
            raise ConfigError(
                f"Datapoint {_row(array, place)} holds {describe(item)} that ends in NUL, which "
                "NumPy would cut off.",
                fix="LMDBSerializer, which keeps bytes and strings as they are",
            )
    return np.array(items).reshape(array.shape)


def _in_hdf5(h5py: Any, column: Any, first: int) -> NDArray[Any]:
    """A column as HDF5 stores it, if it comes back as it was.

    Args:
        h5py: The module.
        column: Stacked.
        first: The number of its first datapoint.
    """
    array = _strings_or_numbers(column)
    items: list[Any] = array.ravel().tolist() if array.dtype.kind in "OU" else []
    if array.dtype.kind in "SMm" or any(isinstance(item, bytes) for item in items):
        kind = "bytes" if array.dtype.kind in "OS" else "dates or times"
        raise _not_in_hdf5(f"A component holds {kind}")
    if array.dtype.kind not in "OU":
        return array
    for place, item in enumerate(items):
        if "\0" in item or not _encodable(item):
            raise _not_in_hdf5(f"Datapoint {first + _row(array, place)} holds {item!r:.80}")
    return array.astype(h5py.string_dtype())


def _not_in_hdf5(what: str) -> ConfigError:
    return ConfigError(
        f"{what}, which HDF5 does not store.",
        expected="numbers, booleans, and strings without NUL",
        fix="LMDBSerializer, which keeps any of these; or convert them: dates with .astype('i8')",
    )


def _row(array: NDArray[Any], place: int) -> int:
    """The datapoint that an item of a flat column belongs to."""
    return place // (array.size // len(array))


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
