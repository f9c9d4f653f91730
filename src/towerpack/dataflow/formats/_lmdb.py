"""LMDB databases of records."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, cast
from weakref import WeakValueDictionary

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack._core.extras import require
from towerpack.dataflow._arguments import given
from towerpack.dataflow._content import content_of_files, content_of_values
from towerpack.dataflow._datapoints import Block, Datapoint, Positions, as_ints
from towerpack.dataflow._flow import DataFlow
from towerpack.dataflow._opening import PathLike, PerProcess, file_of, path_of, reading
from towerpack.dataflow._plan import Node
from towerpack.dataflow.sources._memory import PlannedSource
from towerpack.dataflow.stages._map import MapData
from towerpack.dataflow.stages._mapping import Limit, OnError

_LIST_OF_KEYS: Final = b"__keys__"  # the predecessor's, which is no datapoint
_READ_KEYS: Final = 1 << 16

Keys = Sequence[str | bytes] | str


class LMDBData(PlannedSource[Node]):
    """Datapoint i is the i-th record of an LMDB database, `[key, value]`, both bytes.

    The file is read by LMDB's own library, which maps it into memory. Any number of flows, threads
    and processes may read one file, which must not be written to meanwhile. The keys are listed
    once, and 8 bytes and the key are kept for each record.

    A record `__keys__`, which the predecessor's files have, is left out.

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
    """Reads records by the keys of positions.

    Args:
        path: The file.
        keys: One for each position, or a format of the position; by default those of the file.
    """

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
                raise ConfigError(
                    f"{self._path} has no record {key!r:.80}.",
                    fix="leave out keys= to read everything",
                )
        return records

    def get(self, epoch: int, position: int) -> Datapoint:
        return cast("list[Datapoint]", self.read(epoch, range(position, position + 1)))[0]


class LMDBDataDecoder(MapData):
    """Makes datapoints of the records of an `LMDBData`.

    Contract: as `MapData`.

    Args:
        lmdb_data: Yields `[key, value]`.
        decoder: Called as `decoder(key, value)`; returns a datapoint.
        on_error: As for `MapData`.
        max_errors: As for `MapData`.
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
        parts: list[bytes] = []
        sizes: list[int] = []
        iterator = iter(keys)
        while some := list(islice(iterator, _READ_KEYS)):
            parts.append(b"".join(some))
            sizes.extend(map(len, some))
        self.flat = b"".join(parts), np.cumsum([0, *sizes], dtype=np.int64)

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
    """The open database, which lives as long as somebody keeps it.

    Args:
        path: The file.
        transaction: The last one when it was opened first; it must not have changed since.

    Raises:
        FormatError: It is no LMDB file, or it was cut off or changed.
    """
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


def _checked_keys(keys: Any) -> _FlatKeys | str:
    """Keys as bytes; a format, once it is known to be one."""
    if isinstance(keys, str):
        try:
            good = _key(keys, 1) != _key(keys, 2)
        except (ValueError, TypeError, LookupError, AttributeError):
            good = False
        if not good:
            raise ConfigError(
                f"keys={keys!r} is no format for the numbers of records.",
                expected='for example "%08d" or "{:0>8d}", or a list of keys',
            )
        return keys
    listed: list[Any] = list(cast("Iterable[Any]", keys)) if isinstance(keys, Iterable) else [keys]
    for key in listed:
        if not isinstance(key, (str, bytes)):
            raise ConfigError(
                "keys= lists what is no key.",
                got=given(key),
                expected='str or bytes, or a format for the number of a record such as "%08d"',
            )
    return _FlatKeys(key if isinstance(key, bytes) else key.encode() for key in listed)


def _key(pattern: str, position: int) -> bytes:
    return (pattern % position if "%" in pattern else pattern.format(position)).encode()
