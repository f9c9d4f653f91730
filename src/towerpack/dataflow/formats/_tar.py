from __future__ import annotations

import bisect
import io
import json
import re
import tarfile
from array import array
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from tarfile import BLOCKSIZE, HeaderError, ReadError, TarFile, TarInfo
from typing import Any, Final, Self, cast

import numpy as np

from towerpack._core.errors import ConfigError, FormatError
from towerpack._core.logs import get_logger
from towerpack.dataflow._plan import Node
from towerpack.dataflow._user_files import (
    AnyFile,
    PathLike,
    Strings,
    check_expansion,
    files_of,
    head_of,
    reading,
)
from towerpack.dataflow.datapoints import Datapoint, array_of
from towerpack.dataflow.formats._indexed_files import IndexedFiles, PlacedNode, each_of, version_of
from towerpack.dataflow.formats._numpy import parse_npy
from towerpack.dataflow.formats._shard_index import FIX, Index, index_of
from towerpack.dataflow.images._decode import decode_image

log = get_logger(__name__)

KEY: Final = "__key__"
# The key ends at the first dot of the file name, so `7.seg.png` belongs to `7.png`.
NAME: Final = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)", re.DOTALL)

_INTEGERS: Final = ("cls", "index", "id")
_IMAGES: Final = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff")
_COMPRESSIONS: Final = {b"\x1f\x8b": "gz", b"BZ": "bz2", b"\xfd7": "xz"}
_MOST_PADDING: Final = 1 << 16
_LIBRARY: Any = tarfile  # its type stubs lack EOFHeaderError

_Files = dict[str, tuple[TarInfo, bytes]]  # header and content (if loaded) by extension


class TarData(IndexedFiles):
    """Source of tar archives: consecutive files with the same stem are one datapoint.

    `a/7.jpg`, `a/7.cls` and `a/7.seg.png` become `{"__key__": "a/7", "jpg": ..., "cls": ...,
    "seg.png": ...}`. The values are bytes, or decoded with `decode=True`. Nothing is written to
    disk or unpickled. Directories, links, hidden files and files without an extension are skipped,
    and their number is logged.

    Uncompressed archives have random access: their headers are indexed when the length or the first
    datapoint is requested. Archives compressed with gzip, bzip2 or xz can only be read in order,
    and so can a list that contains one of them.

    Thread- and fork-safe. Resumes at once, or by reading again if compressed.

    Args:
        paths: One archive, several, or a pattern such as `train-*.tar`.
        decode: Decode images (`jpg`, `jpeg`, `png`, `webp`, `bmp`, `gif`, `tif`, `tiff`) to RGB,
            `npy`, `json`, `txt` (`str`), `cls`, `index` and `id` (`int`). Others stay bytes.

    Raises:
        ConfigError: A file does not exist.
        FormatError: An archive is damaged, or files with the same stem are not consecutive. Raised
            during iteration.
    """

    def __init__(self, paths: PathLike | Sequence[PathLike], *, decode: bool = False) -> None:
        files = files_of(paths)
        super().__init__(files, in_order_only=any(each_of(files, _compression_of)))
        self.decode = decode

    def content(self) -> str:
        return f"{super().content()}, decode={self.decode}"

    def _index(self) -> Node:
        return TarNode(self.paths, self.decode)

    def _in_order(self) -> Iterator[Datapoint]:
        for path in self.paths:
            for key, files in _samples(path, load=True):
                yield {KEY: key} | {
                    extension: _content(path, self.decode, key, extension, data)
                    for extension, (_, data) in files.items()
                }


class TarNode(PlacedNode):
    def __init__(self, paths: list[AnyFile], decode: bool) -> None:
        # Versions are read first, so that changes during indexing are detected.
        super().__init__(paths, [*map(version_of, paths)])
        self._decode = decode
        parts = each_of(paths, partial(index_of, scan=tar_index))
        keys: list[str] = []
        extensions: dict[str, int] = {}
        rows, counts = [np.zeros((0, 3), np.int64)], [np.zeros(1, np.int64)]
        self._starts: list[int] = []
        for path, part in zip(paths, parts, strict=True):
            places = part["rows"][:, 1:]
            if (places < 0).any() or (places.sum(axis=1) > path.stat().st_size).any():
                raise FormatError(f"The index of {path} is damaged.", fix=FIX)
            self._starts.append(len(keys))
            keys += Strings.from_arrays(part["keys"], part["key_ends"])
            names = Strings.from_arrays(part["extensions"], part["extension_ends"])
            kinds = np.array([extensions.setdefault(n, len(extensions)) for n in names], np.int64)
            rows.append(np.column_stack((kinds[part["rows"][:, 0]], part["rows"][:, 1:])))
            counts.append(part["counts"])
        self.size = len(keys)
        self._keys = Strings(keys)
        self._extensions: list[str] = list(extensions)
        self._firsts = np.concatenate(counts).cumsum()
        self._rows = np.concatenate(rows)  # extension, offset, size

    def name_of(self, index: int) -> str:
        return self._keys[index]

    def place_of(self, position: int) -> tuple[int, int, int]:
        rows = self._rows[slice(*self._firsts[position : position + 2])]
        archive = bisect.bisect_right(self._starts, position) - 1
        return archive, int(rows[0, 1]), int(rows[-1, 1:].sum())

    def get(self, epoch: int, position: int) -> Datapoint:
        archive = bisect.bisect_right(self._starts, position) - 1
        path, file = self._paths[archive], self._files.get()(archive)
        key = self._keys[position]
        datapoint: dict[str, Any] = {KEY: key}
        first, last = self._firsts[position : position + 2].tolist()
        rows: list[list[int]] = self._rows[first:last].tolist()
        for kind, offset, nbytes in rows:
            extension = self._extensions[kind]
            data = file.read_at(offset, nbytes)
            if len(data) != nbytes:
                fix = "replace the archive with an intact copy"
                raise FormatError(f"{path} ends within '{key}.{extension}'.", fix=fix)
            datapoint[extension] = _content(path, self._decode, key, extension, data)
        return datapoint


def tar_index(path: AnyFile) -> Index:
    """Return the keys of an archive's datapoints and the places of their files."""
    keys: list[str] = []
    extensions: dict[str, int] = {}
    counts, rows = array("q"), array("q")
    for key, files in _samples(path):
        keys.append(key)
        counts.append(len(files))
        for extension, (info, _) in files.items():
            kind = extensions.setdefault(extension, len(extensions))
            rows.extend((kind, info.offset_data, info.size))
    texts, ends = Strings(keys).arrays
    names, name_ends = Strings(extensions).arrays
    return {
        "keys": texts,
        "key_ends": ends,
        "extensions": names,
        "extension_ends": name_ends,
        "counts": np.array(counts, np.int64),
        "rows": np.array(rows, np.int64).reshape(-1, 3),
    }


def _content(path: AnyFile, decode: bool, key: str, extension: str, data: bytes) -> Any:
    return decode_file(extension, data, f"{path}: {key}.{extension}") if decode else data


def _members(path: AnyFile, *, load: bool = False) -> Generator[tuple[TarInfo, bytes]]:
    """Iterate over the regular files of an archive, with their contents if `load`."""
    stored, mode = path.stat().st_size, f"r:{_compression_of(path)}"
    with (
        reading(path, "a tar archive"),
        path.open("rb") as file,
        _LIBRARY.open(fileobj=file, mode=mode, tarinfo=_Header, encoding="utf-8") as tar,
    ):
        while (info := tar.next()) is not None:
            tar.members.clear()  # tarfile would keep all of them in memory
            if info.isreg():
                data = b""
                if load:
                    check_expansion(info.size, stored, repr(info.name), path)
                    data = tar.extractfile(info).read()
                yield info, data


def _samples(path: AnyFile, *, load: bool = False) -> Generator[tuple[str, _Files]]:
    last, files, skipped = "", _Files(), 0
    extensions: dict[str, set[str]] = {}  # by key, from the start of the archive
    for info, data in _members(path, load=load):
        match = NAME.fullmatch(info.name)
        if match is None:
            skipped += 1
            continue
        key, extension = match.groups()
        if key != last:
            if files:
                yield last, files
                files = _Files()
            # A repeated key with the same extensions is a new datapoint. With new extensions, the
            # files of one datapoint are not consecutive.
            if extension not in extensions.setdefault(key, {extension}):
                raise FormatError(
                    f"The files of {key!r} are not consecutive in {path}.",
                    got=f"{info.name!r} at byte {info.offset:,}",
                    fix="create the archive with: tar --sort=name -cf FILE FOLDER",
                )
        extensions[key].add(extension)
        if extension in files or extension == KEY:
            raise FormatError(
                f"{path} contains {info.name!r} twice, again at byte {info.offset:,}.",
                expected="one file for each stem and extension",
            )
        last, files[extension] = key, (info, data)
    if files:
        yield last, files
    if skipped:
        log.info("%s: skipped %d files without stem or extension", path, skipped)


def _compression_of(path: AnyFile) -> str:
    return _COMPRESSIONS.get(head_of(path)[:2], "")


class _Header(TarInfo):
    """Header of an archive member. Unlike `TarInfo`, it rejects incomplete archives."""

    @classmethod
    def fromtarfile(cls, tarfile: TarFile) -> Self:
        file: Any = tarfile.fileobj
        try:
            header = super().fromtarfile(tarfile)
        except _LIBRARY.EOFHeaderError:
            rest = file.read(_MOST_PADDING)
            if len(rest) < BLOCKSIZE or any(rest):
                raise ReadError("its end mark is incomplete, or data follow it") from None
            raise
        except HeaderError as error:
            raise ReadError(f"{error} at byte {tarfile.offset:,}") from error
        if header.size < 0 or header.issparse():
            raise ReadError(f"{header.name!r} is sparse, or its size is wrong")
        return header


def decode_file(extension: str, data: bytes, where: str) -> Any:
    """Decode a file by the last part of its extension. Return bytes for unknown extensions."""
    kind = extension.rpartition(".")[2].lower()
    with reading(where, f"{kind} content"):
        if kind in _IMAGES:
            return decode_image(data, name=where)
        if kind == "npy":
            return parse_npy(data, where).copy()
        if kind in _INTEGERS:
            return int(data)
        if kind == "json":
            return json.loads(data)
        return data.decode("utf-8") if kind == "txt" else data


def encode_file(extension: str, value: Any) -> bytes:
    """Encode a value by the extension of its file, so that `decode_file` restores the value."""
    kind = extension.rpartition(".")[2].lower()
    reason = None
    try:
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(cast("bytes", value))
        if kind == "npy":
            buffer = io.BytesIO()
            np.save(buffer, array_of(value, f"The .{extension} file"), allow_pickle=False)
            return buffer.getvalue()
        if kind == "json":
            return json.dumps(value, default=np.generic.item).encode()
        if kind in _INTEGERS and isinstance(value, (int, np.integer)):
            return str(int(cast("int", value))).encode()
        if kind == "txt" and isinstance(value, str):
            return value.encode()
    # json raises ValueError for cycles, and RecursionError for values nested too deeply.
    except (TypeError, ValueError, RecursionError) as error:
        reason = error
    raise ConfigError(
        f"A {type(cast('object', value)).__name__} cannot be written as a .{extension} file.",
        got=None if reason is None else f"{type(reason).__name__}: {reason}",
        expected="bytes; str for txt; int for cls, index, id; arrays for npy; JSON values for json",
        fix="encode the value first (images with encode_jpeg), or use a different extension",
    ) from reason
