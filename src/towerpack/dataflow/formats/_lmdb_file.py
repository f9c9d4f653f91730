"""LMDB's file format, read without LMDB's library.

The library maps a file into memory and believes it: one wrong bit in a length, or a file that was
cut off, ends the process. It also wants one environment in each process and path, and its newer
versions cannot read what older ones wrote. Reading is simple: pages of a B-tree, in which every
offset is compared with what is there.

    meta page (0 and 1)   magic, version, page size, root of the tree; the newer of the two counts
    branch page           offsets of nodes: number of a child page, and its least key
    leaf page             offsets of nodes: key, and value or the number of its overflow pages
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, FormatError
from towerpack.dataflow._opening import OpenFile

_MAGIC: Final = 0xBEEFC0DE
_VERSION: Final = 1
_NO_PAGE: Final = (1 << 64) - 1
_DEEPEST: Final = 32  # LMDB's own limit
_KEPT_BRANCHES: Final = 1024
_GROUP: Final = 256  # pages that may be read at once
_DENSE: Final = 8

# A page begins with its number, a field that is not used, flags and, but for overflow pages, where
# the offsets of its nodes end. A node begins with a length or page number, flags, and the length of
# its key.
_PAGE: Final = struct.Struct("<QHHHH")
_OVERFLOW_PAGE: Final = struct.Struct("<QHHI")
_META: Final = struct.Struct("<IIQQ48sIHHQQQQQQQ")
_NODE: Final = struct.Struct("<HHHH")
_OFFSET: Final = struct.Struct("<H")
_BRANCH, _LEAF, _OVERFLOW, _META_FLAG, _DIRTY = 0x01, 0x02, 0x04, 0x08, 0x10
_BIG, _SUBDATA, _DUPLICATES = 0x01, 0x02, 0x04
_REVERSED_KEYS, _SORTED_DUPLICATES, _INTEGER_KEYS = 0x02, 0x04, 0x08

Item = tuple[bytes, bytes]


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


@dataclass(frozen=True)
class Leaves:
    """Where the n-th entry is: an index of the pages, not of the entries, so it is small.

    Attributes:
        pages: Numbers of the leaf pages, in order of their keys.
        ends: How many entries there are up to the end of each.
    """

    pages: NDArray[np.int64]
    ends: NDArray[np.int64]


class LMDBFile:
    """An LMDB file, opened for reading. Safe to use from several threads.

    Args:
        path: The file.
        tree: What it held when it was indexed; it must not have changed since.

    Raises:
        FormatError: It is no LMDB file, damaged, or was changed.
        ConfigError: It holds what is not supported: named databases, several values for a key.
    """

    def __init__(self, path: Path, tree: Tree | None = None) -> None:
        self.path = path
        self._file = OpenFile(path)
        self._size = os.stat(path).st_size
        self.tree = self._newest()
        self._branches: dict[int, bytes] = {}
        self._last_leaf: tuple[int, bytes] | None = None
        if tree is not None and tree != self.tree:
            raise FormatError(
                f"{path} was changed while it was read.",
                got=f"transaction {self.tree.transaction}",
                expected=f"transaction {tree.transaction}",
                fix="write to a copy, and read it when it is whole",
            )

    def leaves(self) -> Leaves:
        """Walk the tree's branches, and count what is on each leaf page."""
        tree = self.tree
        if tree.depth == 0:
            return Leaves(np.zeros(0, np.int64), np.zeros(0, np.int64))
        pages = np.array([tree.root], np.int64)
        for _ in range(tree.depth - 1):
            pages = self._level_below(pages)
        ends = np.cumsum(self._counts(pages))
        if ends[-1] != tree.entries:
            raise self._damaged(f"{ends[-1]:,} entries are found where {tree.entries:,} should be")
        return Leaves(pages, ends)

    def item(self, leaf: int, index: int) -> Item:
        """Key and value of a node on a leaf page; as in lists, -1 is the last one."""
        last = self._last_leaf
        if last is not None and last[0] == leaf:
            page = last[1]
        else:
            page = self._page(leaf, _LEAF)
            self._last_leaf = (leaf, page)  # one assignment: safe between threads
        count = self._count(page, leaf)
        if not -count <= index < count:
            raise self._damaged(f"page {leaf} has no entry {index}")
        (offset,) = _OFFSET.unpack_from(page, _PAGE.size + 2 * (index % count))
        return self._item(page, leaf, offset)

    @property
    def sorted_by_bytes(self) -> bool:
        """Whether the order of the keys is that of bytes in Python, so that `find` works."""
        return not self.tree.flags & (_REVERSED_KEYS | _INTEGER_KEYS)

    def find(self, key: bytes) -> tuple[int, int] | None:
        """Leaf page of a key, and which node on it; `None` if there is no such key."""
        tree = self.tree
        if tree.depth == 0:
            return None
        number = tree.root
        for _ in range(tree.depth - 1):
            page = self._branch(number)
            offsets = self._offsets(page, number)
            # The first node stands for everything before the second; it has no key.
            below = self._count_below(page, number, offsets, key, first=1)
            number = self._child(page, offsets[below - 1])
        page = self._page(number, _LEAF)
        offsets = self._offsets(page, number)
        index = self._count_below(page, number, offsets, key, first=0) - 1
        found = index >= 0 and self._key(page, number, offsets[index])[0] == key
        return (number, index) if found else None

    def _count_below(
        self, page: bytes, number: int, offsets: Sequence[int], key: bytes, first: int
    ) -> int:
        """How many nodes have a key of at most `key`, the first ones without looking."""
        low, high = first, len(offsets)
        while low < high:
            middle = (low + high) // 2
            if self._key(page, number, offsets[middle])[0] <= key:
                low = middle + 1
            else:
                high = middle
        return low

    def _newest(self) -> Tree:
        first = self._meta(0, 4096)
        # The second page lies where the first one's page ends.
        second = self._meta(first.page_size, first.page_size)
        tree = max(first, second, key=lambda tree: tree.transaction)
        empty = tree.root == _NO_PAGE
        if (tree.depth == 0) != empty or (tree.entries == 0) != empty or tree.depth > _DEEPEST:
            raise self._damaged(f"a tree of depth {tree.depth} with {tree.entries:,} entries")
        if not empty and tree.root >= self._size // tree.page_size:
            raise self._damaged(f"its root, page {tree.root}, is missing")
        if tree.flags & _SORTED_DUPLICATES:
            raise ConfigError(
                f"{self.path} holds several values for one key, which is not supported."
            )
        return tree

    def _meta(self, offset: int, page_size: int) -> Tree:
        raw = self._file.read_at(offset, _PAGE.size + _META.size)
        if len(raw) < _PAGE.size + _META.size:
            raise self._damaged(f"it has {self._size:,} bytes only")
        _, _, page_flags, _, _ = _PAGE.unpack_from(raw)
        magic, version, _, _, free, _, flags, depth, *counts = _META.unpack_from(raw, _PAGE.size)
        if magic != _MAGIC or not page_flags & _META_FLAG:
            raise self._damaged("it does not begin as one of a 64-bit little-endian machine")
        if version != _VERSION:
            raise FormatError(
                f"{self.path} is an LMDB file of format version {version}.",
                expected=f"version {_VERSION}, that of LMDB 0.9",
                fix="mdb_dump of its LMDB, mdb_load of LMDB 0.9",
            )
        (found_size,) = struct.unpack_from("<I", free)
        if not 256 <= found_size <= 1 << 16 or found_size & (found_size - 1):
            raise self._damaged(f"pages of {found_size} bytes")
        if offset and found_size != page_size:
            raise self._damaged("its meta pages disagree")
        _, _, _, entries, root, _, transaction = counts
        return Tree(found_size, root, depth, entries, flags, transaction)

    def _branch(self, number: int) -> bytes:
        page = self._branches.get(number)
        if page is None:
            page = self._page(number, _BRANCH)
            if len(self._branches) >= _KEPT_BRANCHES:
                self._branches.clear()
            self._branches[number] = page
        return page

    def _page(self, number: int, kind: int) -> bytes:
        size = self.tree.page_size
        offset = number * size
        if offset > self._size - size:
            raise self._damaged(f"page {number} is missing")
        page = self._file.read_at(offset, size)
        if len(page) < size:
            raise self._damaged(f"page {number} is missing")
        found, _, flags, _, _ = _PAGE.unpack_from(page)
        if found != number or flags & ~_DIRTY != kind:
            raise self._damaged(f"page {number} is another one, or of another kind")
        return page

    def _offsets(self, page: bytes, number: int) -> Sequence[int]:
        """Where the nodes of a page begin."""
        count = self._count(page, number)
        return struct.unpack_from(f"<{count}H", page, _PAGE.size)

    def _count(self, header: bytes, number: int) -> int:
        end = _PAGE.unpack_from(header)[3]
        if not _PAGE.size < end <= self.tree.page_size or end % 2:
            raise self._damaged(f"page {number} has no nodes")
        return (end - _PAGE.size) // 2

    def _counts(self, leaves: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many nodes each leaf page has."""
        size = self.tree.page_size
        order = np.argsort(leaves)
        pages = leaves[order]
        if pages[-1] >= self._size // size:
            raise self._damaged(f"page {pages[-1]} is missing")
        raw = b"".join(map(self._headers, np.split(pages, _group_ends(pages))))
        if len(raw) < len(pages) * _PAGE.size:
            raise self._damaged("it became shorter while it was read")
        headers = np.frombuffer(raw, [("page", "<u8"), ("pad", "<u2"), ("rest", "<u2", 3)])
        flags, ends, _ = headers["rest"].astype(np.int64).T
        bad = (headers["page"] != pages) | (flags & ~_DIRTY != _LEAF)
        bad |= (ends <= _PAGE.size) | (ends > size) | (ends % 2 == 1)
        if bad.any():
            raise self._damaged(f"page {pages[bad.argmax()]} is another one, or of another kind")
        counts = np.empty_like(ends)
        counts[order] = (ends - _PAGE.size) // 2
        return counts

    def _headers(self, pages: NDArray[np.int64]) -> bytes:
        """The headers of some pages, in order of the file: read with those between, if few."""
        size = self.tree.page_size
        first, last = int(pages[0]), int(pages[-1])
        if len(pages) * _DENSE > last - first:
            raw = self._file.read_at(first * size, (last - first + 1) * size)
            if len(raw) < (last - first + 1) * size:
                return b""
            table = np.frombuffer(raw, np.uint8).reshape(-1, size)
            return table[pages - first, : _PAGE.size].tobytes()
        read_at = self._file.read_at
        return b"".join([read_at(offset, _PAGE.size) for offset in (pages * size).tolist()])

    def _level_below(self, pages: NDArray[np.int64]) -> NDArray[np.int64]:
        most = self._size // self.tree.page_size
        parts: list[NDArray[np.int64]] = []
        for number in pages.tolist():
            parts.append(self._children(number))
            most -= len(parts[-1])
            if most < 0:
                raise self._damaged("its pages form no tree")
        return np.concatenate(parts)

    def _children(self, number: int) -> NDArray[np.int64]:
        page = self._branch(number)
        offsets = np.array(self._offsets(page, number), np.int64)
        if offsets.max() > len(page) - _NODE.size:
            raise self._damaged(f"a node of page {number} lies beyond it")
        raw = np.frombuffer(page, np.uint8)[offsets[:, None] + np.arange(6)].astype(np.int64)
        return raw @ (1 << 8 * np.arange(6, dtype=np.int64))

    def _child(self, page: bytes, offset: int) -> int:
        low, middle, high, _ = _NODE.unpack_from(page, offset)
        return low | middle << 16 | high << 32

    def _key(self, page: bytes, number: int, offset: int) -> tuple[bytes, int]:
        """The key of a node, and where it ends."""
        start = offset + _NODE.size
        if start > len(page):
            raise self._damaged(f"a node of page {number} lies beyond it")
        end = start + _NODE.unpack_from(page, offset)[3]
        if end > len(page):
            raise self._damaged(f"a key of page {number} ends beyond it")
        return page[start:end], end

    def _item(self, page: bytes, number: int, offset: int) -> Item:
        key, at = self._key(page, number, offset)
        low, high, flags, _ = _NODE.unpack_from(page, offset)
        nbytes = low | high << 16
        if flags == _BIG:
            return key, self._overflow(page, number, at, nbytes)
        if flags & (_SUBDATA | _DUPLICATES):
            raise ConfigError(f"{self.path} holds named databases, which are not supported.")
        if flags or nbytes > len(page) - at:
            raise self._damaged(f"a value of page {number} ends beyond it")
        return key, page[at : at + nbytes]

    def _overflow(self, page: bytes, leaf: int, at: int, nbytes: int) -> bytes:
        if at + 8 > len(page):
            raise self._damaged(f"a node of page {leaf} ends beyond it")
        (number,) = struct.unpack_from("<Q", page, at)
        size = self.tree.page_size
        start = number * size + _OVERFLOW_PAGE.size
        if start + nbytes > self._size:
            raise self._damaged(f"a value of {nbytes:,} bytes at {start:,} ends beyond it")
        header = self._file.read_at(number * size, _OVERFLOW_PAGE.size)
        value = self._file.read_at(start, nbytes)
        if len(value) < nbytes:
            raise self._damaged(f"a value of {nbytes:,} bytes at {start:,} ends beyond it")
        found, _, flags, count = _OVERFLOW_PAGE.unpack(header)
        if (
            found != number
            or flags & ~_DIRTY != _OVERFLOW
            or count * size < nbytes + _OVERFLOW_PAGE.size
        ):
            raise self._damaged(f"page {number} is another one, or of another kind")
        return value

    def _damaged(self, what: str) -> FormatError:
        return FormatError(
            f"{self.path} cannot be read as an LMDB file: {what}.",
            got=f"{self._size:,} bytes",
            fix="it was cut off, changed, or is something else; write or fetch it again",
        )


def _group_ends(pages: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where pages that follow one another go on in another part of the file."""
    return np.flatnonzero(np.diff(pages // _GROUP)) + 1
