"""NumPy's own files."""

from __future__ import annotations

import math
import os
import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack.dataflow._arguments import names_of
from towerpack.dataflow._content import content_of_files
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._opening import PathLike, check_expansion, file_of, reading
from towerpack.dataflow.formats._npy import HEADER_BYTES, NpyHeader, npy_header, parse_npy
from towerpack.dataflow.sources._memory import DataFromArrays, HeldArrays

_LENGTHS: Final = struct.Struct("<HH")


class NumpyData(DataFromArrays):
    """Datapoint i is row i of each array in an `.npz` or `.npy` file.

    What is stored uncompressed (`numpy.savez`, `numpy.save`) stays in the file and is mapped into
    memory, so that only what is read takes any, and worker processes share it. Compressed arrays
    are loaded. Nothing is ever unpickled. A file that is mapped must not be cut short while in use:
    the system ends programs that read beyond the end.

    Contract: in order; as long as the arrays; not random; thread- and fork-safe; resumable at once.
    Checksums of compressed arrays are compared, those of mapped ones are not.

    Args:
        path: The file.
        names: Which arrays of an `.npz`, in this order; datapoints are then tuples. By default all
            of them, and datapoints are dicts. An `.npy` file gives tuples of one component.

    Raises:
        ConfigError: There is no such file or array, or arrays differ in length.
        FormatError: The file is damaged, or holds Python objects.
    """

    def __init__(self, path: PathLike, names: Sequence[str] | None = None) -> None:
        self.path = file_of(path)
        self.names = None if names is None else names_of(names)
        super().__init__(_load(self.path, self.names))

    def content(self) -> str:
        # The base would read all of the arrays.
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
            raise ConfigError(
                f"{path} is an npy file: it holds one array without a name.",
                got=f"names={names!r:.80}",
                fix="leave out names=",
            )
        file.seek(0)
        size = os.fstat(file.fileno()).st_size
        header = npy_header(file.read(HEADER_BYTES), size, path, "an npy file")
        return (_mapped(path, header, 0),)


def _load_npz(path: Path, file: IO[bytes], names: list[str] | None) -> Datapoint:
    with reading(path, "an npz file"), zipfile.ZipFile(file) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        wanted = list(members) if names is None else names
        for name in wanted:
            if name not in members:
                raise ConfigError(
                    f"{path} has no array {name!r}.", got=f"arrays {', '.join(members)}"
                )
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
        # Opening it checks that the local header agrees with the directory.
        with archive.open(info) as member:
            header = npy_header(member.read(HEADER_BYTES), info.file_size, path, what)
        # The local header may be longer than the directory says.
        file.seek(info.header_offset + 26)
        name, extra = _LENGTHS.unpack(file.read(_LENGTHS.size))
        return _mapped(path, header, info.header_offset + 30 + name + extra)


def _mapped(path: Path, header: NpyHeader, start: int) -> NDArray[Any]:
    if math.prod(header.shape) == 0:
        return np.empty(header.shape, header.dtype, header.order)
    offset = start + header.offset
    return np.memmap(path, header.dtype, "r", offset, header.shape, header.order)
