"""The parallel stages under the names of the predecessor. All are exact and in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from towerpack._core.errors import ConfigError
from towerpack.dataflow._arguments import integer_of
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._flow import DataFlow
from towerpack.dataflow.parallel._options import Backend
from towerpack.dataflow.parallel._prefetch import PrefetchData
from towerpack.dataflow.stages._batch import BatchData
from towerpack.dataflow.stages._map import MapData
from towerpack.dataflow.stages._mapping import Limit, OnError


class MultiProcessRunnerZMQ(PrefetchData):
    """`PrefetchData` with the arguments in the predecessor's other order.

    Contract: as `PrefetchData`.

    Args:
        ds: What to read.
        num_proc: How many processes.
        hwm: How many datapoints to be ahead.
        options: As for `PrefetchData`.
    """

    def __init__(self, ds: DataFlow, num_proc: int = 1, hwm: int = 50, **options: Any) -> None:
        super().__init__(ds, hwm, num_proc, **options)


class MultiThreadRunner(PrefetchData):
    """`PrefetchData` with threads.

    The predecessor made one flow for each thread and mixed what they gave. Here all threads share
    one flow, and a pass over it is exact.

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
        ds: What to map.
        num_proc: How many processes.
        map_func: From a datapoint to a new one.
        buffer_size: How many datapoints to be ahead.
        strict: Accepted; every pass is exact in any case.
        rng: As for `MapData`.
        on_error: As for `MapData`.
        max_errors: As for `MapData`.
        options: As for `PrefetchData`.
    """

    _backend: Backend = "process"

    def __init__(
        self,
        ds: DataFlow,
        num_proc: int | None,
        map_func: Callable[..., Datapoint | None],
        buffer_size: int = 200,
        strict: bool = False,
        *,
        rng: bool = False,
        on_error: OnError = "raise",
        max_errors: Limit = None,
        **options: Any,
    ) -> None:
        mapped = MapData(ds, map_func, rng=rng, on_error=on_error, max_errors=max_errors)
        super().__init__(mapped, buffer_size, num_proc, backend=self._backend, **options)


class MultiThreadMapData(MultiProcessMapData):
    """`MapData` in threads, for functions that let go of the GIL most of the time.

    Contract: as `MapData`.

    Args:
        ds: What to map.
        num_thread: How many threads.
        map_func: From a datapoint to a new one.
        buffer_size: How many datapoints to be ahead.
        strict: Accepted; every pass is exact in any case.
        options: As for `MultiProcessMapData`.
    """

    _backend: Backend = "thread"

    def __init__(
        self,
        ds: DataFlow,
        num_thread: int | None,
        map_func: Callable[..., Datapoint | None],
        buffer_size: int = 200,
        strict: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(ds, num_thread, map_func, buffer_size, strict, **options)


class MultiProcessMapAndBatchData(PrefetchData):
    """`BatchData(MapData(ds, map_func), batch_size)` in processes.

    Contract: as those two.

    Args:
        ds: What to map.
        num_proc: How many processes.
        map_func: From a datapoint to a new one.
        batch_size: Datapoints in a batch.
        buffer_size: How many *datapoints of* `ds` to be ahead; by default some batches.
        rng: As for `MapData`.
        on_error: As for `MapData`.
        max_errors: As for `MapData`.
        remainder: As for `BatchData`.
        options: As for `PrefetchData`.
    """

    def __init__(
        self,
        ds: DataFlow,
        num_proc: int | None,
        map_func: Callable[..., Datapoint | None],
        batch_size: int,
        buffer_size: int | None = None,
        *,
        rng: bool = False,
        on_error: OnError = "raise",
        max_errors: Limit = None,
        remainder: bool = False,
        **options: Any,
    ) -> None:
        mapped = MapData(ds, map_func, rng=rng, on_error=on_error, max_errors=max_errors)
        batched = BatchData(mapped, batch_size, remainder=remainder)
        if buffer_size is not None and integer_of(buffer_size, "buffer_size") < batch_size:
            raise ConfigError(
                f"A buffer of {buffer_size} datapoints holds no batch of {batch_size}.",
                expected=f"{batch_size} or more, or None",
            )
        batches = None if buffer_size is None else buffer_size // batch_size
        super().__init__(batched, batches, num_proc, **options)


MultiProcessPrefetchData = MultiProcessRunner = PrefetchData
PrefetchDataZMQ = MultiProcessRunnerZMQ
MultiThreadPrefetchData = MultiThreadRunner
MultiProcessMapDataZMQ = MultiProcessMapData
MultiProcessMapAndBatchDataZMQ = MultiProcessMapAndBatchData
