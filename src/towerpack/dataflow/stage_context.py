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
    """Seed and position in the pipeline of a stage, with which the stage is compiled or opened."""

    seed: int  # of the run
    branch: str = ""  # index of the input at each stage with several inputs, outermost first
    tally: Tally | None = None
    serial: bool = False  # ignore parallel stages, so that the caller or a worker reads
    workers: ReadAhead | None = None  # of a parallel stage above, to apply the maps of this part
    in_order: bool = False  # a resume may read again, and needs the same order
    retained: bool = False  # a stage above retains datapoints while it reads the next ones
    traced: bool = False  # the streams yield `Traced` datapoints
    ambient: Ambient | None = None  # pass of user code, if this flow only passes on its datapoints

    def child(self, index: int) -> StageContext:
        return replace(self, branch=f"{self.branch}{index}.")

    def retained_in_order(self) -> StageContext:
        return replace(self, in_order=True, retained=True)

    def key(self, flow: DataFlow, stage_seed: int | None = None) -> int:
        """Return the random key of a stage; with `stage_seed`, the same key in every pipeline."""
        # By branch and height above the source: further stages do not change random numbers.
        if stage_seed is not None:
            return derive_seed(stage_seed, type(flow).__name__)
        return derive_seed(self.seed, self.branch, height_of(flow))
