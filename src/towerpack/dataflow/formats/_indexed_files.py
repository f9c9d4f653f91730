from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from towerpack._core.errors import FormatError
from towerpack.dataflow._compile import Stage
from towerpack.dataflow._iteration_state import State, Stream
from towerpack.dataflow._plan import Node
from towerpack.dataflow._user_code import Ambient, ReplayStream
from towerpack.dataflow._user_files import OpenFile
from towerpack.dataflow.content import content_of_files
from towerpack.dataflow.datapoints import Datapoint
from towerpack.dataflow.pipeline_names import Length
from towerpack.dataflow.stage_context import StageContext

_MOST_OPEN: Final = 64

Version = tuple[int, int]


class IndexedFiles(Stage):
    """Base class of sources that read files, if any. Most files are indexed for random access."""

    def __init__(self, paths: list[Path], *, in_order_only: bool = False) -> None:
        self.paths = paths
        self.in_order_only = in_order_only
        self._node: Node | None = None

    def _index(self) -> Node:
        raise NotImplementedError

    def _in_order(self) -> Iterator[Datapoint]:
        raise NotImplementedError

    def length(self) -> Length:
        return None if self.in_order_only else self._indexed().size

    def content(self) -> str:
        return f"{super().content()}, {content_of_files(self.paths)}"

    def arguments(self) -> str:
        if not self.paths:
            return "" if self.in_order_only else self.identity()
        more = len(self.paths) - 1
        return self.paths[0].name + (f" and {more} more" if more else "")

    def identity(self) -> str:
        return str(len(self.paths)) if self.in_order_only else str(self.length())

    def compile(self, context: StageContext) -> Node | None:
        return None if self.in_order_only else self._indexed()

    def open(self, context: StageContext, epoch: int, state: State) -> Stream:
        key = context.key(self)
        return ReplayStream(self._in_order, lambda: Ambient(key, epoch), type(self).__name__, state)

    def _indexed(self) -> Node:
        if self._node is None:
            self._node = self._index()
        return self._node


def version_of(path: Path) -> Version:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


def opener(paths: Sequence[Path], versions: Sequence[Version]) -> Callable[[int], OpenFile]:
    """Return a function that opens a file by index and keeps recently used files open.

    It raises `FormatError` if a file has changed since it was indexed.
    """

    @lru_cache(_MOST_OPEN)  # a thread that still reads a dropped file holds a reference to it
    def opened(index: int) -> OpenFile:
        if version_of(paths[index]) != versions[index]:
            raise FormatError(
                f"{paths[index]} was changed after it was opened.",
                fix="write to a different file, and create the flow when the file is complete",
            )
        return OpenFile(paths[index])

    return opened
