from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from towerpack._core.randomness import derive_seed
from towerpack.dataflow._pipeline_names import height_of
from towerpack.dataflow._stream import Tally
from towerpack.dataflow._user_code import Ambient

if TYPE_CHECKING:
    from towerpack.dataflow._flow import DataFlow
    from towerpack.dataflow.parallel._read_ahead import ReadAhead


@dataclass(frozen=True)
class StageContext:
    """Seed and position in the pipeline of a stage that is compiled or opened.

    Args:
        seed: Seed of the run.
        branch: Index of the chosen input at each stage with several inputs, outermost first.
        tally: Counters of the iteration.
        serial: Whether parallel stages are ignored, so that the caller or a worker reads.
        workers: Workers of a parallel stage above, which apply the maps of this part.
        in_order: Whether a resume may read again and needs the same order, even with
            `ordered=False`.
        retained: Whether a stage above retains datapoints while it reads the next ones.
        ambient: Pass of the user code that yields the datapoints, if this flow only passes them on.
    """

    seed: int
    branch: str = ""
    tally: Tally | None = None
    serial: bool = False
    workers: ReadAhead | None = None
    in_order: bool = False
    retained: bool = False
    ambient: Ambient | None = None

    def child(self, index: int) -> StageContext:
        return replace(self, branch=f"{self.branch}{index}.")

    def retained_in_order(self) -> StageContext:
        return replace(self, in_order=True, retained=True)

    def key(self, flow: DataFlow, stage_seed: int | None = None) -> int:
        """Return the random key of a stage. With `stage_seed` it is the same in every pipeline.

        The key depends on the branch and the height above the source. So wrapping a pipeline in
        further stages does not change its random numbers, and no two stages share a key.
        """
        if stage_seed is not None:
            return derive_seed(stage_seed, type(flow).__name__)
        return derive_seed(self.seed, self.branch, height_of(flow))
