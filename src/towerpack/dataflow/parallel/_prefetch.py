"""The parallel stage: what it wraps is read ahead, by processes or threads."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from towerpack._core.errors import ConfigError, TowerpackError
from towerpack.dataflow._flow import (
    DataFlow,
    ParallelStage,
    Place,
    compile_flow,
    inputs_of,
    open_flow,
    pipeline_of,
)
from towerpack.dataflow._plan import Node
from towerpack.dataflow._stream import State, Stream
from towerpack.dataflow.parallel._ahead import AheadNode, Pass
from towerpack.dataflow.parallel._chain import find_chain
from towerpack.dataflow.parallel._crew import Crew, Stats
from towerpack.dataflow.parallel._culprit import find_culprit
from towerpack.dataflow.parallel._job import Job, PlanJob
from towerpack.dataflow.parallel._maps import open_chain
from towerpack.dataflow.parallel._options import (
    Backend,
    OnWorkerDeath,
    Options,
    Start,
    usable_cpus,
)
from towerpack.dataflow.parallel._parking import Parking
from towerpack.dataflow.parallel._run import PlanWork, Run, WorkSource
from towerpack.dataflow.parallel._unordered import UnorderedStream

_KINDS = {
    None: ("worker", "workers"),
    "process": ("process", "processes"),
    "thread": ("thread", "threads"),
}


class PrefetchData(ParallelStage):
    """Reads what it wraps ahead, with workers: the same datapoints in the same order, sooner.

    Put it at the end of a pipeline. Workers then do everything below, and the stages directly
    above that only restructure (`BatchData`, `RepeatedData`, `ShuffleData`). A map above it runs
    in the consumer. Over a flow that can only be read in order, the consumer reads, and workers
    apply the maps and stack batches of what these give.

    Workers are fresh interpreters that are sent the pipeline, so functions may be lambdas and
    need no `if __name__ == "__main__"`. They stay from pass to pass and end with this object.
    Arrays come in memory that is used again when the last view of them is gone: keep what you
    like, and change what you like.

    Contract: order, length and randomness of `ds`, for any number of workers (with
    `ordered=False` the datapoints of `ds` in the order in which they get ready); thread- and
    fork-safe; resumable as `ds` is, with any number of workers or without this stage.

    Args:
        ds: What to read.
        num_prefetch: How many datapoints to be ahead; by default some for each worker.
        num_proc: How many workers; by default as many as there are CPUs. With 0 the consumer does
            the same work by itself, for debuggers.
        ordered: Keep the order. Without, nothing waits for a slow datapoint; it is kept where a
            resume reads again and must find the same: below caches, vectorised maps, and the like.
        backend: "process", or "thread" for functions that let go of the GIL most of the time. By
            default processes; threads where there are no functions, but rows of arrays to move.
        on_worker_death: "raise" a `WorkerError`, or "restart": the work is done again by another
            one, and nothing is lost or repeated. Work that two workers crashed at, or at which five
            were killed from outside, is an error.
        max_restarts: How many workers to replace.
        stall_s: After how many seconds without a result to log what the workers are doing.
        copy: Give results memory of their own.
        start: "fresh" interpreters, or "fork", which starts faster and is refused where it is not
            safe: in a process with TensorFlow, or with threads besides those that read flows ahead.

    Raises:
        WorkerError: A worker died; raised while iterating, as is what the pipeline itself raises,
            after the datapoints before it.
    """

    def __init__(
        self,
        ds: DataFlow,
        num_prefetch: int | None = None,
        num_proc: int | None = None,
        *,
        ordered: bool = True,
        backend: Backend | None = None,
        on_worker_death: OnWorkerDeath = "raise",
        max_restarts: int = 100,
        stall_s: float = 60.0,
        copy: bool = False,
        start: Start = "fresh",
    ) -> None:
        super().__init__(ds)
        self.options = Options(
            workers=usable_cpus() if num_proc is None else num_proc,
            backend=backend,
            prefetch=num_prefetch,
            ordered=ordered,
            on_worker_death=on_worker_death,
            max_restarts=max_restarts,
            stall_s=stall_s,
            copy=copy,
            start=start,
        )
        self._open_parking()

    def arguments(self) -> str:
        count = self.options.workers
        one, more = _KINDS[self.options.backend]
        return f"{count} {one if count == 1 else more}"

    def read_ahead(self, flow: DataFlow, node: Node, place: Place) -> Node | None:
        options = self._options(flow, node)
        if not options.ordered:
            if place.workers is None and not place.in_order:
                return None
            options = replace(options, ordered=True)  # below what can only be read in order
        if options.workers == 0:
            return node
        pipeline, seed = pipeline_of(flow), place.seed
        key = (weakref.ref(flow), seed, place.branch)

        # It must not hold `place`, which comes to hold it: passes end when they are dropped, and
        # not when garbage is collected.
        def begin(epoch: int, position: int) -> Pass:
            def positions(crew: Crew) -> WorkSource:
                return PlanWork(epoch, position, node.size, node.chunk, crew.options.workers)

            return self.start(flow, PlanJob(node, seed), key, positions, options, pipeline)

        ahead = AheadNode(node, begin)
        if place.tally is not None:
            place.tally.closing.append(ahead.close)
        return ahead

    def open_ahead(self, flow: DataFlow, place: Place, epoch: int, state: State) -> Stream:
        options = self._options(flow)
        node = compile_flow(flow, replace(place, serial=True))
        if node is not None and options.workers:  # with `ordered=False`
            return self._open_unordered(flow, node, place, epoch, state)
        workers = self if options.workers else None
        return open_flow(flow, replace(place, serial=True, workers=workers), epoch, state)

    def _open_unordered(
        self, flow: DataFlow, node: Node, place: Place, epoch: int, state: State
    ) -> Stream:
        options, pipeline, seed = self._options(flow, node), pipeline_of(flow), place.seed
        key = (weakref.ref(flow), seed, place.branch)

        def begin(work: Callable[[Crew], WorkSource]) -> Pass:
            return self.start(flow, PlanJob(node, seed), key, work, options, pipeline)

        return UnorderedStream(node, epoch, state, begin)

    def open_maps(self, flow: DataFlow, place: Place, epoch: int, state: State) -> Stream | None:
        chain = find_chain(flow)
        if chain is None:
            return None
        # What can only be read in order has no positions by which a state could tell what is done.
        options = replace(self._options(self), ordered=True)
        pipeline = pipeline_of(flow)
        key = (weakref.ref(flow), place.seed, place.branch)

        def begin(job: Job, source: Callable[[Crew], WorkSource]) -> Pass:
            return self.start(flow, job, key, source, options, pipeline)

        return open_chain(chain, place, epoch, state, begin)

    def start(
        self,
        flow: DataFlow,
        job: Job,
        key: Any,
        source: Callable[[Crew], WorkSource],
        options: Options,
        pipeline: str,
    ) -> Pass:
        """Begin a pass with a crew that waits here, or a new one."""

        def run(crew: Crew) -> Run:
            try:
                started = Run(crew, job, key, source, pipeline)
                self._latest = started.stats
                return started
            except (TowerpackError, OSError, MemoryError):
                raise
            except Exception as error:
                raise not_sent(flow, self, error) from error

        return Pass(self._parking.take(options), self._parking.park, run)

    def _options(self, flow: DataFlow, node: Node | None = None) -> Options:
        gathering = node is not None and node.gathers
        return self.options.with_workers(most_workers(flow), gathering=gathering)

    def stats(self) -> Stats | None:
        """What the workers have done in the pass that was begun last; `None` before the first."""
        return None if self._latest is None else self._latest()

    def _open_parking(self) -> None:
        self._latest: Callable[[], Stats] | None = None
        self._parking = Parking()
        weakref.finalize(self, self._parking.close)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_parking", "_latest")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open_parking()


def most_workers(flow: DataFlow) -> int:
    """The largest number of workers that parallel stages of a pipeline ask for."""
    own = flow.options.workers if isinstance(flow, PrefetchData) else 0
    return max([own, *map(most_workers, inputs_of(flow))])


def not_sent(flow: DataFlow, stage: PrefetchData, error: Exception) -> ConfigError:
    """The error for a pipeline that does not pickle: it names what does not."""
    return ConfigError(
        f"{type(stage).__name__} cannot send the pipeline to its workers: "
        f"{type(error).__name__}: {error}",
        got=find_culprit(flow),
        fix="make it where it is used (in the function, or when it is first needed), or "
        'backend="thread"',
        pipeline=pipeline_of(flow),
    )
