from __future__ import annotations

import os
import re
import threading
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final
from weakref import WeakValueDictionary

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack._core.extras import require
from towerpack.dataflow._flow import DataFlow
from towerpack.dataflow._plan import Node
from towerpack.dataflow._user_files import PathLike, PerProcess, file_of, path_of, reading
from towerpack.dataflow.arguments import integer_of
from towerpack.dataflow.content import content_of_files, content_of_values
from towerpack.dataflow.datapoints import Block, Datapoint, Positions, as_ints
from towerpack.dataflow.formats._writing import Format, codec_of, decoded, encoded, whole_file
from towerpack.dataflow.sources._memory import PlannedSource
from towerpack.dataflow.stages._map import MapData
from towerpack.dataflow.stages._on_error import Limit, OnError

_LIST_OF_KEYS: Final = b"__keys__"  # record of Tensorpack that is not a datapoint
_KEY: Final = "%08d"
_MOST_RECORDS: Final = 10**8  # keys with more digits would not be in order
_COMMIT_BYTES: Final = 64 << 20
_MAP_BYTES: Final = 1 << 40  # address space, which needs neither memory nor disk space

Keys = Sequence[str | bytes] | str


class LMDBData(PlannedSource[Node]):
    """Source of an LMDB database: datapoint i is `[key, value]` of the i-th record, both bytes.

    LMDB maps the file into memory. Any number of flows, threads and processes may read the file,
    but it must not be written meanwhile. Each record needs memory for its key and 8 bytes. A record
    `__keys__` of Tensorpack is left out.

    Thread- and fork-safe; resumes at once.

    Args:
        path: The file, or a directory that contains `data.mdb`.
        shuffle: Shuffle every pass differently, as `ShuffleData` does.
        keys: Keys of the records to read in their order, or a format of the record number such as
            `"%08d"` or `"{:0>8d}"` (default: all records).
        seed: Seed of the shuffle (default: the seed of the run).

    Raises:
        ConfigError: The file does not exist. While reading: a key does not exist.
        FormatError: The file is not an LMDB database, was cut off, or changed while it was read.
    """

    def __init__(
        self,
        path: PathLike,
        shuffle: bool = True,
        keys: Keys | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        path = path_of(path)
        self.path = file_of(path / "data.mdb" if path.is_dir() else path)
        self._keys = None if keys is None else _checked_keys(keys)
        super().__init__(LMDBNode(self.path, self._keys), shuffle=shuffle, seed=seed)

    def content(self) -> str:
        keys = content_of_values(getattr(self._keys, "flat", self._keys))
        return f"{super().content()}, {keys}, {content_of_files([self.path])}"

    def arguments(self) -> str:
        name = self.path.name
        return f"{self.path.parent.name}/{name}" if name == "data.mdb" else name


class LMDBNode(Node):
    def __init__(self, path: Path, keys: _FlatKeys | str | None) -> None:
        self._path = path
        env = _environment(path)
        with reading(path, "an LMDB database"), env.begin() as txn:
            if isinstance(keys, str):
                self.size = txn.stat()["entries"] - (txn.get(_LIST_OF_KEYS) is not None)
            else:
                cursor = txn.cursor().iternext(values=False)
                if keys is None:
                    keys = _FlatKeys(key for key in cursor if key != _LIST_OF_KEYS)
                self.size = len(keys)
        self._key = partial(_key, keys) if isinstance(keys, str) else keys.__getitem__
        self._env = PerProcess(partial(_environment, path, env.info()["last_txnid"]))

    def read(self, epoch: int, positions: Positions) -> Block:
        wanted = as_ints(positions)
        with reading(self._path, "an LMDB database"), self._env.get().begin() as txn:
            get = txn.get
            records = [[key, get(key) if key else None] for key in map(self._key, wanted)]
        for key, value in records:
            if value is None:
                fix = "leave out keys= to read all records"
                raise ConfigError(f"{self._path} has no record {key!r:.80}.", fix=fix)
        return records

    def name_of(self, index: int) -> str:
        return self._key(index).decode(errors="backslashreplace")


class LMDBDataDecoder(MapData):
    """Decode the records of an `LMDBData` to datapoints.

    Args:
        lmdb_data: Flow of `[key, value]`.
        decoder: Function of `(key, value)` that returns a datapoint.
        on_error, max_errors: See `MapData`.
    """

    def __init__(
        self,
        lmdb_data: DataFlow,
        decoder: Callable[[bytes, bytes], Any],
        *,
        on_error: OnError = "raise",
        max_errors: Limit = None,
    ) -> None:
        super().__init__(lmdb_data, decoder, on_error=on_error, max_errors=max_errors)

    def function(self) -> Callable[..., Any]:
        return partial(_decoded, self.f)


def _decoded(decoder: Callable[[bytes, bytes], Any], record: Datapoint) -> Any:
    return decoder(record[0], record[1])


class _FlatKeys:
    """List of keys, stored in two arrays without an object for each key."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        buffer, ends = bytearray(), array("q", [0])
        for key in keys:
            buffer += key
            ends.append(len(buffer))
        self.flat = bytes(buffer), np.frombuffer(ends, np.int64)

    def __len__(self) -> int:
        return len(self.flat[1]) - 1

    def __getitem__(self, position: int) -> bytes:
        buffer, ends = self.flat
        start, end = ends[position : position + 2].tolist()
        return buffer[start:end]


# LMDB cannot open a file twice in a process.
_ENVIRONMENTS: Final[WeakValueDictionary[tuple[int, int], Any]] = WeakValueDictionary()
_OPENING: Final = threading.Lock()


def _environment(path: Path, transaction: int | None = None) -> Any:
    """Open the database. If `transaction` is given, check that nothing was written after it."""
    lmdb: Any = require("lmdb", extra="formats", needed_for="LMDBData")
    with _OPENING, reading(path, "an LMDB database"):
        status = os.stat(path)
        env = _ENVIRONMENTS.get((status.st_dev, status.st_ino))
        if env is None:
            # Without locks, no file is written, and forked processes can continue to read.
            options = {"subdir": False, "readonly": True, "lock": False, "readahead": False}
            env = lmdb.open(str(path), **options)
            _ENVIRONMENTS[status.st_dev, status.st_ino] = env
        info = env.info()
        # Reading a mapped page after the end of the file would kill the process.
        if (info["last_pgno"] + 1) * env.stat()["psize"] > status.st_size:
            raise ValueError(f"it was cut off at {status.st_size:,} bytes")
        if transaction not in (None, info["last_txnid"]):
            raise ValueError("it was changed while it was read; write to a copy")
    return env


def _checked_keys(keys: Keys) -> _FlatKeys | str:
    if isinstance(keys, str):
        if not re.search(r"[%{].*[d}]", keys):
            raise ConfigError(
                f"keys={keys!r} is not a format of record numbers.",
                expected='for example "%08d" or "{:0>8d}", or a list of keys',
            )
        return keys
    return _FlatKeys(key if isinstance(key, bytes) else key.encode() for key in keys)


def _key(pattern: str, position: int) -> bytes:
    return (pattern % position if "%" in pattern else pattern.format(position)).encode()


class LMDBSerializer:
    """Serializer of flows to LMDB databases."""

    @staticmethod
    def save(
        df: DataFlow, path: PathLike, write_frequency: int = 5000, *, format: Format = "wire"
    ) -> None:
        """Write one pass of a flow, under the keys `00000000`, `00000001`, ...

        Args:
            df: Finite flow of datapoints that `pack` supports.
            path: File to write, or an existing directory in which to write `data.mdb`. The file
                appears, or replaces an older file, when it is complete.
            write_frequency: Limit of buffered records. Buffers are also written at 64 MB.
            format: "wire" is the format of `pack`, "example" stores dicts as `tf.train.Example`.
                "pickle" stores any object, but loading an untrusted file can run any code.

        Raises:
            ConfigError: A datapoint cannot be written, or there are more than 100 million.
        """
        lmdb: Any = require("lmdb", extra="formats", needed_for="LMDBSerializer.save")
        records = encoded(df, format)
        integer_of(write_frequency, "write_frequency", least=1)
        target = path_of(path)
        target = target / "data.mdb" if target.is_dir() else target
        # The temporary file needs no locks.
        options = {"lock": False, "sync": False, "meminit": False, "subdir": False}
        with (
            whole_file(target) as temporary,
            lmdb.open(str(temporary), map_size=_MAP_BYTES, **options) as env,
        ):
            batch, nbytes = list[tuple[bytes, bytes]](), 0
            for count, record in enumerate(records):
                if count >= _MOST_RECORDS:
                    what = f"An LMDB file can hold at most {_MOST_RECORDS:,} records."
                    raise ConfigError(what, fix="split the flow into several files")
                batch.append(((_KEY % count).encode(), record))
                nbytes += len(record)
                if len(batch) >= write_frequency or nbytes >= _COMMIT_BYTES:
                    _append(env, batch)
                    batch, nbytes = [], 0
            _append(env, batch)
            env.sync(True)

    @staticmethod
    def load(path: PathLike, shuffle: bool = True, *, format: Format = "wire") -> DataFlow:
        """Return the saved flow. Errors are as for `LMDBData`.

        Args:
            path, shuffle: See `LMDBData`.
            format: Format as for `save`. "pickle" also reads files of Tensorpack, and runs any code
                that a file names.

        Raises:
            MapError: A record is damaged. Raised during iteration.
        """
        _, decode = codec_of(format)
        return decoded(LMDBData(path, shuffle), decode)


def _append(env: Any, batch: list[tuple[bytes, bytes]]) -> None:
    with env.begin(write=True) as txn:
        txn.cursor().putmulti(batch, append=True)
