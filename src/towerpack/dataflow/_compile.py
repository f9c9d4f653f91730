from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING

from towerpack._core.arguments import KeepsArguments
from towerpack._core.errors import InternalError
from towerpack.dataflow._flow import DataFlow, is_exact, length_of, require_flow
from towerpack.dataflow._iteration_state import State, Stream
from towerpack.dataflow._plan import Node, makers_of
from towerpack.dataflow._user_code import ReadyNode, make_ready, overrides_reset
from towerpack.dataflow.pipeline_names import Described, Length, name_of_stage
from towerpack.dataflow.stage_context import StageContext

if TYPE_CHECKING:
    from towerpack.dataflow.parallel._compile_for_workers import ReadAhead


class Stage(Described, DataFlow):
    """Base class of sources and stages that create a plan (`compile`) or a stream (`open`).

    Derive from this class if restoring a state is cheaper than iterating again. Otherwise derive
    from `DataFlow` and define `__iter__`. A subclass that overrides `__iter__` is treated as a
    plain `DataFlow`.

    Attributes:
        structural: Whether the stage only restructures its input. The workers of a parallel stage
            directly below then do its work too.
        runs_code: Whether the stage iterates over user code, which may reuse a datapoint's memory.
    """

    structural: bool = False
    runs_code: bool = False

    def compile(self, context: StageContext) -> Node | None:
        """Return the node of this stage, or `None` if its data can only be read in order.

        Args:
            context: Seed and position of this stage in the pipeline.
        """
        return None

    def open(self, context: StageContext, epoch: int, state: State) -> Stream:
        """Open a pass. This method is called only if `compile` returns `None`.

        Args:
            context: Seed and position of this stage in the pipeline.
            epoch: Number of the pass.
            state: State of a stream of an equal stage, or `None` to start at the beginning.

        Raises:
            InternalError: The class overrides neither `compile` nor `open`.
        """
        raise InternalError(f"{type(self).__name__} must override compile or open.")

    def __len__(self) -> int:
        length = self.length()
        if length is None:
            raise TypeError(
                f"the length of {self} is not known; for training, pass steps_per_epoch="
            )
        if isinstance(length, float):
            raise TypeError(f"{self} is infinite")
        return length

    def compile_in(self, context: StageContext) -> Node | None:
        if not is_exact(self):
            return super().compile_in(context)
        parallel = None if context.serial else parallel_below(self)
        if parallel is not None:
            node = self.compile_in(replace(context, serial=True))
            return None if node is None else parallel.workers().read_ahead(self, node, context)
        if overrides_reset(self) and not self.inputs:
            make_ready(self)  # the plan of a source contains its data
        node = self.compile(context)
        if node is not None and not self.inputs:
            for source in makers_of(node):
                source.source = name_of_stage(self)
        return node and prepared(self, node)

    def open_in(self, context: StageContext, epoch: int, state: State) -> Stream:
        parallel = None if context.serial else parallel_below(self)
        if parallel is not None:
            context = replace(context, serial=True, workers=parallel.workers())
        return super().open_in(context, epoch, state)

    def read_in_order(self, context: StageContext, epoch: int, state: State) -> Stream:
        if not is_exact(self):
            return super().read_in_order(context, epoch, state)
        if overrides_reset(self):
            make_ready(self)
        return self.open(context, epoch, state)


class Wrapper(KeepsArguments, Stage):
    """Base class of stages that wrap one flow. `makes_batches`: the stage stacks datapoints."""

    makes_batches: bool = False

    def __init__(self, ds: DataFlow) -> None:
        self.ds = require_flow(ds, self)

    @property
    def inputs(self) -> tuple[DataFlow, ...]:
        return (self.ds,)

    def length(self) -> Length:
        return length_of(self.ds)


class ParallelStage(Wrapper):
    """Base class of stages whose workers read the wrapped flow in advance."""

    transparent = True

    @abstractmethod
    def workers(self) -> ReadAhead: ...

    def reset_state(self) -> None:
        # Workers prepare the wrapped flow. A flow that is prepared here may no longer pickle.
        return

    def compile(self, context: StageContext) -> Node | None:
        return self.ds.compile_in(context)

    def open(self, context: StageContext, epoch: int, state: State) -> Stream:
        return self.ds.open_in(context, epoch, state)


def parallel_below(flow: DataFlow) -> ParallelStage | None:
    while is_exact(flow):
        if isinstance(flow, ParallelStage):
            return flow
        if not flow.structural:
            return None
        flow = flow.inputs[0]
    return None


def prepared(flow: DataFlow, node: Node) -> Node:
    """Wrap a node to call `reset_state` of its stage first, if the stage overrides that method."""
    return ReadyNode(flow, node) if overrides_reset(flow) else node
