"""Many strings in two flat arrays: a million file names without a million objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np


class Strings(Sequence[str]):
    """Strings that cannot be changed, as one buffer and offsets. Pickles as flat as it is.

    Names of files that are not UTF-8 survive: their bytes come back as `os.fsdecode` gives them.

    Args:
        strings: Read once.
    """

    def __init__(self, strings: Iterable[str]) -> None:
        buffer = bytearray()
        ends = [0]
        for string in strings:
            buffer += string.encode("utf-8", "surrogateescape")
            ends.append(len(buffer))
        self._buffer = bytes(buffer)
        self._ends = np.asarray(ends, np.int64)

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"{index} is not within {len(self)} strings")
        start, end = self._ends[position : position + 2].tolist()
        return self._buffer[start:end].decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))
