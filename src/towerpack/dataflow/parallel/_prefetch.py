from __future__ import annotations

from collections.abc import Callable
from typing import Any

from towerpack.dataflow._compile import ParallelStage
from towerpack.dataflow._flow import DataFlow
from towerpack.dataflow.datapoints import Datapoint
from towerpack.dataflow.parallel._compile_for_workers import ReadAhead
from towerpack.dataflow.parallel._idle_pools import IdlePools
from towerpack.dataflow.parallel._options import Backend, OnWorkerDeath, Options, Start, usable_cpus
from towerpack.dataflow.stages._batch import BatchData
from towerpack.dataflow.stages._map import MapData


class PrefetchData(ParallelStage):
    """Read a flow in advance with worker processes or threads, without changing the datapoints.

    Put this stage at the end of a pipeline. Workers run all stages below, and stages directly above
    that only restructure (`BatchData`, `RepeatedData`, `ShuffleData`). If a flow can only be read
    in order, the consumer reads it, and workers apply maps and stack batches of mapped datapoints.

    Worker processes are fresh interpreters. Functions may be lambdas, and scripts need no `if
    __name__ == "__main__"` guard. Workers are reused in every pass and end with this object. Arrays
    may be retained and changed: their memory is reused after the last reference is dropped. A state
    fits any number of workers, and the pipeline without this stage.

    Args:
        ds: Flow to read in advance.
        num_prefetch: Number of datapoints to read in advance; by default some for each worker.
        num_proc: Number of workers; by default the number of CPUs. With 0, the consumer does the
            work, for debugging.
        ordered: Whether to keep the order. Otherwise, datapoints are yielded as they get ready,
            except below stages that need the order for a resume, such as caches.
        backend: "process", or "thread" for functions that mostly release the GIL. By default
            threads if the pipeline only moves rows of arrays, otherwise processes.
        on_worker_death: "raise" a `WorkerError`, or "restart" the worker and repeat its work
            without losing datapoints. Work at which two workers crashed or five were killed is an
            error.
        max_restarts: Maximum number of restarts in a pass.
        stall_s: Seconds without a result after which the stack traces of a worker are logged.
        copy: Whether to copy results instead of lending memory.
        start: "fresh" interpreters, or "fork", which starts faster but needs a process without
            TensorFlow and without other threads.

    Raises:
        ConfigError: An argument is invalid.
        WorkerError: A worker died; raised while iterating. Errors of the pipeline are raised after
            the datapoints before them.
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


# Classes with the names and arguments of Tensorpack. All are exact and in order.


class MultiProcessRunnerZMQ(PrefetchData):
    """Variant of `PrefetchData` with the arguments of Tensorpack.

    Args:
        ds: Flow to read ahead.
        num_proc: Number of processes.
        hwm: Number of datapoints to read ahead.
        options: Keyword arguments of `PrefetchData`.
    """

    def __init__(self, ds: DataFlow, num_proc: int = 1, hwm: int = 50, **options: Any) -> None:
        super().__init__(ds, hwm, num_proc, **options)


class MultiThreadRunner(PrefetchData):
    """Variant of `PrefetchData` with threads, which share one flow.

    Args:
        get_df: Flow to read ahead, or a function that creates it.
        num_prefetch: Number of datapoints to read ahead.
        num_thread: Number of threads.
        options: Keyword arguments of `PrefetchData`.
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
    """Variant of `MapData` that runs in worker processes.

    Args:
        ds: Flow whose datapoints are mapped.
        num_proc: Number of processes.
        map_func: Function that returns a new datapoint.
        buffer_size: Number of datapoints to read ahead.
        strict: Ignored; every pass is exact.
        options: Keyword arguments of `MapData` (`rng`, `on_error`, `max_errors`) and
            `PrefetchData`.
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
    """Variant of `MapData` that runs in threads, for functions that mostly release the GIL.

    Args:
        ds, map_func, buffer_size, strict, options: As for `MultiProcessMapData`.
        num_thread: Number of threads.
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
    """Equivalent of `BatchData(MapData(ds, map_func), batch_size)` in worker processes.

    Args:
        ds, num_proc, map_func, options: As for `MultiProcessMapData`.
        batch_size: Number of datapoints in a batch.
        buffer_size: Number of datapoints of `ds` to read ahead, at least one batch.
        remainder: Whether to yield a smaller batch at the end.
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
    names = {"rng", "on_error", "max_errors"} & options.keys()
    return MapData(ds, f, **{name: options.pop(name) for name in names})


MultiProcessPrefetchData = MultiProcessRunner = PrefetchData
PrefetchDataZMQ = MultiProcessRunnerZMQ
MultiThreadPrefetchData = MultiThreadRunner
MultiProcessMapDataZMQ = MultiProcessMapData
MultiProcessMapAndBatchDataZMQ = MultiProcessMapAndBatchData
