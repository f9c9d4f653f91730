"""Several small datapoints in one piece; those of plain values in a quicker form than others.

A *row* is a tuple or a list of plain values: `None`, bool, int, float, str, bytes. Rows of one kind
are a msgpack array of arrays:

    "TPW" 2 | "t" or "l" | array

All that `pack_all` takes can be mixed, and is then packed by that.
"""

from __future__ import annotations

import importlib
import struct
from itertools import chain
from typing import Any, Final

from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow.formats._wire import damages, pack_all, take_apart, unpack_all
from towerpack.dataflow.formats._wire_tree import PLAIN, Buffer, Writer

_MAGIC: Final = b"TPW\x02"
_HEAD: Final = len(_MAGIC) + 1
_KINDS: Final[dict[type[Any], bytes]] = {tuple: b"t", list: b"l"}
_COUNT: Final = struct.Struct(">BI")  # how msgpack begins an array
_ARRAY: Final = 0xDD
MOST_IN_BUNDLE: Final = 128
"""How many datapoints a bundle may have, and a row components."""


class Bundle:
    """Small datapoints that are packed as they come; what they hold may change afterwards.

    Args:
        largest: What is larger is not for a bundle.

    Attributes:
        nbytes: What all take in one piece, at most.
    """

    def __init__(self, largest: int) -> None:
        self._largest = largest
        self._packer = _packer()
        self.clear()

    def clear(self) -> None:
        """Begin another one."""
        self._kind: type[Any] | None = None
        self._rows: list[bytes] = []
        self._parts: list[Writer] = []
        self.nbytes = _HEAD + _COUNT.size

    def __len__(self) -> int:
        return len(self._parts) or len(self._rows)

    def add(self, datapoint: Datapoint) -> Writer | None:
        """Take a datapoint; one that is too large is given back, taken apart.

        Raises:
            ConfigError: It holds something of a type that `pack` does not take.
        """
        if not self._parts:
            row = self._row(datapoint)
            if row is not None:
                self._rows.append(row)
                self.nbytes += len(row)
                return None
        parts = take_apart(datapoint)
        nbytes = parts.nbytes
        if nbytes > self._largest:
            return parts
        if self._rows:
            self._take_rows_apart()
        parts.keep()
        self._parts.append(parts)
        self.nbytes += nbytes
        return None

    def pack(self) -> bytes:
        """All of them, for `unpack_bundle`."""
        if self._kind is None:
            return pack_all(self._parts)
        count = _COUNT.pack(_ARRAY, len(self._rows))
        return b"".join([_MAGIC, _KINDS[self._kind], count, *self._rows])

    def _row(self, datapoint: Any) -> bytes | None:
        kind = datapoint.__class__
        if kind is not self._kind and (self._rows or kind not in _KINDS):
            return None
        if not PLAIN.issuperset(map(type, datapoint)) or len(datapoint) > MOST_IN_BUNDLE:
            return None
        try:
            row = self._packer.pack(datapoint)
        except OverflowError:
            return None  # an integer; `take_apart` says what is wrong with it
        if len(row) > self._largest:
            return None
        self._kind = kind
        return row

    def _take_rows_apart(self) -> None:
        """From now on all are packed the common way."""
        rows = unpack_bundle(self.pack(), len(self._rows))
        self._parts = [take_apart(row) for row in rows]
        self._kind, self._rows = None, []
        self.nbytes = sum(parts.nbytes for parts in self._parts)


def unpack_bundle(data: Buffer, count: int) -> list[Datapoint]:
    """The so many datapoints of which a bundle made these bytes, with memory of their own.

    Raises:
        FormatError: The bytes are damaged, or something else.
    """
    view = memoryview(data).cast("B")
    head = bytes(view[:_HEAD])
    if head[:-1] != _MAGIC:
        return unpack_all(view, count, copy=True)
    with damages():
        kind = next(kind for kind, code in _KINDS.items() if code == head[-1:])
        return _unpack_rows(view[_HEAD:], kind, count)


def _unpack_rows(raw: memoryview, kind: type[Any], count: int) -> list[Datapoint]:
    # msgpack allocates what an array claims to hold before it reads it, 1024 levels deep at most.
    rows: Any = _msgpack().unpackb(
        raw,
        use_list=kind is list,
        max_array_len=MOST_IN_BUNDLE,
        max_map_len=0,
        max_ext_len=0,
        unicode_errors="surrogatepass",
    )
    if type(rows) is not kind or len(rows) != count:
        raise ValueError(f"it is not {count:,} rows")
    if not {kind}.issuperset(map(type, rows)):
        raise ValueError("a row that is none")
    if not PLAIN.issuperset(map(type, chain.from_iterable(rows))):
        raise ValueError("a value that is not plain")
    return list(rows)


def _packer() -> Any:
    return _msgpack().Packer(unicode_errors="surrogatepass")


def _msgpack() -> Any:
    return importlib.import_module("msgpack")
