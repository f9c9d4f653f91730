"""What sources with a plan of their own have in common: read in order, or shuffled."""

from __future__ import annotations

from abc import abstractmethod
from typing import Generic, TypeVar, cast

from towerpack.dataflow._flow import Length, Place, Stage, check_seed
from towerpack.dataflow._overriding import is_ours
from towerpack.dataflow._plan import Node
from towerpack.dataflow._ready import Items, ItemsNode
from towerpack.dataflow.stages._shuffle import ShuffleNode

N = TypeVar("N", bound=Node)


def items_of(source: Stage) -> Node | None:
    """Reads a source by an `__getitem__` that a class outside the library has given it."""
    owner = next((cls for cls in type(source).__mro__ if "__getitem__" in vars(cls)), Stage)
    return None if is_ours(owner) else ItemsNode(cast("Items", source))


class OrderedSource(Stage):
    """Base of sources that have an order of their own, and can be shuffled.

    Contract: in order, or exactly shuffled; length known; random if shuffled; thread- and
    fork-safe; resumable at once.

    Args:
        shuffle: Give every pass another order, as `ShuffleData` does.
        seed: For the shuffle alone; by default the run's.
    """

    def __init__(self, *, shuffle: bool, seed: int | None) -> None:
        self.shuffle = shuffle
        self.seed = None if seed is None else check_seed(seed)
        self.random = shuffle and seed is None

    @abstractmethod
    def in_order(self) -> Node:
        """Reads the datapoints in their own order."""

    def identity(self) -> str:
        return f"{self.length()}, shuffled" if self.shuffle else str(self.length())

    def content(self) -> str:
        return super().content() + (", shuffled" if self.shuffle else "")

    def compile(self, place: Place) -> Node | None:
        node = items_of(self) or self.in_order()
        return ShuffleNode(node, place.key(self, self.seed)) if self.shuffle else node


class PlannedSource(OrderedSource, Generic[N]):
    """Base of sources whose datapoints a node reads.

    Contract: as `OrderedSource`.

    Args:
        node: Reads datapoints in their own order.
        shuffle: Give every pass another order, as `ShuffleData` does.
        seed: For the shuffle alone; by default the run's.
    """

    def __init__(self, node: N, *, shuffle: bool, seed: int | None) -> None:
        super().__init__(shuffle=shuffle, seed=seed)
        self._node = node

    def in_order(self) -> Node:
        return self._node

    def length(self) -> Length:
        return self._node.size
