"""Datapoints on disk by their positions, in an SQLite database that several processes share."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import zlib
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from towerpack._core.errors import ConfigError, DataFlowError, FormatError
from towerpack._core.logs import get_logger
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow.formats._wire import pack, unpack

log = get_logger(__name__)

MISSING: Final = object()
"""What is read where nothing is."""

END: Final = -1
"""The position of the length of a pass, which is known when one has ended."""

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
    """Datapoints by position. Safe to use from several threads; each process opens its own.

    Args:
        path: The directory; made if it is not there.
        identity: What the datapoints are a function of; must be that of all who use the directory.

    Raises:
        ConfigError: The directory belongs to something else.
        FormatError: What is in it is damaged.
    """

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None
        _make(path)
        with self._open() as db:
            for statement in _SETUP:
                db.execute(statement)
            db.execute("INSERT OR IGNORE INTO datapoints VALUES (?, ?)", _row(_IDENTITY, identity))
        found = self.read([_IDENTITY])[0]
        if found is MISSING:
            raise _damaged(path, "nothing says whose it is")
        if found != identity:
            raise ConfigError(
                f"{path} is the cache of another pipeline.",
                got=_listed(found),
                expected=_listed(identity),
                fix="delete the directory, or give another one",
            )

    def read(self, positions: Sequence[int]) -> list[Datapoint]:
        """Datapoints, or `MISSING` in their places."""
        select = "SELECT data FROM datapoints WHERE position = ?"
        with self._open() as db:
            rows = [db.execute(select, (position,)).fetchone() for position in positions]
        return [
            MISSING if row is None else self._unpacked(position, row[0])
            for position, row in zip(positions, rows, strict=True)
        ]

    def write(self, datapoints: Iterable[tuple[int, Datapoint]]) -> None:
        """Keep datapoints of some positions."""
        rows = [_row(position, datapoint) for position, datapoint in datapoints]
        with self._open() as db:
            db.executemany("INSERT OR REPLACE INTO datapoints VALUES (?, ?)", rows)

    def _unpacked(self, position: int, data: Any) -> Datapoint:
        if isinstance(data, bytes):
            content = memoryview(data)[_CRC_BYTES:]
            if data[:_CRC_BYTES] == _crc(position, content):
                return unpack(content, copy=True)
        log.warning("%s has a damaged record; datapoint %d is computed again", self.path, position)
        return MISSING

    @contextlib.contextmanager
    def _open(self) -> Generator[sqlite3.Connection]:
        """The database in one transaction."""
        try:
            with self._lock:
                if self._db is None:
                    self._db = sqlite3.connect(
                        self.path / _NAME, timeout=_BUSY_S, check_same_thread=False
                    )
                with self._db:
                    yield self._db
        except sqlite3.OperationalError as error:
            raise DataFlowError(
                f"{self.path / _NAME}: {error}.",
                fix="see that there is room, and that it may be written to",
            ) from error
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


def _make(path: Path) -> None:
    """Make the directory, or see that it is a cache."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"The directory {path} cannot be made: {error.strerror}.", fix="give another one"
        ) from error
    if any(not name.startswith(_NAME) for name in os.listdir(path)):
        raise ConfigError(f"{path} holds something else than a cache.", fix="give a new directory")


def _damaged(path: Path, what: str) -> FormatError:
    return FormatError(f"The cache {path} is damaged: {what}.", fix=f"delete {path}")


def _listed(identity: Any) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in dict(identity).items())
