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
_PIECE: Final = 1 << 20
FIX: Final = "write the index again: towerpack data index FILE"


def index_of(file: AnyFile, scan: Callable[[AnyFile], Index]) -> Index:
    """Return the index of a shard: from the cache, the file next to the shard, or a scan."""
    cache = file.block_cache() if isinstance(file, RemoteFile) else None
    if cache is None or not isinstance(file, RemoteFile):
        return _stored_index(file) or scan(file)
    key = file.key("index")
    if (data := cache.read(key)) is not None:
        return unpack(data)
    index = _stored_index(file) or scan(file)
    cache.put(key, pack(index))
    return index


def write_index(file: AnyFile, index: Index) -> str:
    """Write the index next to a shard. Return the SHA-256 of the shard."""
    checksum = hashlib.sha256()
    with file.open("rb") as opened:
        while piece := opened.read(_PIECE):
            checksum.update(piece)
    content = {**_identity(file), "sha256": checksum.hexdigest(), "index": index}
    data = pack(content)
    path = f"{file}.index"
    target = RemotePath(path) if isinstance(file, RemoteFile) else Path(path)
    write_whole(target, _MAGIC + _digest(data) + data)
    return checksum.hexdigest()


def write_whole(target: Path | RemotePath, data: bytes) -> None:
    """Replace the content of a local or remote file."""
    if isinstance(target, Path):
        replace_file(target, data)
    else:
        target.write(data)


def _stored_index(file: AnyFile) -> Index | None:
    """Read the index next to a shard. Return None if it is missing or of another program."""
    path = f"{file}.index"
    try:
        data = RemotePath(path).read() if isinstance(file, RemoteFile) else Path(path).read_bytes()
    except (OSError, ConfigError):  # some services deny access to objects that do not exist
        return None
    if not data.startswith(_MAGIC):
        return None
    content = data[len(_MAGIC) + _DIGEST_BYTES :]
    if data[len(_MAGIC) :][:_DIGEST_BYTES] != _digest(content):
        raise FormatError(f"{path} is damaged.", fix=FIX)
    stored: dict[str, Any] = unpack(content)
    identity = _identity(file)
    names = ["size", "head"]
    if stored["url"] == identity["url"]:
        names.append("version")
    if any(stored[name] != identity[name] for name in names):
        raise FormatError(
            f"{path} belongs to another shard, or {file} was changed after it was written.",
            got=f"a shard of {stored['size']:,} bytes {stored['version']}",
            expected=f"{identity['size']:,} bytes {identity['version']}",
            fix=FIX,
        )
    return stored["index"]


def _identity(file: AnyFile) -> dict[str, Any]:
    remote = isinstance(file, RemoteFile)
    return {
        "size": file.stat().st_size,
        "head": _digest(head_of(file)),
        "url": file.url if remote else "",
        "version": file.version if remote else "",
    }


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()
