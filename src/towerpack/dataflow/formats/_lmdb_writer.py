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
        records = encoded(df, codec_of(format))
        if write_frequency < 1:
            raise ConfigError(f"write_frequency={write_frequency} writes nothing.", expected="1...")
        target = path_of(path)
        target = target / "data.mdb" if target.is_dir() else target
        with whole_file(target) as temporary, _Writer(temporary, target, write_frequency) as writer:
            for record in records:
                writer.write(record)

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
            FormatError: It is no LMDB file, or a damaged one.
            MapError: A record is damaged; raised while iterating.
        """
        ds = LMDBDataDecoder(LMDBData(path, shuffle), partial(_decoded, codec_of(format)))
        ds.skipping = None  # which is an argument of the decoder, and not of this
        return ds


def _decoded(codec: Codec, key: bytes, value: bytes) -> Any:
    return codec.decode(value)


class _Writer:
    """Appends records to a new file, whose memory map grows as needed.

    Growing ends the transaction, and a map that is full loses it. So the space that records take
    is counted beforehand, generously: the file itself is only as long as what it holds.
    """

    def __init__(self, path: Path, target: Path, write_frequency: int) -> None:
        lmdb: Any = require("lmdb", extra="formats", needed_for="LMDBSerializer.save")
        self._failure: type[Exception] = lmdb.Error
        self._target = target
        self._map_bytes = _FIRST_MAP_BYTES
        try:
            # No lock file: nobody else knows this one.
            options = {"lock": False, "sync": False, "meminit": False, "subdir": False}
            self._env = lmdb.open(str(path), map_size=self._map_bytes, **options)
        except lmdb.Error as error:
            raise _not_written(target, error) from error
        self._page_bytes: int = self._env.stat()["psize"]
        self._write_frequency = write_frequency
        self._txn = self._env.begin(write=True)
        self._count = 0
        self._pending = 0
        self._pending_bytes = 0
        self._used_bytes = 64 * self._page_bytes

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        # What is not committed ends with it.
        with contextlib.closing(self._env):
            if kind is None:
                try:
                    self._txn.commit()
                    self._env.sync(True)
                except self._failure as error:
                    raise _not_written(self._target, error) from error

    def write(self, record: bytes) -> None:
        """Append one record.

        Raises:
            DataFlowError: The file cannot be written.
        """
        try:
            self._append(record)
        except self._failure as error:
            raise _not_written(self._target, error) from error

    def _append(self, record: bytes) -> None:
        if self._count >= _MOST_RECORDS:
            raise ConfigError(
                f"One file holds {_MOST_RECORDS:,} records at most.", fix="write several"
            )
        # Large records have pages of their own. Others share them, which are half full at least.
        large = len(record) > self._page_bytes // 4
        space = len(record) + 3 * self._page_bytes if large else 2 * (len(record) + 64)
        full = self._pending and self._pending_bytes + len(record) > _COMMIT_BYTES
        if full or self._pending >= self._write_frequency:
            self._commit()
        if self._used_bytes + space > self._map_bytes:
            self._grow(self._used_bytes + space)
        self._txn.put((_KEY % self._count).encode(), record, append=True)
        self._count += 1
        self._pending += 1
        self._pending_bytes += len(record)
        self._used_bytes += space

    def _commit(self) -> None:
        self._txn.commit()
        self._pending = self._pending_bytes = 0
        # Each transaction copies the pages that it changes.
        self._used_bytes += 64 * self._page_bytes
        self._txn = self._env.begin(write=True)

    def _grow(self, needed: int) -> None:
        self._txn.commit()
        while self._map_bytes < needed:
            self._map_bytes *= 2
        self._env.set_mapsize(self._map_bytes)
        self._txn = self._env.begin(write=True)


def _not_written(path: Path, error: Exception) -> DataFlowError:
    return DataFlowError(
        f"{path} cannot be written: {error}.",
        got=f"{shutil.disk_usage(path.parent).free:,} bytes free in {path.parent}",
        fix="the disk is probably full, or a quota or limit is reached: make room",
    )
