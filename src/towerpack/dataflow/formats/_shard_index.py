"""Indexes of shards: the places of their datapoints, in a file `NAME.index` next to each shard."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, FormatError
from towerpack._core.files import replace_file
from towerpack._core.remote_path import RemotePath
from towerpack.dataflow._remote_files import RemoteFile
from towerpack.dataflow._user_files import AnyFile, head_of
from towerpack.dataflow.formats._wire import pack, unpack

Index = dict[str, NDArray[Any]]

_MAGIC: Final = b"TOWERPACK-INDEX-1\n"
_DIGEST_BYTES: Final = 16
FIX: Final = "write the index again: towerpack data index FILE"


def index_of(file: AnyFile, scan: Callable[[AnyFile], Index]) -> Index:
    """Return the index of a shard: from the cache, the file next to the shard, or a scan."""
    cache, key = None, ""
    if isinstance(file, RemoteFile):
        cache, key = file.block_cache(), file.key("index")
    if cache is not None and (data := cache.read(key)) is not None:
        return unpack(data)
    index = _stored_index(file) or scan(file)
    if cache is not None:
        cache.put(key, pack(index))
    return index


def write_index(file: AnyFile, index: Index) -> None:
    """Write the index next to a shard."""
    data = pack({**_identity(file), "index": index})
    write_whole(_path_of(file), _MAGIC + _digest(data) + data)


def write_whole(target: Path | RemotePath, data: bytes) -> None:
    """Replace the content of a local or remote file."""
    if isinstance(target, Path):
        replace_file(target, data)
    else:
        target.write(data)


def _stored_index(file: AnyFile) -> Index | None:
    """Read the index next to a shard. Return None if it is missing or of another program."""
    path = _path_of(file)
    try:
        data = path.read_bytes() if isinstance(path, Path) else path.read()
    except (OSError, ConfigError):  # some services deny access to objects that do not exist
        return None
    if not data.startswith(_MAGIC):
        return None
    start = len(_MAGIC) + _DIGEST_BYTES
    if data[len(_MAGIC) : start] != _digest(data[start:]):
        raise FormatError(f"{path} is damaged.", fix=FIX)
    stored: dict[str, Any] = unpack(data[start:])
    index, identity = stored.pop("index"), _identity(file)
    if stored != identity:
        raise FormatError(
            f"{path} belongs to another shard, or {file} was changed after it was written.",
            got=f"a shard of {stored['size']:,} bytes with the head {stored['head'].hex()}",
            expected=f"{identity['size']:,} bytes with the head {identity['head'].hex()}",
            fix=FIX,
        )
    return index


def _path_of(file: AnyFile) -> Path | RemotePath:
    path = f"{file}.index"
    return RemotePath(path) if isinstance(file, RemoteFile) else Path(path)


def _identity(file: AnyFile) -> dict[str, Any]:
    return {"size": file.stat().st_size, "head": _digest(head_of(file))}


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()
