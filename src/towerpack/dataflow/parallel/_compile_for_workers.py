from __future__ import annotations

import weakref
from dataclasses import replace

from towerpack._core.errors import ConfigError, TowerpackError
from towerpack.dataflow._compile import ParallelStage
from towerpack.dataflow._flow import DataFlow, may_write_over
from towerpack.dataflow._iteration_state import PlanStream, State, Stream, Tally
from towerpack.dataflow._plan import Node
from towerpack.dataflow.parallel._consumer_streams import (
    AheadNode,
    Begin,
    ReadStream,
    UnorderedStream,
)
from towerpack.dataflow.parallel._engine import Engine
from towerpack.dataflow.parallel._idle_pools import IdlePools
from towerpack.dataflow.parallel._options import Options
from towerpack.dataflow.parallel._reader_thread import Reader
from towerpack.dataflow.parallel._sequential_source import Levels
from towerpack.dataflow.parallel._unpicklable import find_unpicklable
from towerpack.dataflow.parallel._work_units import Job, SentNode, WorkSource
from towerpack.dataflow.pipeline_names import flows_in, pipeline_of
from towerpack.dataflow.stage_context import StageContext


class ReadAhead:
    """Workers of one parallel stage, which also run the structural stages directly above it."""

    def __init__(self, name: str, options: Options, idle: IdlePools) -> None:
        self._name = name
        self.options = options
        self._idle = idle

    def read_ahead(self, flow: DataFlow, node: Node, context: StageContext) -> Node | None:
        """Return a node that reads `node` in advance, or `None` if any order will do."""
        if not self.options.ordered and not context.in_order:
            return None
        if self.options_for(flow, node).workers == 0:
            return node
        ahead = AheadNode(node, self._beginning(flow, node, context, ordered=True))
        if context.tally is not None:
            context.tally.closing.append(ahead.close)
        return ahead

    def open_ahead(
        self, flow: DataFlow, node: Node | None, context: StageContext, epoch: int, state: State
    ) -> Stream | None:
        """Open a pass over `flow`. Return `None` if workers have nothing to do."""
        if self.options_for(flow, node).workers == 0:
            return None
        if node is not None:
            ahead = self.read_ahead(flow, node, context)
            if ahead is not None:
                return PlanStream(ahead, epoch, state)
            begin = self._beginning(flow, node, context, ordered=False)
            return UnorderedStream(node, epoch, state, begin)
        levels = Levels(flow)
        if not levels.stages:
            return None
        below = levels.plan_below(context)
        if below is not None:
            in_order = context.retained_in_order()
            ahead = self.read_ahead(flow, levels.node(context, below), in_order)
            inner = None if state is None else state["inner"]
            results = PlanStream(ahead or below, epoch, inner)
            return levels.streams(results, context, epoch, state)
        start, below_state = levels.begin(state)
        tally = Tally()
        serial = replace(context, serial=True, workers=None, tally=tally, retained=False)
        source = levels.source.open_in(serial, epoch, below_state)
        reader = Reader(
            source,
            tally,
            reused=may_write_over(levels.source),
            group=levels.group,
            remainder=levels.remainder,
            epoch=epoch,
            start=start,
        )
        begin = self._beginning(flow, levels.node(context, SentNode()), context, ordered=True)
        read = ReadStream(reader, begin, source.state(), context.tally)
        return levels.streams(read, context, epoch, state)

    def _beginning(
        self, flow: DataFlow, node: Node, context: StageContext, *, ordered: bool
    ) -> Begin:
        options = replace(self.options_for(flow, node), ordered=ordered)
        pipeline = pipeline_of(flow)
        job, key = Job(node, context.seed), (weakref.ref(flow), context.seed, context.branch)

        # `begin` must not refer to `context`: a reference cycle would delay the end of a pass.
        def begin(source: WorkSource) -> Engine:
            try:
                return Engine(self._idle, options, job, key, source, pipeline)
            except (TowerpackError, OSError, MemoryError):
                raise
            except Exception as error:
                raise ConfigError(
                    f"{self._name} cannot send the pipeline to its workers: "
                    f"{type(error).__name__}: {error}",
                    got=find_unpicklable(flow),
                    fix='create the object in the function that uses it, or use backend="thread"',
                    pipeline=pipeline,
                ) from error

        return begin

    def options_for(self, flow: DataFlow, node: Node | None = None) -> Options:
        """Return the options for a flow: the backend, and the most workers of any stage."""
        options, backend = self.options, self.options.backend
        if backend is None:
            # Threads that only gather rows of arrays are as fast as processes and start at once.
            releases_gil = node is not None and node.releases_gil
            processes = options.start == "fork" or options.on_worker_death == "restart"
            backend = "thread" if releases_gil and not processes else "process"
        stages = [stage for stage in flows_in(flow) if isinstance(stage, ParallelStage)]
        workers = max([options.workers, *(s.workers().options.workers for s in stages)])
        return replace(options, workers=workers, backend=backend)
