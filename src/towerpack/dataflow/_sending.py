"""What becomes of large data in memory when a pipeline is sent to worker processes.

Sources ask `SENDER` while they are pickled. It is set while a parallel stage pickles them; any
other pickle holds the data themselves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

from numpy.typing import NDArray

from towerpack.dataflow._datapoints import Datapoint, rebuild, values_of

Array = NDArray[Any]


class Sender(ABC):
    """Finds data a place where all processes can read them."""

    @abstractmethod
    def shared(self, array: Array) -> Array:
        """An equal array in memory that all processes share."""

    @abstractmethod
    def flat(self, items: Sequence[Any]) -> Sequence[Any]:
        """An equal sequence that takes few objects, however long it is."""


SENDER: ContextVar[Sender | None] = ContextVar("towerpack_dataflow_sender", default=None)


class HeldArrays:
    """Arrays of a source. Once they were sent to workers, this process uses the shared ones too.

    So there is one copy of the data in all, if nobody else holds the first.

    Args:
        data: A datapoint of arrays.
    """

    def __init__(self, data: Datapoint) -> None:
        self.data = data
        self.arrays: list[Array] = values_of(data)

    def __getstate__(self) -> Datapoint:
        sender = SENDER.get()
        if sender is not None:
            self.arrays = [sender.shared(array) for array in self.arrays]
            self.data = rebuild(self.data, self.arrays)
        return self.data

    def __setstate__(self, data: Datapoint) -> None:
        self.__init__(data)
