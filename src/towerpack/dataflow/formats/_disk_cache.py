from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import zlib
from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from towerpack._core.errors import ConfigError, DataFlowError, FormatError
from towerpack._core.files import refuse_link
from towerpack._core.logs import get_logger
from towerpack.dataflow._compile import Wrapper
from towerpack.dataflow._flow import DataFlow, check_seed, is_random
from towerpack.dataflow._iteration_state import (
    State,
    Stream,
    TracedStream,
    check_count,
    ended_early,
)
from towerpack.dataflow._plan import Node
from towerpack.dataflow._user_files import PathLike, PerProcess, path_of
from towerpack.dataflow.content import content_of
from towerpack.dataflow.datapoints import Block, Datapoint, Positions, as_ints, to_rows
from towerpack.dataflow.formats._wire import pack, unpack
from towerpack.dataflow.formats._writing import check_finite
from towerpack.dataflow.stage_context import StageContext

log = get_logger(__name__)


class DiskCacheData(Wrapper):
    """Cache datapoints in a directory, so that `ds` is computed only once, also in later runs.

    Every pass yields epoch 0 of `ds`, so random stages in `ds` are frozen. Random stages above the
    cache are not. The process that first reads a datapoint stores it. If a run is killed, only the
    datapoint that was being written is computed again.

    The directory stores a description of the pipeline, and other pipelines cannot use the
    directory. The description covers stages and augmentors with their arguments, names of
    functions, and paths, sizes and times of files. It covers the values of arrays and of lists of
    numbers, strings, bytes and arrays, and the seed if `ds` is random. It does not cover the code
    of functions, generators and your own flows, or other objects in lists. If these change,
    delete the directory or change `version`.

    Thread-safe, and processes may share the directory.

    Args:
        ds: Finite flow of datapoints that `pack` supports.
        path: Directory used only for this cache, on a local disk. It is created if necessary.
        seed: Seed for random stages in `ds` (default: the seed of the run).
        version: Any text that identifies the version of the code in `ds`.

    Raises:
        ConfigError: `ds` is infinite. While reading: the directory belongs to another pipeline, or
            a datapoint cannot be packed.
    """

    without_effect = ("path",)

    def __init__(
        self, ds: DataFlow, path: PathLike, *, seed: int | None = None, version: str = ""
    ) -> None:
        super().__init__(ds)
        self.path = path_of(path)
        self.seed = None if seed is None else check_seed(seed)
        self.version = version
        check_finite(ds)
        self._stores: dict[int, PerProcess[DiskStore]] = {}

    def arguments(self) -> str:
        return self.path.name

    def compile(self, context: StageContext) -> Node | None:
        below = self._below(context)
        inner = self.ds.compile_in(below)
        return None if inner is None else DiskCacheNode(inner, self._store(below))

    def open(self, context: StageContext, epoch: int, state: State) -> Stream:
        below = self._below(context)
        below = replace(below, traced=False)
        stream = DiskCacheStream(self.ds, below, self._store(below).get(), state)
        return TracedStream(stream, "DiskCacheData", epoch) if context.traced else stream

    def _below(self, context: StageContext) -> StageContext:
        return context if self.seed is None else replace(context, seed=self.seed, branch="")

    def _store(self, context: StageContext) -> PerProcess[DiskStore]:
        seed = context.seed if is_random(self.ds) else -1
        if seed not in self._stores:
            identity: dict[str, Any] = {"pipeline": content_of(self.ds), "version": self.version}
            if seed >= 0:
                identity |= {"seed": seed, "branch": context.branch}
            self._stores[seed] = PerProcess(partial(DiskStore, self.path, identity))
        return self._stores[seed]


class DiskCacheNode(Node):
    first_pass = True

    def __init__(self, inner: Node, store: PerProcess[DiskStore]) -> None:
        self.inner = inner
        self.size = inner.size
        self._store = store

    def read(self, epoch: int, positions: Positions) -> Block:
        store = self._store.get()
        wanted = as_ints(positions)
        rows = store.read(wanted)
        missing = [index for index, row in enumerate(rows) if row is MISSING]
        if missing:
            places = np.array([wanted[index] for index in missing], np.int64)
            computed = to_rows(self.inner.read(0, places))
            store.write(zip(places.tolist(), computed, strict=True))
            for index, datapoint in zip(missing, computed, strict=True):
                rows[index] = datapoint
        return rows


class DiskCacheStream(Stream):
    """Stream of cached datapoints, followed by datapoints that are read from `ds` and stored."""

    def __init__(self, ds: DataFlow, context: StageContext, store: DiskStore, state: State) -> None:
        self._ds, self._context, self._store = ds, context, store
        self._position = check_count(None if state is None else state["position"], 1 << 62)
        self._saved = None if state is None else state["inner"]
        self._inner: Stream | None = None

    def __next__(self) -> Datapoint:
        datapoint = self._cached() if self._inner is None else MISSING
        if datapoint is MISSING:
            datapoint = self._computed()
        self._position += 1
        return datapoint

    def state(self) -> State:
        # Without `inner`, a resume with an empty cache reads `ds` up to the position.
        inner = self._saved if self._inner is None else self._inner.state()
        return {"position": self._position, "inner": inner}

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()

    def _cached(self) -> Datapoint:
        (datapoint,) = self._store.read([self._position])
        if datapoint is not MISSING:
            self._saved = None  # this state is valid only for its own position
            return datapoint
        (end,) = self._store.read([END])
        if isinstance(end, int) and self._position >= end:
            raise StopIteration
        return MISSING

    def _computed(self) -> Datapoint:
        if self._inner is None:
            self._inner = self._ds.open_in(self._context, 0, self._saved)
            for position in range(self._position if self._saved is None else 0):
                try:
                    self._store.write([(position, next(self._inner))])
                except StopIteration:
                    origin = "from which the cache or the state was made"
                    raise ended_early(self._ds, position, self._position, origin) from None
        try:
            datapoint = next(self._inner)
        except StopIteration:
            self._store.write([(END, self._position)])
            raise
        self._store.write([(self._position, datapoint)])
        return datapoint


MISSING: Final = object()  # marks positions that are not stored
END: Final = -1  # position that stores the length of a pass, once it is known
_IDENTITY: Final = -2
_NAME: Final = "datapoints.sqlite"
_BUSY_S: Final = 600.0
_CRC_BYTES: Final = 4
# Killed processes lose no written data, and checksums detect damage by power failures. A
# write-ahead log would be faster, but a forked child would inherit its parent's locks.
_TABLE: Final = "CREATE TABLE datapoints (position INTEGER PRIMARY KEY, data BLOB NOT NULL)"
_SETUP: Final = (
    "PRAGMA page_size=16384",
    "PRAGMA journal_mode=TRUNCATE",
    "PRAGMA synchronous=OFF",
    _TABLE.replace("TABLE", "TABLE IF NOT EXISTS"),
)


class DiskStore:
    """Thread-safe store of datapoints by position, which each process opens separately.

    `identity` describes the pipeline. A directory with another identity raises `ConfigError`.
    """

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None
        path.mkdir(parents=True, exist_ok=True)
        if any(not name.startswith(_NAME) for name in os.listdir(path)):
            fix = "choose an empty or a new directory"
            raise ConfigError(f"{path} contains files that do not belong to a cache.", fix=fix)
        refuse_link(path / _NAME)
        with self._open() as db:
            for statement in _SETUP:
                db.execute(statement)
            if db.execute("SELECT sql FROM sqlite_master").fetchall() != [(_TABLE,)]:
                raise _damaged(path, "it has other tables, views or triggers")
            db.execute("INSERT OR IGNORE INTO datapoints VALUES (?, ?)", _row(_IDENTITY, identity))
        (stored,) = self.read([_IDENTITY])
        if not isinstance(stored, dict):
            raise _damaged(path, "the identity of its pipeline is missing")
        known = cast("dict[str, Any]", stored)
        if known != identity:
            raise ConfigError(
                f"{path} is the cache of another pipeline.",
                got=", ".join(f"{name}={value!r}" for name, value in known.items()),
                expected=", ".join(f"{name}={value!r}" for name, value in identity.items()),
                fix="delete the directory, or choose a different one",
            )

    def read(self, positions: Sequence[int]) -> list[Datapoint]:
        """Return the datapoints at `positions`, and `MISSING` for positions not stored yet."""
        select = "SELECT data FROM datapoints WHERE position = ?"
        with self._open() as db:
            rows = [db.execute(select, (position,)).fetchone() for position in positions]
        return [self._unpacked(*pair) for pair in zip(positions, rows, strict=True)]

    def write(self, datapoints: Iterable[tuple[int, Datapoint]]) -> None:
        rows = [_row(position, datapoint) for position, datapoint in datapoints]
        with self._open() as db:
            db.executemany("INSERT OR REPLACE INTO datapoints VALUES (?, ?)", rows)

    def _unpacked(self, position: int, row: tuple[Any] | None) -> Datapoint:
        if row is None:
            return MISSING
        (data,) = row
        if isinstance(data, bytes):
            content = memoryview(data)[_CRC_BYTES:]
            if data[:_CRC_BYTES] == _crc(position, content):
                return unpack(content, copy=True)
        log.warning("%s: datapoint %d is damaged and is computed again", self.path, position)
        return MISSING

    @contextlib.contextmanager
    def _open(self) -> Generator[sqlite3.Connection]:
        try:
            with self._lock:
                if self._db is None:
                    options: Any = {"timeout": _BUSY_S, "check_same_thread": False}
                    self._db = sqlite3.connect(self.path / _NAME, **options)
                with self._db:
                    yield self._db
        except sqlite3.OperationalError as error:
            fix = "check the free disk space and the permissions"
            what = f"{self.path / _NAME} cannot be read or written: {error}."
            raise DataFlowError(what, fix=fix) from error
        except sqlite3.DatabaseError as error:
            raise _damaged(self.path, str(error)) from error

    def __del__(self) -> None:
        if self._db is not None:
            self._db.close()


def _row(position: int, datapoint: Datapoint) -> tuple[int, bytes]:
    content = pack(datapoint)
    return position, _crc(position, content) + content


def _crc(position: int, content: bytes | memoryview) -> bytes:
    return zlib.crc32(content, position & 0xFFFFFFFF).to_bytes(_CRC_BYTES, "little")


def _damaged(path: Path, what: str) -> FormatError:
    return FormatError(f"The cache {path} is damaged: {what}.", fix=f"delete {path}")
