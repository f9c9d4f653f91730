"""Where in a pipeline a stage stands when it is compiled or opened."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from towerpack._core.randomness import derive_seed
from towerpack.dataflow._iteration_state import Tally
from towerpack.dataflow._user_code import Ambient
from towerpack.dataflow.pipeline_names import height_of

if TYPE_CHECKING:
    from towerpack.dataflow._flow import DataFlow
    from towerpack.dataflow.parallel._compile_for_workers import ReadAhead


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
    workers: ReadAhead | None = None
    in_order: bool = False
    kept: bool = False
    ambient: Ambient | None = None

    def child(self, index: int) -> StageContext:
        """Return the context of the input at `index`."""
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
