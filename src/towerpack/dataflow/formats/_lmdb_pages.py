"""Pages of LMDB files, each compared with what it should be before it is used."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from towerpack._core.errors import ConfigError, FormatError
from towerpack.dataflow._opening import OpenFile

_MAGIC: Final = 0xBEEFC0DE
_VERSION: Final = 1
_NO_PAGE: Final = (1 << 64) - 1
_DEEPEST: Final = 32  # LMDB's own limit
_KEPT_BRANCHES: Final = 1024

# A page begins with its number, a field that is not used, flags and, but for overflow pages, where
# the offsets of its nodes end.
PAGE: Final = struct.Struct("<QHHHH")
OVERFLOW_PAGE: Final = struct.Struct("<QHHI")
LEAF, OVERFLOW, DIRTY = 0x02, 0x04, 0x10
_BRANCH, _META_FLAG = 0x01, 0x08
_META: Final = struct.Struct("<IIQQ48sIHHQQQQQQQ")
_REVERSED_KEYS, _SORTED_DUPLICATES, _INTEGER_KEYS = 0x02, 0x04, 0x08


@dataclass(frozen=True)
class Tree:
    """What the newest meta page says.

    Attributes:
        page_size: In bytes.
        root: Page of the tree's root.
        depth: Levels of the tree; 0 if it is empty.
        entries: How many keys there are.
        flags: How keys are ordered.
        transaction: Grows with every change.
    """

    page_size: int
    root: int
    depth: int
    entries: int
    flags: int
    transaction: int


class PagedFile:
    """An LMDB file, opened for reading by pages. Safe to use from several threads.

    Args:
        path: The file.

    Attributes:
        tree: What its newest meta page says.
        size: In bytes.
        file: To read at offsets.

    Raises:
        FormatError: It is no LMDB file, or damaged.
        ConfigError: It holds several values for a key.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = os.stat(path).st_size
        self.file = OpenFile(path)
        self.tree = self._newest()
        self._branches: dict[int, bytes] = {}

    @property
    def sorted_by_bytes(self) -> bool:
        """Whether the order of the keys is that of bytes in Python, so that `find` works."""
        return not self.tree.flags & (_REVERSED_KEYS | _INTEGER_KEYS)

    def branch(self, number: int) -> bytes:
        """A branch page; the last ones are kept."""
        page = self._branches.get(number)
        if page is None:
            page = self.page(number, _BRANCH)
            if len(self._branches) >= _KEPT_BRANCHES:
                self._branches.clear()
            self._branches[number] = page
        return page

    def page(self, number: int, kind: int) -> bytes:
        """A page that is one of this kind."""
        size = self.tree.page_size
        offset = number * size
        if offset > self.size - size:
            raise self.damaged(f"page {number} is missing")
        page = self.file.read_at(offset, size)
        if len(page) < size:
            raise self.damaged(f"page {number} is missing")
        found, _, flags, _, _ = PAGE.unpack_from(page)
        if found != number or flags & ~DIRTY != kind:
            raise self.damaged(f"page {number} is another one, or of another kind")
        return page

    def offsets(self, page: bytes, number: int) -> Sequence[int]:
        """Where the nodes of a page begin."""
        count = self.count(page, number)
        return struct.unpack_from(f"<{count}H", page, PAGE.size)

    def count(self, header: bytes, number: int) -> int:
        """How many nodes a page has."""
        end = PAGE.unpack_from(header)[3]
        if not PAGE.size < end <= self.tree.page_size or end % 2:
            raise self.damaged(f"page {number} has no nodes")
        return (end - PAGE.size) // 2

    def _newest(self) -> Tree:
        first = self._meta(0, 4096)
        # The second page lies where the first one's page ends.
        second = self._meta(first.page_size, first.page_size)
        tree = max(first, second, key=lambda tree: tree.transaction)
        empty = tree.root == _NO_PAGE
        if (tree.depth == 0) != empty or (tree.entries == 0) != empty or tree.depth > _DEEPEST:
            raise self.damaged(f"a tree of depth {tree.depth} with {tree.entries:,} entries")
        if not empty and tree.root >= self.size // tree.page_size:
            raise self.damaged(f"its root, page {tree.root}, is missing")
        if tree.flags & _SORTED_DUPLICATES:
            raise ConfigError(
                f"{self.path} holds several values for one key, which is not supported."
            )
        return tree

    def _meta(self, offset: int, page_size: int) -> Tree:
        raw = self.file.read_at(offset, PAGE.size + _META.size)
        if len(raw) < PAGE.size + _META.size:
            raise self.damaged(f"it has {self.size:,} bytes only")
        _, _, page_flags, _, _ = PAGE.unpack_from(raw)
        magic, version, _, _, free, _, flags, depth, *counts = _META.unpack_from(raw, PAGE.size)
        if magic != _MAGIC or not page_flags & _META_FLAG:
            raise self.damaged("it does not begin as one of a 64-bit little-endian machine")
        if version != _VERSION:
            raise FormatError(
                f"{self.path} is an LMDB file of format version {version}.",
                expected=f"version {_VERSION}, that of LMDB 0.9",
                fix="mdb_dump of its LMDB, mdb_load of LMDB 0.9",
            )
        (found_size,) = struct.unpack_from("<I", free)
        if not 256 <= found_size <= 1 << 16 or found_size & (found_size - 1):
            raise self.damaged(f"pages of {found_size} bytes")
        if offset and found_size != page_size:
            raise self.damaged("its meta pages disagree")
        _, _, _, entries, root, _, transaction = counts
        return Tree(found_size, root, depth, entries, flags, transaction)

    def damaged(self, what: str) -> FormatError:
        """Something else than there should be."""
        return FormatError(
            f"{self.path} cannot be read as an LMDB file: {what}.",
            got=f"{self.size:,} bytes",
            fix="it was cut off, changed, or is something else; write or fetch it again",
        )
