"""Datapoints kept on disk, in an SQLite database that several processes share."""

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
from typing import Any, Final

import numpy as np

from towerpack._core.errors import ConfigError, DataFlowError, FormatError
from towerpack._core.logs import get_logger
from towerpack.dataflow._compile import Wrapper
from towerpack.dataflow._flow import DataFlow, check_seed, is_random
from towerpack.dataflow._iteration_state import State, Stream, check_count, ended_early
from towerpack.dataflow._plan import Node
from towerpack.dataflow._user_files import PathLike, PerProcess, path_of
from towerpack.dataflow.content import content_of
from towerpack.dataflow.datapoints import Block, Datapoint, Positions, as_ints, to_rows
from towerpack.dataflow.formats._wire import pack, unpack
from towerpack.dataflow.formats._writing import check_finite
from towerpack.dataflow.stage_context import StageContext

log = get_logger(__name__)


class DiskCacheData(Wrapper):
    """Keep datapoints in a directory, so that what is below runs once, also in later runs.

    Every pass gives what epoch 0 of `ds` gives: random stages below it are frozen, those above
    are not. A datapoint is kept when it is first read, by whichever process reads it; a run that is
    stopped loses nothing, and what it was just writing is computed again.

    The directory records what it was made of, and is refused for anything else. Recorded are the
    stages with all their arguments and those of augmentors, the names of functions, and the seed if
    something below is random; paths, sizes and times of files; every value of arrays, and of lists
    of numbers, strings, bytes and arrays. Not recorded is what a function does, what a generator
    or a flow of your own gives, and other objects in lists. Delete the directory or change
    `version` when these change.

    Contract: in order; length of `ds`; not random; thread-safe, and processes may share it;
    resumable as `ds` is.

    Args:
        ds: Finite; its datapoints are what `pack` takes.
        path: A directory of its own, made if it is not there, on a disk of this machine.
        seed: For what is random below; by default the run's.
        version: Of what is below.

    Raises:
        ConfigError: `ds` is infinite; or, when it is read, the directory belongs to another
            pipeline, or a datapoint cannot be packed.
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
        return DiskCacheStream(self.ds, below, self._store(below).get(), state)

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
            found = to_rows(self.inner.read(0, places))
            store.write(zip(places.tolist(), found, strict=True))
            for index, datapoint in zip(missing, found, strict=True):
                rows[index] = datapoint
        return rows


class DiskCacheStream(Stream):
    """Stream of what is kept, and then of what can only be read in order."""

    def __init__(self, ds: DataFlow, context: StageContext, store: DiskStore, state: State) -> None:
        self._ds, self._context, self._store = ds, context, store
        self._position = check_count(None if state is None else state["position"], 1 << 62)
        self._saved = None if state is None else state["inner"]
        self._inner: Stream | None = None

    def __next__(self) -> Datapoint:
        datapoint = self._kept() if self._inner is None else MISSING
        if datapoint is MISSING:
            datapoint = self._computed()
        self._position += 1
        return datapoint

    def state(self) -> State:
        # Without `inner`, a resume that finds nothing on disk reads up to the position.
        inner = self._saved if self._inner is None else self._inner.state()
        return {"position": self._position, "inner": inner}

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()

    def _kept(self) -> Datapoint:
        (datapoint,) = self._store.read([self._position])
        if datapoint is not MISSING:
            self._saved = None  # it is where the state was, and no longer here
            return datapoint
        (end,) = self._store.read([END])
        if end is not MISSING and self._position >= end:
            raise StopIteration
        return MISSING

    def _computed(self) -> Datapoint:
        if self._inner is None:
            self._inner = self._ds.open_in(self._context, 0, self._saved)
            for position in range(self._position if self._saved is None else 0):
                try:
                    self._store.write([(position, next(self._inner))])
                except StopIteration:
                    origin = "the cache or the state was made of"
                    raise ended_early(self._ds, position, self._position, origin) from None
        try:
            datapoint = next(self._inner)
        except StopIteration:
            self._store.write([(END, self._position)])
            raise
        self._store.write([(self._position, datapoint)])
        return datapoint


MISSING: Final = object()  # what is read where nothing is
END: Final = -1  # the position of the length of a pass, which is known when one has ended
_IDENTITY: Final = -2
_NAME: Final = "datapoints.sqlite"
_BUSY_S: Final = 600.0
_CRC_BYTES: Final = 4
# Killed processes lose nothing that they wrote. What a power failure damages is found. A log beside
# the database would be faster, but a forked child believes in locks that only its parent holds.
_SETUP: Final = (
    "PRAGMA page_size=16384",
    "PRAGMA journal_mode=TRUNCATE",
    "PRAGMA synchronous=OFF",
    "CREATE TABLE IF NOT EXISTS datapoints (position INTEGER PRIMARY KEY, data BLOB NOT NULL)",
)


class DiskStore:
    """Datapoints by position in a directory; thread-safe, and each process opens its own.

    A directory of another `identity`, of which the datapoints are a function, is refused.
    """

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None
        path.mkdir(parents=True, exist_ok=True)
        if any(not name.startswith(_NAME) for name in os.listdir(path)):
            raise ConfigError(f"{path} holds something else than a cache.")
        with self._open() as db:
            for statement in _SETUP:
                db.execute(statement)
            db.execute("INSERT OR IGNORE INTO datapoints VALUES (?, ?)", _row(_IDENTITY, identity))
        (found,) = self.read([_IDENTITY])
        if found is MISSING:
            raise _damaged(path, "nothing says whose it is")
        if found != identity:
            raise ConfigError(
                f"{path} is the cache of another pipeline.",
                got=", ".join(f"{name}={value!r}" for name, value in dict(found).items()),
                expected=", ".join(f"{name}={value!r}" for name, value in identity.items()),
                fix="delete the directory, or give another one",
            )

    def read(self, positions: Sequence[int]) -> list[Datapoint]:
        """Datapoints, or `MISSING` in their places."""
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
        log.warning("%s has a damaged record; datapoint %d is computed again", self.path, position)
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
            fix = "see that there is room, and that it may be written to"
            raise DataFlowError(f"{self.path / _NAME}: {error}.", fix=fix) from error
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
