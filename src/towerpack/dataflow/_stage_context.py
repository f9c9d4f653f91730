"""Where in a pipeline a stage stands when it is compiled or opened."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from towerpack._core.randomness import derive_seed
from towerpack.dataflow._pipeline_names import height_of
from towerpack.dataflow._plan import Node
from towerpack.dataflow._stream import State, Stream, Tally
from towerpack.dataflow._user_code import Ambient

if TYPE_CHECKING:
    from towerpack.dataflow._flow import DataFlow


class Workers(ABC):
    """The workers of one parallel stage, as compilation sees them.

    They do the work of structural stages above the parallel stage, too: `flow` is then the topmost
    of these.
    """

    @property
    @abstractmethod
    def count(self) -> int:
        """How many there are."""

    @abstractmethod
    def read_ahead(self, flow: DataFlow, node: Node, context: StageContext) -> Node | None:
        """The plan of `flow`, read ahead; `None` if its datapoints may come in another order."""

    @abstractmethod
    def open_ahead(
        self, flow: DataFlow, node: Node | None, context: StageContext, epoch: int, state: State
    ) -> Stream | None:
        """A pass over `flow`, with its serial plan `node`; `None` if workers can do nothing there.

        `flow` may also be a flow that the parallel stage wraps.
        """


@dataclass(frozen=True)
class StageContext:
    """Where in a pipeline a stage stands, and with which seed it runs.

    Args:
        seed: The run's.
        branch: Which inputs of stages with several were taken from the outermost down to here.
        tally: What the iteration counts.
        serial: Parallel stages do nothing: the caller, or a worker, reads by itself.
        workers: Those of a parallel stage further up, which apply the maps found here.
        in_order: A resume may read again, and must find the same, even with `ordered=False`.
        kept: A stage above keeps datapoints while it reads the next ones.
        ambient: The pass of the user's code around this flow, if this only hands on such code.
    """

    seed: int
    branch: str = ""
    tally: Tally | None = None
    serial: bool = False
    workers: Workers | None = None
    in_order: bool = False
    kept: bool = False
    ambient: Ambient | None = None

    def child(self, index: int) -> StageContext:
        return replace(self, branch=f"{self.branch}{index}.")

    def kept_in_order(self) -> StageContext:
        """The context of what a stage keeps and may read again."""
        return replace(self, in_order=True, kept=True)

    def key(self, flow: DataFlow, own_seed: int | None = None) -> int:
        """The seed of everything random in `flow`; a seed of its own makes it alike everywhere.

        It depends on the branch and the height above the source, so that wrapping a pipeline in
        further stages changes nothing in it, and no two stages share it.
        """
        if own_seed is not None:
            return derive_seed(own_seed, type(flow).__name__)
        return derive_seed(self.seed, self.branch, height_of(flow))
