"""LMDB databases of records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from towerpack._core.errors import ConfigError
from towerpack.dataflow._arguments import given
from towerpack.dataflow._blocks import Block, Positions, as_array, as_ints
from towerpack.dataflow._content import content_of_files, content_of_values
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._flow import DataFlow
from towerpack.dataflow._opening import PathLike, PerProcess, file_of, path_of
from towerpack.dataflow._plan import Node
from towerpack.dataflow._strings import Strings
from towerpack.dataflow.formats._lmdb_file import LMDBFile
from towerpack.dataflow.sources._planned import PlannedSource
from towerpack.dataflow.stages._map import MapData
from towerpack.dataflow.stages._mapping import Limit, OnError

KEYS = b"__keys__"
"""The predecessor's list of keys, which is no datapoint."""

_ALL = "leave out keys=, and everything is read"

Keys = Sequence[str | bytes] | str


class LMDBData(PlannedSource[Node]):
    """Datapoint i is the i-th record of an LMDB database, `[key, value]`, both bytes.

    The file is read by code of our own, page by page: the package `lmdb` is not needed, a damaged
    file is an error and no crash, and any number of flows, threads and processes may read one
    file. It must not be written to meanwhile. What is kept in memory is 16 bytes for each leaf page
    of its tree, at most a few MB for a million records.

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
        FormatError: It is no LMDB file of version 0.9, or a damaged one.
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
        records = LMDBNode(self.path)
        if keys is not None and not records.sorted_by_bytes:
            raise ConfigError(f"{self.path} orders its keys by a rule of its own.", fix=_ALL)
        self._keys = None if keys is None else _flat(keys)
        node = records if self._keys is None else LMDBKeysNode(records, self._keys)
        super().__init__(node, shuffle=shuffle, seed=seed)

    def content(self) -> str:
        return (
            f"{super().content()}, {content_of_values(self._keys)}, {content_of_files([self.path])}"
        )

    def arguments(self) -> str:
        name = self.path.name
        return f"{self.path.parent.name}/{name}" if name == "data.mdb" else name


class LMDBNode(Node):
    """Reads records by their place in the order of keys.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        file = LMDBFile(path)
        self._leaves = file.leaves()
        self._hidden = self._place_of(KEYS, file) if file.sorted_by_bytes else None
        self.size = file.tree.entries - (self._hidden is not None)
        self.sorted_by_bytes = file.sorted_by_bytes
        self.file = PerProcess(partial(LMDBFile, path, file.tree))

    def read(self, epoch: int, positions: Positions) -> Block:
        file = self.file.get()
        places = as_array(positions)
        if self._hidden is not None:
            places = places + (places >= self._hidden)
        ends = self._leaves.ends
        leaves = ends.searchsorted(places, "right")
        pages = self._leaves.pages[leaves].tolist()
        # Counted from the end of the page: -1 is the last record there.
        indexes = (places - ends[leaves]).tolist()
        return [list(file.item(page, index)) for page, index in zip(pages, indexes, strict=True)]

    def get(self, epoch: int, position: int) -> Datapoint:
        place = position + (self._hidden is not None and position >= self._hidden)
        leaf = self._leaves.ends.searchsorted(place, "right")
        index = place - int(self._leaves.ends[leaf])
        return list(self.file.get().item(int(self._leaves.pages[leaf]), index))

    def _place_of(self, key: bytes, file: LMDBFile) -> int | None:
        found = file.find(key)
        if found is None:
            return None
        page, index = found
        leaf = int((self._leaves.pages == page).argmax())
        return index + (int(self._leaves.ends[leaf - 1]) if leaf else 0)


class LMDBKeysNode(Node):
    """Reads records by key.

    Args:
        records: The whole database.
        keys: One for each position, or a format of the position.
    """

    def __init__(self, records: LMDBNode, keys: Strings | str) -> None:
        self._records = records
        self._keys = keys
        self.size = records.size if isinstance(keys, str) else len(keys)

    def read(self, epoch: int, positions: Positions) -> Block:
        return [self.get(epoch, position) for position in as_ints(positions)]

    def get(self, epoch: int, position: int) -> Datapoint:
        if isinstance(self._keys, str):
            key = _formatted(self._keys, position).encode()
            # The keys are probably what is there, in order: then the search can be saved.
            record = self._records.get(epoch, position)
            if record[0] == key:
                return record
        else:
            key = self._keys[position].encode("utf-8", "surrogateescape")
        file = self._records.file.get()
        found = file.find(key)
        if found is None:
            raise ConfigError(
                f"{file.path} has no record {key!r:.80}.",
                got=f"keys= asks for it at position {position}",
                fix=_ALL,
            )
        return list(file.item(*found))


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


def _flat(keys: Keys) -> Strings | str:
    """Keys without an object for each; a format, once it is known to be one."""
    if not isinstance(keys, str):
        return _listed(keys)
    try:
        good = _formatted(keys, 1) != _formatted(keys, 2)
    except (ValueError, TypeError, LookupError, AttributeError):
        good = False
    if not good:
        raise ConfigError(
            f"keys={keys!r} is no format for the numbers of records.",
            expected='for example "%08d" or "{:0>8d}", or a list of keys',
        )
    return keys


def _listed(keys: Any) -> Strings:
    several = isinstance(keys, Iterable)
    listed: list[Any] = list(cast("Iterable[Any]", keys)) if several else [keys]
    for key in listed:
        if not isinstance(key, (str, bytes)):
            raise ConfigError(
                "keys= lists what is no key.",
                got=given(key),
                expected='str or bytes, or a format for the number of a record such as "%08d"',
            )
    return Strings(
        key if isinstance(key, str) else key.decode("utf-8", "surrogateescape") for key in listed
    )


def _formatted(pattern: str, position: int) -> str:
    return pattern % position if "%" in pattern else pattern.format(position)
