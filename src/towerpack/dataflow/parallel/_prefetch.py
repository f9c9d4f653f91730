"""The parallel stages: what they wrap is read ahead, by processes or threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from towerpack.dataflow._compile import ParallelStage
from towerpack.dataflow._flow import DataFlow
from towerpack.dataflow.datapoints import Datapoint
from towerpack.dataflow.parallel._compile_for_workers import ReadAhead
from towerpack.dataflow.parallel._idle_pools import IdlePools
from towerpack.dataflow.parallel._options import (
    Backend,
    OnWorkerDeath,
    Options,
    Start,
    usable_cpus,
)
from towerpack.dataflow.stages._batch import BatchData
from towerpack.dataflow.stages._map import MapData


class PrefetchData(ParallelStage):
    """Read what it wraps ahead, with workers: the same datapoints in the same order, sooner.

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
        workers = usable_cpus() if num_proc is None else num_proc
        self.options = Options(
            workers,
            num_prefetch,
            ordered,
            backend,
            on_worker_death,
            max_restarts,
            stall_s,
            copy,
            start,
        )
        self._idle = IdlePools()

    def arguments(self) -> str:
        count, kind = self.options.workers, self.options.backend or "worker"
        plural = "" if count == 1 else "es" if kind == "process" else "s"
        return f"{count} {kind}{plural}"

    def workers(self) -> ReadAhead:
        return ReadAhead(type(self).__name__, self.options, self._idle)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_idle": IdlePools()}


# The names of the predecessor. All are exact and in order.


class MultiProcessRunnerZMQ(PrefetchData):
    """`PrefetchData` with the arguments in the predecessor's other order.

    Contract: as `PrefetchData`.

    Args:
        num_proc: How many processes.
        hwm: How many datapoints to be ahead.
        options: As for `PrefetchData`.
    """

    def __init__(self, ds: DataFlow, num_proc: int = 1, hwm: int = 50, **options: Any) -> None:
        super().__init__(ds, hwm, num_proc, **options)


class MultiThreadRunner(PrefetchData):
    """`PrefetchData` with threads, which share one flow.

    Contract: as `PrefetchData`.

    Args:
        get_df: The flow, or a function that makes it.
        num_prefetch: How many datapoints to be ahead.
        num_thread: How many threads.
        options: As for `PrefetchData`.
    """

    def __init__(
        self,
        get_df: DataFlow | Callable[[], DataFlow],
        num_prefetch: int | None = None,
        num_thread: int | None = None,
        **options: Any,
    ) -> None:
        ds = get_df() if callable(get_df) else get_df
        super().__init__(ds, num_prefetch, num_thread, backend="thread", **options)


class MultiProcessMapData(PrefetchData):
    """`MapData` in processes.

    Contract: as `MapData`.

    Args:
        num_proc: How many processes.
        map_func: From a datapoint to a new one.
        buffer_size: How many datapoints to be ahead.
        strict: Accepted; every pass is exact in any case.
        options: `rng`, `on_error` and `max_errors` as for `MapData`, others as for `PrefetchData`.
    """

    def __init__(
        self,
        ds: DataFlow,
        num_proc: int | None,
        map_func: Callable[..., Datapoint | None],
        buffer_size: int = 200,
        strict: bool = False,
        **options: Any,
    ) -> None:
        mapped = _mapped(ds, map_func, options)
        options.setdefault("backend", "process")
        super().__init__(mapped, buffer_size, num_proc, **options)


class MultiThreadMapData(MultiProcessMapData):
    """`MapData` in threads, for functions that let go of the GIL most of the time.

    Contract: as `MapData`. Arguments as those of `MultiProcessMapData`.
    """

    def __init__(
        self,
        ds: DataFlow,
        num_thread: int | None,
        map_func: Callable[..., Datapoint | None],
        buffer_size: int = 200,
        strict: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(ds, num_thread, map_func, buffer_size, backend="thread", **options)


class MultiProcessMapAndBatchData(PrefetchData):
    """`BatchData(MapData(ds, map_func), batch_size)` in processes.

    Contract: as those two.

    Args:
        num_proc: How many processes.
        map_func: From a datapoint to a new one.
        batch_size: Datapoints in a batch.
        buffer_size: How many *datapoints of* `ds` to be ahead, at least a batch; by default some.
        remainder: As for `BatchData`.
        options: As for `MultiProcessMapData`.
    """

    def __init__(
        self,
        ds: DataFlow,
        num_proc: int | None,
        map_func: Callable[..., Datapoint | None],
        batch_size: int,
        buffer_size: int | None = None,
        *,
        remainder: bool = False,
        **options: Any,
    ) -> None:
        batched = BatchData(_mapped(ds, map_func, options), batch_size, remainder=remainder)
        batches = None if buffer_size is None else max(1, buffer_size // batch_size)
        super().__init__(batched, batches, num_proc, **options)


def _mapped(ds: DataFlow, f: Callable[..., Datapoint | None], options: dict[str, Any]) -> MapData:
    own = {name: options.pop(name) for name in ("rng", "on_error", "max_errors") if name in options}
    return MapData(ds, f, **own)


MultiProcessPrefetchData = MultiProcessRunner = PrefetchData
PrefetchDataZMQ = MultiProcessRunnerZMQ
MultiThreadPrefetchData = MultiThreadRunner
MultiProcessMapDataZMQ = MultiProcessMapData
MultiProcessMapAndBatchDataZMQ = MultiProcessMapAndBatchData
