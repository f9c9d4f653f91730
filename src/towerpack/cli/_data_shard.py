from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from towerpack.cli._console import console, escape
from towerpack.cli._flow import open_flow

if TYPE_CHECKING:
    from towerpack.dataflow import DataFlow


def shard(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="File, folder, URL or pattern of data; or a function that returns a DataFlow, as "
            "module:function or file.py:function.",
        ),
    ],
    dest: Annotated[str, typer.Argument(metavar="DEST", help="New folder, or the URL of one.")],
    size: Annotated[str, typer.Option(help="Size at which a shard is complete.")] = "256MB",
) -> None:
    """Write data as shards, with an index file next to each and checksums in SHA256SUMS.

    Images become tar files, with their label as `cls`. Other data become TFRecord files for
    TFRecordSerializer.load. Tar and TFRecord files are written as they are, in other pieces.

    towerpack data shard pets s3://bucket/pets --size 256MB
    """
    from towerpack.dataflow.formats.shards import write_shards

    names = write_shards(_unchanged(source), dest, size)
    console().print(f"Wrote {len(names)} shards to {escape(dest)}", soft_wrap=True)


def _unchanged(source: str) -> DataFlow:
    """Return the dataflow over a source, without decoding the records of its files."""
    from towerpack.dataflow.formats import TarData, TFRecordData

    lower = source.lower()
    if ".tar" in lower or lower.endswith((".tgz", ".txz")):
        return TarData(source)
    return TFRecordData(source) if ".tfrecord" in lower else open_flow(source)
