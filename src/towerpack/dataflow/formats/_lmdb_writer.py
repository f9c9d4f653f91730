"""Writing LMDB databases of datapoints."""

from __future__ import annotations

import contextlib
import shutil
from functools import partial
from pathlib import Path
from typing import Any, Final

from towerpack._core.errors import ConfigError, DataFlowError
from towerpack._core.extras import require
from towerpack.dataflow._flow import DataFlow
from towerpack.dataflow._opening import PathLike, path_of
from towerpack.dataflow.formats._codecs import Codec, Format, codec_of, encoded
from towerpack.dataflow.formats._lmdb import LMDBData, LMDBDataDecoder
from towerpack.dataflow.formats._whole_file import whole_file

_KEY: Final = "%08d"
_MOST_RECORDS: Final = 10**8  # keys of more digits would not be in order
_COMMIT_BYTES: Final = 64 << 20
_FIRST_MAP_BYTES: Final = 1 << 30


class LMDBSerializer:
    """Writes a flow to an LMDB database, and reads it again."""

    @staticmethod
    def save(
        df: DataFlow, path: PathLike, write_frequency: int = 5000, *, format: Format = "wire"
    ) -> None:
        """Write one pass of a flow, under the keys `00000000`, `00000001`, ...

        The file appears, or replaces an older one, when it is whole.

        Args:
            df: Finite; its datapoints are what `pack` takes.
            path: The file; in a directory that is there, `data.mdb`.
            write_frequency: How many records to hold in memory at most; 64 MB are enough to write.
            format: "pickle" writes anything, which only you should read.

        Raises:
            ConfigError: A datapoint is nothing that can be written, or there are 100 million.
            DataFlowError: The file cannot be written; the disk is full.
        """
        lmdb: Any = require("lmdb", extra="formats", needed_for="LMDBSerializer.save")
        records = encoded(df, codec_of(format))
        if write_frequency < 1:
            raise ConfigError(f"write_frequency={write_frequency} writes nothing.", expected="1...")
        target = path_of(path)
        target = target / "data.mdb" if target.is_dir() else target
        with whole_file(target) as temporary, _told(target, lmdb.Error):
            # No lock file: nobody else knows this one.
            options = {"lock": False, "sync": False, "meminit": False, "subdir": False}
            env = lmdb.open(str(temporary), map_size=_FIRST_MAP_BYTES, **options)
            with contextlib.closing(env):
                batch: list[tuple[bytes, bytes]] = []
                nbytes = 0
                for count, record in enumerate(records):
                    if count >= _MOST_RECORDS:
                        raise ConfigError(f"One file holds {_MOST_RECORDS:,} records at most.")
                    batch.append(((_KEY % count).encode(), record))
                    nbytes += len(record)
                    if len(batch) >= write_frequency or nbytes >= _COMMIT_BYTES:
                        _append(env, batch, lmdb.MapFullError)
                        batch, nbytes = [], 0
                _append(env, batch, lmdb.MapFullError)
                env.sync(True)

    @staticmethod
    def load(path: PathLike, shuffle: bool = True, *, format: Format = "wire") -> DataFlow:
        """The flow that was saved, resumable at once.

        Args:
            path: As for `save`.
            shuffle: Give every pass another order.
            format: As for `save`. "pickle" also reads the predecessor's files, and runs whatever
                code a file names.

        Raises:
            ConfigError: There is no such file.
            FormatError: It is no LMDB file, or it was cut off.
            MapError: A record is damaged; raised while iterating.
        """
        ds = LMDBDataDecoder(LMDBData(path, shuffle), partial(_decoded, codec_of(format)))
        ds.skipping = None  # which is an argument of the decoder, and not of this
        return ds


def _decoded(codec: Codec, key: bytes, value: bytes) -> Any:
    return codec.decode(value)


def _append(env: Any, batch: list[tuple[bytes, bytes]], map_full: type[Exception]) -> None:
    """Write records in one transaction, again in a larger map where they do not fit."""
    while True:
        try:
            with env.begin(write=True) as txn:
                for key, value in batch:
                    txn.put(key, value, append=True)
        except map_full:
            env.set_mapsize(2 * env.info()["map_size"])
        else:
            return


@contextlib.contextmanager
def _told(path: Path, failure: type[Exception]) -> Any:
    """Turn the library's errors into one that names the file."""
    try:
        yield
    except failure as error:
        raise DataFlowError(
            f"{path} cannot be written: {error}.",
            got=f"{shutil.disk_usage(path.parent).free:,} bytes free in {path.parent}",
            fix="the disk is probably full, or a quota or limit is reached: make room",
        ) from error
