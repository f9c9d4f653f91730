"""Bases of stages that wrap one flow: how they make a plan, how they read windows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._flow import Place, Wrapper, compile_flow, open_flow
from towerpack.dataflow._plan import Node
from towerpack.dataflow._stream import State, Stream, WindowStream, inner_state

Transform = Callable[[int, list[Datapoint]], list[Datapoint]]
"""From a window's index and datapoints to what is handed on."""


class PlannedStage(Wrapper):
    """Base of stages that have a plan wherever what they wrap has one."""

    @abstractmethod
    def node(self, inner: Node, place: Place) -> Node:
        """The plan, made of that of `ds`."""

    def compile(self, place: Place) -> Node | None:
        inner = compile_flow(self.ds, place)
        return None if inner is None else self.node(inner, place)


class WindowStage(PlannedStage):
    """Base of stages that, without a plan, read windows and transform each.

    Attributes:
        window_size: Datapoints of `ds` in a window; the last may have fewer.
        reads_again: A window gives several datapoints, so that a resume may read it again.
    """

    window_size: int
    reads_again: bool = True

    @abstractmethod
    def transform(self, place: Place, epoch: int) -> Transform:
        """What is done to each window of a pass."""

    def open(self, place: Place, epoch: int, state: State) -> Stream:
        below = place.kept_in_order() if self.reads_again else place
        inner = open_flow(self.ds, below, epoch, inner_state(state))
        transform = self.transform(place, epoch)
        return WindowStream(inner, self.window_size, transform, state, place.tally)
