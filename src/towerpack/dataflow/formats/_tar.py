"""Tar archives of samples, in WebDataset's convention."""

from __future__ import annotations

import bisect
import re
from array import array
from collections.abc import Generator, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from towerpack._core.errors import FormatError
from towerpack._core.logs import get_logger
from towerpack.dataflow._datapoints import Block, Datapoint, Positions, as_ints
from towerpack.dataflow._opening import (
    PathLike,
    PerProcess,
    Strings,
    check_expansion,
    files_of,
    reading,
)
from towerpack.dataflow._plan import Node
from towerpack.dataflow.formats._indexed_files import FilePool, IndexedFiles, version_of
from towerpack.dataflow.formats._tar_archive import compression_of, tar_members
from towerpack.dataflow.formats._tar_codec import decode_file

log = get_logger(__name__)

KEY = "__key__"
# The key ends at the first dot of the file's name, so `7.seg.png` belongs to `7.png`.
NAME = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)", re.DOTALL)


class Member(NamedTuple):
    """A file in an archive: where its bytes are, and they themselves if they were loaded."""

    name: str
    offset: int
    size: int
    data: bytes


class TarData(IndexedFiles):
    """Datapoints from tar archives: the files of one stem, one after another, are one datapoint.

    `a/7.jpg`, `a/7.cls` and `a/7.seg.png` become `{"__key__": "a/7", "jpg": ..., "cls": ...,
    "seg.png": ...}`: bytes, or with `decode=True` what the extensions say. Nothing is written to
    disk and nothing is unpickled. Directories, links, hidden files and files without an extension
    are left out (the log says how many).

    Plain archives are read at random: their headers are walked once, when the length or the first
    datapoint is asked for, and what is kept of them is flat. Archives compressed with gzip, bzip2
    or xz can only be read in order; one of them among others makes it so for all.

    Contract: in order of the archives and of the files in them; length known for plain archives;
    not random; thread- and fork-safe; resumable at once, compressed archives by reading again.

    Args:
        paths: One archive, several, or a pattern such as `train-*.tar`.
        decode: Decode images (`jpg`, `jpeg`, `png`, `webp`, `bmp`, `gif`, `tif`, `tiff`; RGB),
            `npy`, `json`, `txt` (`str`), `cls`, `index` and `id` (`int`); others stay bytes.

    Raises:
        ConfigError: There is no such file.
        FormatError: An archive is damaged; raised where it is read.
    """

    def __init__(self, paths: PathLike | Sequence[PathLike], *, decode: bool = False) -> None:
        files = files_of(paths)
        super().__init__(files, in_order_only=any(map(compression_of, files)))
        self.decode = decode

    def content(self) -> str:
        return f"{super().content()}, decode={self.decode}"

    def _index(self) -> Node:
        node = TarNode(self.paths, self.decode)
        if node.left_out:
            log.info("%s: left out %d files without stem or extension", self, node.left_out)
        return node

    def _in_order(self) -> Iterator[Datapoint]:
        for path in self.paths:
            for key, files in _grouped(_members(path, load=True), path, []):
                contents = {
                    extension: _content(path, self.decode, extension, member.name, member.data)
                    for extension, member in files.items()
                }
                yield {KEY: key, **contents}


class TarNode(Node):
    """Reads plain archives through an index of their files.

    Attributes:
        left_out: How many members are no part of a datapoint.
    """

    def __init__(self, paths: list[Path], decode: bool) -> None:
        self._paths = paths
        self._decode = decode
        # Taken before the walk: what changes during it is noticed too.
        self._files = PerProcess(partial(FilePool, paths, [version_of(path) for path in paths]))
        left_out: list[str] = []
        keys: list[str] = []
        extensions: dict[str, int] = {}
        firsts, rows = array("q", [0]), array("q")
        self._starts: list[int] = []
        for path in paths:
            self._starts.append(len(keys))
            for key, files in _grouped(_members(path), path, left_out):
                keys.append(key)
                for extension, member in files.items():
                    kind = extensions.setdefault(extension, len(extensions))
                    rows.extend((kind, member.offset, member.size))
                firsts.append(len(rows) // 3)
        self.size = len(keys)
        self.left_out = len(left_out)
        self._keys = Strings(keys)
        self._extensions: list[str] = list(extensions)
        self._firsts = np.array(firsts, np.int64)
        self._rows = np.array(rows, np.int64).reshape(-1, 3)  # extension, offset, size

    def read(self, epoch: int, positions: Positions) -> Block:
        return [self.get(epoch, position) for position in as_ints(positions)]

    def get(self, epoch: int, position: int) -> Datapoint:
        archive = bisect.bisect_right(self._starts, position) - 1
        path, file = self._paths[archive], self._files.get().get(archive)
        key = self._keys[position]
        datapoint: dict[str, Any] = {KEY: key}
        first, last = self._firsts[position : position + 2].tolist()
        rows: list[list[int]] = self._rows[first:last].tolist()
        for kind, offset, nbytes in rows:
            extension = self._extensions[kind]
            data = file.read_at(offset, nbytes)
            name = f"{key}.{extension}"
            if len(data) != nbytes:
                raise FormatError(f"{path} ends within {name!r}.", fix="fetch it again")
            datapoint[extension] = _content(path, self._decode, extension, name, data)
        return datapoint


def _content(path: Path, decode: bool, extension: str, name: str, data: bytes) -> Any:
    return decode_file(extension, data, f"{path}: {name}") if decode else data


def _members(path: Path, *, load: bool = False) -> Generator[Member]:
    """The regular files of an archive, in order; their bytes too if asked for.

    Raises:
        FormatError: The archive is damaged, cut off, or holds sparse files.
    """
    stored = path.stat().st_size
    for tar, info in tar_members(path):
        if info.isreg():
            data = b""
            if load:
                check_expansion(info.size, stored, repr(info.name), path)
                file: Any = tar.extractfile(info)
                with reading(path, "a tar archive"):
                    data = file.read()
            yield Member(info.name, info.offset_data, info.size, data)


def _grouped(
    members: Iterable[Member], path: Path, left_out: list[str]
) -> Generator[tuple[str, dict[str, Member]]]:
    """The files of one key together: key, and extension → file."""
    current: str | None = None
    files: dict[str, Member] = {}
    for member in members:
        match = NAME.fullmatch(member.name)
        if match is None:
            left_out.append(member.name)
            continue
        key, extension = match.groups()
        if key != current:
            if current is not None:
                yield current, files
            current, files = key, {}
        if extension in files or extension == KEY:
            raise FormatError(
                f"{path} holds {member.name!r} twice, at byte {member.offset:,} again.",
                expected="one file for each stem and extension",
            )
        files[extension] = member
    if current is not None:
        yield current, files
