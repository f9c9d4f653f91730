"""Writing of shards: tar or TFRecord files of limited size with their indexes and checksums."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from towerpack._core.errors import ConfigError
from towerpack._core.remote_path import RemotePath, is_url
from towerpack.dataflow._flow import DataFlow
from towerpack.dataflow._remote_files import bytes_of
from towerpack.dataflow._user_files import files_of, head_of
from towerpack.dataflow.formats._shard_index import write_index, write_whole
from towerpack.dataflow.formats._tar import KEY, TarData, tar_index
from towerpack.dataflow.formats._tar_writer import TarWriter
from towerpack.dataflow.formats._tfrecord import TFRecordData, TFRecordWriter
from towerpack.dataflow.formats._tfrecord_format import is_compressed, is_tfrecord, tfrecord_index
from towerpack.dataflow.formats._writing import encoded
from towerpack.dataflow.sources._files import FilesStage, read_file

CHECKSUMS: Final = "SHA256SUMS"


def index_shards(pattern: str) -> Iterator[str]:
    """Write the index file of each shard of a path, URL or pattern. Yield the shard's name.

    Raises:
        ConfigError: There is no such file, it is compressed, or it is a Parquet file.
        FormatError: A file is damaged.
    """
    for file in files_of(pattern):
        if head_of(file).startswith(b"PAR1"):
            raise ConfigError(f"{file} needs no index: Parquet files contain one.")
        in_tar = not is_tfrecord(file)
        if in_tar and (TarData([str(file)]).in_order_only or is_compressed(file)):
            fix = "decompress the file, or read it in order"
            raise ConfigError(f"{file} is compressed and cannot have an index.", fix=fix)
        write_index(file, tar_index(file) if in_tar else tfrecord_index(file))
        yield str(file)


def write_shards(ds: DataFlow, folder: str, size: int | str) -> list[str]:
    """Write one pass of a flow as shards in a folder or below a URL. Return their names.

    Images of files and datapoints of `TarData` become tar archives. Records of `TFRecordData` stay
    as they are. Other datapoints are packed to TFRecord files for `TFRecordSerializer.load`.

    Args:
        ds: Finite flow of datapoints.
        folder: Path or URL of an empty folder.
        size: Size at which a shard is complete: bytes, or a text such as "256MB".

    Raises:
        ConfigError: The folder contains files, `size` is not a size, or a datapoint cannot be
            written.
    """
    target: Path | RemotePath = RemotePath(folder) if is_url(folder) else Path(folder)
    nbytes = bytes_of(size)
    if isinstance(target, Path):
        target.mkdir(parents=True, exist_ok=True)
    if any(target.iterdir()) if isinstance(target, Path) else target.files():
        raise ConfigError(f"{folder} contains files.", fix="choose an empty or a new folder")
    sums: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as temporary:
        local = target if isinstance(target, Path) else Path(temporary)
        for shard in _local_shards(ds, local, nbytes):
            with shard.open("rb") as file:
                sums[shard.name] = hashlib.file_digest(file, "sha256").hexdigest()
            if isinstance(target, RemotePath):
                for path in (shard, Path(f"{shard}.index")):
                    (target / path.name).upload(path)
                    path.unlink()
    if classes := getattr(ds, "classes", None):
        write_whole(target / "classes.json", json.dumps(classes, indent=1).encode())
    lines = [f"{checksum}  {name}\n" for name, checksum in sums.items()]
    write_whole(target / CHECKSUMS, "".join(lines).encode())
    return [*sums]


def _local_shards(ds: DataFlow, folder: Path, nbytes: int) -> Iterator[Path]:
    """Write shards. Yield the path of each when it is complete."""
    in_tar = isinstance(ds, (FilesStage, TarData))
    items: Iterator[Any] = _samples(ds) if in_tar else _records(ds)
    for number, first in enumerate(items):
        path = folder / f"shard-{number:05d}.{'tar' if in_tar else 'tfrecord'}"
        with TarWriter(path) if in_tar else TFRecordWriter(path) as writer:
            item = first
            while item is not None:
                writer.write(item)
                item = next(items, None) if writer.nbytes < nbytes else None
        write_index(path, tar_index(path) if in_tar else tfrecord_index(path))
        yield path


def _samples(ds: FilesStage | TarData) -> Iterator[dict[str, Any]]:
    if isinstance(ds, TarData):
        yield from TarData([str(path) for path in ds.paths])
        return
    labels = getattr(ds, "labels", None)
    for index, file in enumerate(ds.files):
        extension = file.rpartition(".")[2].lower()
        sample = {KEY: f"{index:08d}", extension: read_file(file)}
        yield sample if labels is None else {**sample, "cls": int(labels[index])}


def _records(ds: DataFlow) -> Iterator[bytes]:
    if isinstance(ds, TFRecordData) and ds.features is None:
        for (record,) in ds:
            yield record
    else:
        yield from encoded(ds, "wire")
