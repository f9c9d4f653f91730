from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Final, TypeVar

from towerpack._core.errors import FormatError
from towerpack.dataflow._compile import Stage
from towerpack.dataflow._iteration_state import State, Stream
from towerpack.dataflow._plan import Node
from towerpack.dataflow._remote_files import RemoteFile, in_threads
from towerpack.dataflow._user_code import Ambient, ReplayStream
from towerpack.dataflow._user_files import AnyFile, OpenFile, PerProcess
from towerpack.dataflow.content import content_of_files
from towerpack.dataflow.datapoints import Block, Datapoint, Positions, as_ints
from towerpack.dataflow.pipeline_names import Length
from towerpack.dataflow.stage_context import StageContext

T = TypeVar("T")

_MOST_OPEN: Final = 64

Version = tuple[int, int]


class IndexedFiles(Stage):
    """Base class of sources that read files, if any. Most files are indexed for random access."""

    def __init__(self, paths: list[AnyFile], *, in_order_only: bool = False) -> None:
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


class PlacedNode(Node):
    """Node whose datapoints are ranges of files. It fetches the ranges of remote files together."""

    def __init__(self, paths: Sequence[AnyFile], versions: Sequence[Version]) -> None:
        self._paths = paths
        self._files = PerProcess(partial(opener, paths, versions))
        self._is_remote = any(isinstance(path, RemoteFile) for path in paths)

    def place_of(self, position: int) -> tuple[int, int, int]:
        """Return the index of a datapoint's file, and the start and end of its bytes."""
        raise NotImplementedError

    def read(self, epoch: int, positions: Positions) -> Block:
        for position in as_ints(positions) if self._is_remote else ():
            index, start, stop = self.place_of(position)
            file = self._files.get()(index)
            if isinstance(file, RemoteFile):
                file.will_read(start, stop - start)
        return super().read(epoch, positions)


def each_of(files: Sequence[AnyFile], function: Callable[[AnyFile], T]) -> list[T]:
    """Call a function for each file, for remote files in several threads."""
    if any(isinstance(file, RemoteFile) for file in files):
        return in_threads(function, files)
    return [function(file) for file in files]


def version_of(path: AnyFile) -> Version:
    if isinstance(path, RemoteFile):
        return path.size, path.version_number
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def opener(
    paths: Sequence[AnyFile], versions: Sequence[Version]
) -> Callable[[int], OpenFile | RemoteFile]:
    """Return a function that opens a file by index and keeps recently used files open.

    It raises `FormatError` if a file has changed since it was indexed.
    """

    @lru_cache(_MOST_OPEN)  # a thread that still reads a dropped file holds a reference to it
    def opened(index: int) -> OpenFile | RemoteFile:
        file = paths[index]
        if isinstance(file, RemoteFile):  # compares its version whenever it fetches a part
            after = paths[index + 1] if index + 1 < len(paths) else None
            file.following = after if isinstance(after, RemoteFile) else None
            return file
        check_version(file, versions[index])
        return OpenFile(file)

    return opened


def check_version(file: Path, version: Version) -> None:
    """Raise `FormatError` if a file has changed since `version_of`."""
    if version_of(file) != version:
        raise FormatError(
            f"{file} was changed after it was opened.",
            fix="write to a different file, and create the flow when the file is complete",
        )
