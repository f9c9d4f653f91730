"""Stages, and how they compile to a plan."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING

from towerpack._core.arguments import KeepsArguments
from towerpack._core.errors import InternalError
from towerpack.dataflow._flow import DataFlow, is_exact, length_of, require_flow
from towerpack.dataflow._iteration_state import State, Stream
from towerpack.dataflow._plan import Node
from towerpack.dataflow._user_code import ReadyNode, make_ready, overrides_reset
from towerpack.dataflow.pipeline_names import Described, Length
from towerpack.dataflow.stage_context import StageContext

if TYPE_CHECKING:
    from towerpack.dataflow.parallel._compile_for_workers import ReadAhead


class Stage(Described, DataFlow):
    """Base of exact sources and stages: they compile to a plan, or open a stream with a state.

    Derive from it for a stage whose state is cheaper than iterating again; otherwise `DataFlow`
    with `__iter__` does. A subclass that overrides `__iter__` is treated as a plain `DataFlow`.

    Attributes:
        structural: It only restructures its one input, so the workers of a parallel stage below do
            its work too.
        runs_code: It iterates code of the user's, which may use the memory of a datapoint again.
    """

    structural: bool = False
    runs_code: bool = False

    def compile(self, context: StageContext) -> Node | None:
        """The plan, or `None` if this stage, or what it wraps, can only be read in order."""
        return None

    def open(self, context: StageContext, epoch: int, state: State) -> Stream:
        """Start (`state=None`) or continue a pass; called only where there is no plan."""
        raise InternalError(f"{type(self).__name__} has neither a plan nor a stream.")

    def __len__(self) -> int:
        length = self.length()
        if length is None:
            raise TypeError(
                f"the length of {self} is not known: for training, pass steps_per_epoch="
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
            make_ready(self)  # a source's plan holds its data
        node = self.compile(context)
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
    """Base of stages that wrap one flow; `makes_batches` if they stack its datapoints."""

    makes_batches: bool = False

    def __init__(self, ds: DataFlow) -> None:
        self.ds = require_flow(ds, self)

    @property
    def inputs(self) -> tuple[DataFlow, ...]:
        return (self.ds,)

    def length(self) -> Length:
        return length_of(self.ds)


class ParallelStage(Wrapper):
    """Base of stages that read what they wrap ahead, with workers."""

    transparent = True

    @abstractmethod
    def workers(self) -> ReadAhead:
        """The workers, which read ahead what is compiled for them."""

    def reset_state(self) -> None:
        """Do nothing: what is wrapped is made ready where it is read, and may then not travel."""

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
    """A plan that a stage makes, with `reset_state` before it if the user's class has one."""
    return ReadyNode(flow, node) if overrides_reset(flow) else node
