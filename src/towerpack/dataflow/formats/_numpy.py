from __future__ import annotations

import io
import math
import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, FormatError
from towerpack.dataflow._flow import DataFlow, read_pass
from towerpack.dataflow._user_files import PathLike, check_expansion, file_of, reading
from towerpack.dataflow.arguments import names_of
from towerpack.dataflow.content import content_of_files
from towerpack.dataflow.datapoints import Datapoint, keys_of, values_of
from towerpack.dataflow.formats._writing import (
    RAGGED,
    check_finite,
    is_utf8,
    stack_for_file,
    whole_file,
)
from towerpack.dataflow.sources._memory import DataFromArrays, HeldArrays
from towerpack.dataflow.stages._shuffle import ShuffleData


class NumpyData(DataFromArrays):
    """Source of an `.npz` or `.npy` file: datapoint i is row i of each array.

    Uncompressed arrays (`numpy.savez`, `numpy.save`) are mapped into memory, so that only the rows
    that are read take memory, and worker processes share it. Compressed arrays are loaded, and only
    their checksums are checked. Pickled objects are an error. A mapped file must not be truncated
    while in use, or the system kills the process. Thread- and fork-safe; resumes at once.

    Args:
        path: The file.
        names: Arrays of an `.npz` in the order of the components; datapoints are then tuples. By
            default, datapoints are dicts of all arrays. An `.npy` file gives one-component tuples.

    Raises:
        ConfigError: The file or an array does not exist, or arrays differ in length.
        FormatError: The file is damaged, or contains Python objects.
    """

    def __init__(self, path: PathLike, names: Sequence[str] | None = None) -> None:
        self.path = file_of(path)
        self.names = None if names is None else names_of(names)
        super().__init__(_load(self.path, self.names))

    def content(self) -> str:
        # The base class would read all values of the arrays.
        return f"{self.arguments()}, {self.names}, {content_of_files([self.path])}"

    def arguments(self) -> str:
        return self.path.name

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_held"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._held = HeldArrays(_load(self.path, self.names))


def _load(path: Path, names: list[str] | None) -> Datapoint:
    with open(path, "rb") as file:
        if file.read(4) == b"PK\x03\x04" or path.suffix == ".npz":
            return _load_npz(path, file, names)
        if names is not None:
            what = f"names= needs an npz file, but {path} is an npy file with one unnamed array."
            raise ConfigError(what, fix="leave out names=")
        file.seek(0)
        with reading(path, "an npy file"):
            return (_mapped(path, _read_header(file, path.stat().st_size, path), 0),)


def _load_npz(path: Path, file: IO[bytes], names: list[str] | None) -> Datapoint:
    with reading(path, "an npz file"), zipfile.ZipFile(file) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        wanted = list(members) if names is None else names
        for name in wanted:
            if name not in members:
                raise ConfigError(f"{path} has no array {name!r}.", got=", ".join(members))
        arrays = [_member(path, file, archive, members[name]) for name in wanted]
    return dict(zip(wanted, arrays, strict=True)) if names is None else tuple(arrays)


def _member(
    path: Path, file: IO[bytes], archive: zipfile.ZipFile, info: zipfile.ZipInfo
) -> NDArray[Any]:
    what = f"an npz file, array {info.filename!r}"
    with reading(path, what):
        check_expansion(info.file_size, info.compress_size, info.filename, path)
        if info.compress_type != zipfile.ZIP_STORED:
            return parse_npy(archive.read(info), path, what)
        # Opening the member checks that its local header agrees with the directory.
        with archive.open(info) as member:
            header = _read_header(member, info.file_size, path)
        # The local header may be longer than the directory says.
        file.seek(info.header_offset + 26)
        name, extra = struct.unpack("<HH", file.read(4))
        return _mapped(path, header, info.header_offset + 30 + name + extra)


def _mapped(path: Path, header: _Header, start: int) -> NDArray[Any]:
    if math.prod(header.shape) == 0:
        return np.empty(header.shape, header.dtype, header.order)
    offset = start + header.offset
    return np.memmap(path, header.dtype, "r", offset, header.shape, header.order)


def parse_npy(data: bytes, path: PathLike, what: str = "an npy file") -> NDArray[Any]:
    """Parse the contents of a `.npy` file. Return a read-only view as an array."""
    with reading(path, what):
        header = _read_header(io.BytesIO(data), len(data), path)
        return np.ndarray(header.shape, header.dtype, data, header.offset, order=header.order)


class _Header(NamedTuple):
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: Literal["C", "F"]
    offset: int


def _read_header(file: IO[bytes], nbytes: int, path: PathLike) -> _Header:
    """Read the header of an array, and check that header and values have `nbytes` bytes."""
    try:
        version, _ = npy_format.read_magic(file)
        read: Any = getattr(npy_format, f"read_array_header_{version}_0")
        shape, fortran_order, dtype = read(file)
    except MemoryError as error:  # raised by Python's parser if a header is nested too deeply
        raise ValueError("the header cannot be parsed") from error
    if dtype.hasobject:
        raise FormatError(
            f"{path} contains pickled Python objects, and unpickling can run any code.",
            got=f"an array of dtype {dtype}",
            expected="numbers, booleans, fixed-size strings",
            fix="load the file with np.load(..., allow_pickle=True) if you trust its source",
        )
    rest, claimed = nbytes - file.tell(), dtype.itemsize * math.prod(shape)
    if min(shape, default=0) < 0 or dtype.itemsize == 0 or claimed != rest:
        raise ValueError(f"it has {rest:,} bytes of values for {dtype} {list(shape)}")
    return _Header(dtype, shape, "F" if fortran_order else "C", file.tell())


class NumpySerializer:
    """Serializer of flows to `.npz` files with one array per component.

    Writing needs memory for all datapoints. Reading does not.
    """

    @staticmethod
    def save(df: DataFlow, path: PathLike) -> None:
        """Write one pass of a flow.

        Args:
            df: Finite flow of datapoints whose components stack. Components of dicts are stored
                under their names, others as `arr_0`, `arr_1`, ...
            path: File to write. It appears, or replaces an older file, when it is complete.

        Raises:
            BatchError: Datapoints do not stack.
            ConfigError: The flow is empty or infinite, or has objects that need pickle, or strings
                that end in NUL, which NumPy would remove.
        """
        check_finite(df)
        # `numpy.savez` takes names as keywords, which excludes the names of its parameters.
        with whole_file(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
            rows = list(read_pass(df, keep=True))
            if not rows:
                raise ConfigError(f"{df} has no datapoints to save.")
            stacked = stack_for_file(rows)
            for name, column in zip(_member_names(stacked), values_of(stacked), strict=True):
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    npy_format.write_array(member, _fixed(name, column), allow_pickle=False)

    @staticmethod
    def load(path: PathLike, shuffle: bool = True) -> DataFlow:
        """Return the saved flow as `NumpyData`. Lists are returned as tuples.

        Args:
            path: The file.
            shuffle: Shuffle every pass differently, as `ShuffleData` does.
        """
        ds = NumpyData(path)
        names = list(ds[0]) if len(ds) else []
        ds = NumpyData(path, names) if names[:1] == ["arr_0"] else ds
        return ShuffleData(ds) if shuffle else ds


def _member_names(stacked: Datapoint) -> list[str]:
    names = [name if isinstance(name, str) else f"arr_{name}" for name in keys_of(stacked)]
    for name in names:
        if names.count(name) > 1 or not is_utf8(name):
            raise ConfigError(
                f"Names of arrays must be unique and valid UTF-8, got {name!r}.",
                fix="rename the component",
            )
    return names


def _fixed(name: str, column: Any) -> NDArray[Any]:
    """Convert a column of strings to NumPy strings of fixed length, padded with NULs."""
    array: NDArray[Any] = np.asarray(column)
    if not array.dtype.hasobject:
        return array
    items: list[Any] = array.ravel().tolist()
    texts = all(isinstance(item, (str, bytes)) for item in items)
    fixed: NDArray[Any] = np.array(items) if texts else array
    if not texts or fixed.tolist() != items:
        raise ConfigError(
            f"{name!r} cannot be saved without pickle: it contains objects, mixed types, or "
            "strings or bytes that end in NUL.",
            fix=RAGGED,
        )
    return fixed.reshape(array.shape)
