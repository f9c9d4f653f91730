"""LMDB databases of records, and of datapoints."""

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

_LIST_OF_KEYS: Final = b"__keys__"  # the predecessor's, which is no datapoint
_KEY: Final = "%08d"  # of what is written
_MOST_RECORDS: Final = 10**8  # keys of more digits would not be in order
_COMMIT_BYTES: Final = 64 << 20
_MAP_BYTES: Final = 1 << 40  # of addresses, which take no memory and no room on the disk

Keys = Sequence[str | bytes] | str


class LMDBData(PlannedSource[Node]):
    """Datapoint i is the i-th record of an LMDB database, `[key, value]`, both bytes.

    The file is read by LMDB's own library, which maps it into memory. Any number of flows, threads
    and processes may read one file, which must not be written to meanwhile. For each record its key
    and 8 bytes are kept. A record `__keys__`, which the predecessor's files have, is left out.

    Contract: in order of the keys or as `keys` says, or exactly shuffled; as long as the database,
    or as `keys`; random if shuffled; thread- and fork-safe; resumable at once.

    Args:
        path: The file, or the directory that has it as `data.mdb`.
        shuffle: Give every pass another order, as `ShuffleData` does.
        keys: Which records, in which order: a list of keys, or a format for the record's number,
            such as `"%08d"` or `"{:0>8d}"`. By default all of them.
        seed: For the shuffle alone; by default the run's.

    Raises:
        ConfigError: There is no such file, or (when it is read) no such key.
        FormatError: It is no LMDB file, or it was cut off or changed.
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
    """Plan of records, read by the keys of their positions, or by a format of the position."""

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
                fix = "leave out keys= to read everything"
                raise ConfigError(f"{self._path} has no record {key!r:.80}.", fix=fix)
        return records


class LMDBDataDecoder(MapData):
    """Make datapoints of the records of an `LMDBData`.

    Contract, `on_error` and `max_errors` as of `MapData`.

    Args:
        lmdb_data: Yields `[key, value]`.
        decoder: Called as `decoder(key, value)`; returns a datapoint.
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
    """Keys in two arrays, without an object for each."""

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


# LMDB opens a file only once in a process.
_ENVIRONMENTS: Final[WeakValueDictionary[tuple[int, int], Any]] = WeakValueDictionary()
_OPENING: Final = threading.Lock()


def _environment(path: Path, transaction: int | None = None) -> Any:
    """The open database, in which `transaction` must still be the last one if it is given."""
    lmdb: Any = require("lmdb", extra="formats", needed_for="LMDBData")
    with _OPENING, reading(path, "an LMDB database"):
        found = os.stat(path)
        env = _ENVIRONMENTS.get((found.st_dev, found.st_ino))
        if env is None:
            # Without locks nothing is written, and forked processes may read on.
            options = {"subdir": False, "readonly": True, "lock": False, "readahead": False}
            env = lmdb.open(str(path), **options)
            _ENVIRONMENTS[found.st_dev, found.st_ino] = env
        info = env.info()
        # Reading pages that are mapped and missing would end the process.
        if (info["last_pgno"] + 1) * env.stat()["psize"] > found.st_size:
            raise ValueError(f"it was cut off: it has {found.st_size:,} bytes")
        if transaction not in (None, info["last_txnid"]):
            raise ValueError("it was changed while it was read; write to a copy")
    return env


def _checked_keys(keys: Keys) -> _FlatKeys | str:
    """Keys as bytes; a format as it is."""
    if isinstance(keys, str):
        if not re.search(r"[%{].*[d}]", keys):
            raise ConfigError(
                f"keys={keys!r} is no format for the numbers of records.",
                expected='for example "%08d" or "{:0>8d}", or a list of keys',
            )
        return keys
    return _FlatKeys(key if isinstance(key, bytes) else key.encode() for key in keys)


def _key(pattern: str, position: int) -> bytes:
    return (pattern % position if "%" in pattern else pattern.format(position)).encode()


class LMDBSerializer:
    """Write a flow to an LMDB database, and read it again."""

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
            format: "example" writes dicts as `tf.train.Example`; "pickle" writes anything, which
                only you should read.

        Raises:
            ConfigError: A datapoint cannot be written, or there are more than 100 million.
        """
        lmdb: Any = require("lmdb", extra="formats", needed_for="LMDBSerializer.save")
        records = encoded(df, format)
        integer_of(write_frequency, "write_frequency", least=1)
        target = path_of(path)
        target = target / "data.mdb" if target.is_dir() else target
        # No lock file: nobody else knows this one.
        options = {"lock": False, "sync": False, "meminit": False, "subdir": False}
        with (
            whole_file(target) as temporary,
            lmdb.open(str(temporary), map_size=_MAP_BYTES, **options) as env,
        ):
            batch, nbytes = list[tuple[bytes, bytes]](), 0
            for count, record in enumerate(records):
                if count >= _MOST_RECORDS:
                    raise ConfigError(f"One file holds {_MOST_RECORDS:,} records at most.")
                batch.append(((_KEY % count).encode(), record))
                nbytes += len(record)
                if len(batch) >= write_frequency or nbytes >= _COMMIT_BYTES:
                    _append(env, batch)
                    batch, nbytes = [], 0
            _append(env, batch)
            env.sync(True)

    @staticmethod
    def load(path: PathLike, shuffle: bool = True, *, format: Format = "wire") -> DataFlow:
        """The flow that was saved; arguments and errors as of `save` and `LMDBData`.

        Format "pickle" also reads the predecessor's files, and runs whatever code a file names.

        Raises:
            MapError: A record is damaged; raised where it is read.
        """
        _, decode = codec_of(format)
        return decoded(LMDBData(path, shuffle), decode)


def _append(env: Any, batch: list[tuple[bytes, bytes]]) -> None:
    with env.begin(write=True) as txn:
        txn.cursor().putmulti(batch, append=True)
