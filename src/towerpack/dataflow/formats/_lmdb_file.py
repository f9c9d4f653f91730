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

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, FormatError
from towerpack.dataflow.formats._lmdb_pages import (
    DIRTY,
    LEAF,
    OVERFLOW,
    OVERFLOW_PAGE,
    PAGE,
    PagedFile,
    Tree,
)

_GROUP: Final = 256  # pages that may be read at once
_DENSE: Final = 8

# A node begins with a length or page number, flags, and the length of its key.
_NODE: Final = struct.Struct("<HHHH")
_OFFSET: Final = struct.Struct("<H")
_BIG, _SUBDATA, _DUPLICATES = 0x01, 0x02, 0x04

Item = tuple[bytes, bytes]


@dataclass(frozen=True)
class Leaves:
    """Where the n-th entry is: an index of the pages, not of the entries, so it is small.

    Attributes:
        pages: Numbers of the leaf pages, in order of their keys.
        ends: How many entries there are up to the end of each.
    """

    pages: NDArray[np.int64]
    ends: NDArray[np.int64]


class LMDBFile(PagedFile):
    """An LMDB file, opened for reading. Safe to use from several threads.

    Args:
        path: The file.
        tree: What it held when it was indexed; it must not have changed since.

    Raises:
        FormatError: It is no LMDB file, damaged, or was changed.
        ConfigError: It holds what is not supported: named databases, several values for a key.
    """

    def __init__(self, path: Path, tree: Tree | None = None) -> None:
        super().__init__(path)
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
            raise self.damaged(f"{ends[-1]:,} entries are found where {tree.entries:,} should be")
        return Leaves(pages, ends)

    def item(self, leaf: int, index: int) -> Item:
        """Key and value of a node on a leaf page; as in lists, -1 is the last one."""
        last = self._last_leaf
        if last is not None and last[0] == leaf:
            page = last[1]
        else:
            page = self.page(leaf, LEAF)
            self._last_leaf = (leaf, page)  # one assignment: safe between threads
        count = self.count(page, leaf)
        if not -count <= index < count:
            raise self.damaged(f"page {leaf} has no entry {index}")
        (offset,) = _OFFSET.unpack_from(page, PAGE.size + 2 * (index % count))
        return self._item(page, leaf, offset)

    def find(self, key: bytes) -> tuple[int, int] | None:
        """Leaf page of a key, and which node on it; `None` if there is no such key."""
        tree = self.tree
        if tree.depth == 0:
            return None
        number = tree.root
        for _ in range(tree.depth - 1):
            page = self.branch(number)
            offsets = self.offsets(page, number)
            # The first node stands for everything before the second; it has no key.
            below = self._count_below(page, number, offsets, key, first=1)
            number = self._child(page, offsets[below - 1])
        page = self.page(number, LEAF)
        offsets = self.offsets(page, number)
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

    def _counts(self, leaves: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many nodes each leaf page has."""
        size = self.tree.page_size
        order = np.argsort(leaves)
        pages = leaves[order]
        if pages[-1] >= self.size // size:
            raise self.damaged(f"page {pages[-1]} is missing")
        raw = b"".join(map(self._headers, np.split(pages, _group_ends(pages))))
        if len(raw) < len(pages) * PAGE.size:
            raise self.damaged("it became shorter while it was read")
        headers = np.frombuffer(raw, [("page", "<u8"), ("pad", "<u2"), ("rest", "<u2", 3)])
        flags, ends, _ = headers["rest"].astype(np.int64).T
        bad = (headers["page"] != pages) | (flags & ~DIRTY != LEAF)
        bad |= (ends <= PAGE.size) | (ends > size) | (ends % 2 == 1)
        if bad.any():
            raise self.damaged(f"page {pages[bad.argmax()]} is another one, or of another kind")
        counts = np.empty_like(ends)
        counts[order] = (ends - PAGE.size) // 2
        return counts

    def _headers(self, pages: NDArray[np.int64]) -> bytes:
        """The headers of some pages, in order of the file: read with those between, if few."""
        size = self.tree.page_size
        first, last = int(pages[0]), int(pages[-1])
        if len(pages) * _DENSE > last - first:
            raw = self.file.read_at(first * size, (last - first + 1) * size)
            if len(raw) < (last - first + 1) * size:
                return b""
            table = np.frombuffer(raw, np.uint8).reshape(-1, size)
            return table[pages - first, : PAGE.size].tobytes()
        read_at = self.file.read_at
        return b"".join([read_at(offset, PAGE.size) for offset in (pages * size).tolist()])

    def _level_below(self, pages: NDArray[np.int64]) -> NDArray[np.int64]:
        most = self.size // self.tree.page_size
        parts: list[NDArray[np.int64]] = []
        for number in pages.tolist():
            parts.append(self._children(number))
            most -= len(parts[-1])
            if most < 0:
                raise self.damaged("its pages form no tree")
        return np.concatenate(parts)

    def _children(self, number: int) -> NDArray[np.int64]:
        page = self.branch(number)
        offsets = np.array(self.offsets(page, number), np.int64)
        if offsets.max() > len(page) - _NODE.size:
            raise self.damaged(f"a node of page {number} lies beyond it")
        raw = np.frombuffer(page, np.uint8)[offsets[:, None] + np.arange(6)].astype(np.int64)
        return raw @ (1 << 8 * np.arange(6, dtype=np.int64))

    def _child(self, page: bytes, offset: int) -> int:
        low, middle, high, _ = _NODE.unpack_from(page, offset)
        return low | middle << 16 | high << 32

    def _key(self, page: bytes, number: int, offset: int) -> tuple[bytes, int]:
        """The key of a node, and where it ends."""
        start = offset + _NODE.size
        if start > len(page):
            raise self.damaged(f"a node of page {number} lies beyond it")
        end = start + _NODE.unpack_from(page, offset)[3]
        if end > len(page):
            raise self.damaged(f"a key of page {number} ends beyond it")
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
            raise self.damaged(f"a value of page {number} ends beyond it")
        return key, page[at : at + nbytes]

    def _overflow(self, page: bytes, leaf: int, at: int, nbytes: int) -> bytes:
        if at + 8 > len(page):
            raise self.damaged(f"a node of page {leaf} ends beyond it")
        (number,) = struct.unpack_from("<Q", page, at)
        size = self.tree.page_size
        start = number * size + OVERFLOW_PAGE.size
        if start + nbytes > self.size:
            raise self.damaged(f"a value of {nbytes:,} bytes at {start:,} ends beyond it")
        header = self.file.read_at(number * size, OVERFLOW_PAGE.size)
        value = self.file.read_at(start, nbytes)
        if len(value) < nbytes:
            raise self.damaged(f"a value of {nbytes:,} bytes at {start:,} ends beyond it")
        found, _, flags, count = OVERFLOW_PAGE.unpack(header)
        if (
            found != number
            or flags & ~DIRTY != OVERFLOW
            or count * size < nbytes + OVERFLOW_PAGE.size
        ):
            raise self.damaged(f"page {number} is another one, or of another kind")
        return value


def _group_ends(pages: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where pages that follow one another go on in another part of the file."""
    return np.flatnonzero(np.diff(pages // _GROUP)) + 1
