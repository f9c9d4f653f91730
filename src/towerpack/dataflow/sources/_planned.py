"""What sources with a plan of their own have in common: read in order, or shuffled."""

from __future__ import annotations

from typing import Generic, TypeVar

from towerpack.dataflow._flow import Length, Place, Stage, check_seed
from towerpack.dataflow._plan import Node
from towerpack.dataflow.stages._shuffle import ShuffleNode

N = TypeVar("N", bound=Node)


class PlannedSource(Stage, Generic[N]):
    """Base of sources whose datapoints a node reads, in order or shuffled.

    Contract: in order, or exactly shuffled; length known; random if shuffled; thread- and
    fork-safe; resumable at once.

    Args:
        node: Reads datapoints in their own order.
        shuffle: Give every pass another order, as `ShuffleData` does.
        seed: For the shuffle alone; by default the run's.
    """

    def __init__(self, node: N, *, shuffle: bool, seed: int | None) -> None:
        self._node = node
        self.shuffle = shuffle
        self.seed = None if seed is None else check_seed(seed)
        self.random = shuffle and seed is None

    def length(self) -> Length:
        return self._node.size

    def identity(self) -> str:
        return f"{self._node.size}, shuffled" if self.shuffle else str(self._node.size)

    def compile(self, place: Place) -> Node | None:
        return ShuffleNode(self._node, place.key(self, self.seed)) if self.shuffle else self._node
