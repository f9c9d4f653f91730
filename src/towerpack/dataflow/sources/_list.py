"""Datapoints in a list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from typing import Any, cast

from towerpack._core.errors import ConfigError
from towerpack.dataflow._arguments import given
from towerpack.dataflow._blocks import Block, Positions, as_ints
from towerpack.dataflow._content import content_of_values
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._flow import Length
from towerpack.dataflow._plan import IndexNode, Node
from towerpack.dataflow._sending import SENDER
from towerpack.dataflow.sources._planned import OrderedSource


class DataFromList(OrderedSource):
    """Datapoint i is element i of a list, the object itself: do not change it in place.

    Contract: in order, or exactly shuffled; as long as the list; random if shuffled; thread- and
    fork-safe; resumable at once.

    Args:
        lst: Any sequence of datapoints. Not copied; must not change while in use.
        shuffle: Give every pass another order, as `ShuffleData` does.
        seed: For the shuffle alone; by default the run's.

    Raises:
        ConfigError: It is no sequence.
    """

    def __init__(
        self, lst: Sequence[Any], shuffle: bool = False, *, seed: int | None = None
    ) -> None:
        super().__init__(shuffle=shuffle, seed=seed)
        self.lst = _checked(lst)

    def __getitem__(self, index: int) -> Datapoint:
        return self.lst[index]

    def length(self) -> Length:
        return len(self.lst)

    def content(self) -> str:
        return f"{super().content()}, {content_of_values(self.lst)}"

    def in_order(self) -> Node:
        return ListNode(self.lst)


def _checked(lst: Any) -> Sequence[Any]:
    """Refuse what has no i-th datapoint. A string has characters, which nobody means."""
    if isinstance(lst, Mapping):
        fix = "list(d.values()), or DataFromArrays for a dict of arrays"
    elif isinstance(lst, (str, bytes)):
        fix = "[datapoint, ...]"
    elif isinstance(lst, Sized) and hasattr(lst, "__getitem__"):
        return cast("Sequence[Any]", lst)
    else:
        fix = "list(...), or DataFromIterable or DataFromGenerator, which need not hold it"
    raise ConfigError("DataFromList takes a list.", got=given(lst), fix=fix)


class ListNode(IndexNode):
    """Reads elements of a sequence."""

    def read(self, epoch: int, positions: Positions) -> Block:
        lst = self._source
        wanted = as_ints(positions)
        try:
            return [lst[position] for position in wanted]
        except Exception:  # noqa: BLE001
            return [self.get(epoch, position) for position in wanted]  # says which one it is

    def __getstate__(self) -> dict[str, Any]:
        sender = SENDER.get()
        items = self._source if sender is None else sender.flat(cast("Sequence[Any]", self._source))
        return {**self.__dict__, "_source": items}
