"""What formats of several files have in common: an index, or reading in order if compressed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path

from towerpack.dataflow._ambient import Ambient
from towerpack.dataflow._content import content_of_files
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._flow import Length, Place, Stage
from towerpack.dataflow._plan import Node
from towerpack.dataflow._stream import ReplayStream, State, Stream


class IndexedFiles(Stage):
    """Base of sources over files that an index makes readable at random, unless compressed.

    Contract: in order of the files and of what is in them; length known unless compressed; not
    random; thread- and fork-safe; resumable at once, compressed files by reading again.

    Args:
        paths: The files.
        in_order_only: One of them is compressed.
    """

    def __init__(self, paths: list[Path], *, in_order_only: bool) -> None:
        self.paths = paths
        self.in_order_only = in_order_only
        self._node: Node | None = None

    @abstractmethod
    def _index(self) -> Node:
        """Look through the files, which are not compressed."""

    @abstractmethod
    def _in_order(self) -> Iterator[Datapoint]:
        """Read the files from the beginning."""

    def length(self) -> Length:
        return None if self.in_order_only else self._indexed().size

    def content(self) -> str:
        return f"{super().content()}, {content_of_files(self.paths)}"

    def arguments(self) -> str:
        more = len(self.paths) - 1
        return self.paths[0].name + (f" and {more} more" if more else "")

    def identity(self) -> str:
        return str(len(self.paths)) if self.in_order_only else str(self.length())

    def compile(self, place: Place) -> Node | None:
        return None if self.in_order_only else self._indexed()

    def open(self, place: Place, epoch: int, state: State) -> Stream:
        key = place.key(self)
        return ReplayStream(self._in_order, lambda: Ambient(key, epoch), type(self).__name__, state)

    def _indexed(self) -> Node:
        if self._node is None:
            self._node = self._index()
        return self._node
