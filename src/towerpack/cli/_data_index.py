from __future__ import annotations

from typing import Annotated

import typer

from towerpack.cli._console import console, escape


def index(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILES...", help="Tar or TFRecord files: paths, URLs or patterns."),
    ],
) -> None:
    """Write an index file next to each shard, so that reading starts without a scan.

    The file NAME.index has the places of the datapoints, and the size and beginning of the shard.
    Copy it together with the shard. Parquet files need no index.
    """
    from towerpack.dataflow.formats.shards import index_shards

    for pattern in files:
        for name in index_shards(pattern):
            console().print(f"{escape(name)}.index", soft_wrap=True)
