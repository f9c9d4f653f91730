"""Input sources that read a DataFlow through a TensorFlow queue."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack._core.errors import ConfigError, InternalError
from towerpack._core.logs import get_logger
from towerpack.dataflow import DataFlow, DataIterator, RepeatedData
from towerpack.dataflow.parallel import is_lent
from towerpack.dataflow.replay import open_traced
from towerpack.dataflow.stages._repeat import warn_if_shorter_than_len
from towerpack.inputs._base import InputSource, Origins
from towerpack.inputs._check import SpecChecker

_LOG = get_logger(__name__)

# Small batches are stacked and enqueued together, because one enqueue costs about 100 µs, as much
# as a whole step of a tiny model (LOG.md).
_CHUNK_BYTES = 1 << 20
_CHUNK_BATCHES = 64
# A queue of small batches is longer than `queue_size`, so that one call can run many steps.
_CHEAP_QUEUE_BYTES = 8 << 20
_LONGEST_QUEUE = 1024
# Batches in the shared memory of workers occupy it while they wait, so their queue is limited.
_LENT_QUEUE_BYTES = 256 << 20
# TensorFlow aborts the process if memory is aligned to fewer bytes.
_ALIGNED = 64
_POLL_S = 0.2
_JOIN_S = 5.0

_Signature = tuple[tuple[int, ...], ...]


class _FlowInput(InputSource):
    """Base class of input sources that read a flow and pass its batches through a TensorFlow queue.

    It stores the state of the flow after each batch in the queue. Python counts these batches, so
    that no enqueue or dequeue operation of TensorFlow ever waits: Python could not interrupt it.
    """

    def __init__(self, dataflow: DataFlow, infinite: bool = True) -> None:
        self.dataflow = dataflow
        self._flow: DataFlow = RepeatedData(dataflow, -1) if infinite else dataflow
        self._seed = 0
        self._replicas = 1
        self._queue: Any = None
        self._specs: Sequence[tf.TensorSpec] = ()
        self._iterator: DataIterator | None = None
        self._position = 0
        self._whole = False
        self._state: Any = None
        # For each batch in the queue: the flow's state after it, and its shapes.
        self._ready: deque[tuple[Any, _Signature]] = deque()

    def setup(self, specs: Sequence[tf.TensorSpec], *, seed: int, replicas: int = 1) -> None:
        self._specs = specs
        self._seed = seed
        self._replicas = replicas
        self._check = SpecChecker(specs, str(self.dataflow))
        shapes = [spec.shape for spec in specs]
        known = all(shape.is_fully_defined() for shape in shapes)
        with tf.device("CPU:0"):
            # A negative capacity means no limit.
            dtypes = [spec.dtype for spec in specs]
            self._queue = tf.queue.FIFOQueue(-1, dtypes, shapes=shapes if known else None)

    def start(self, state: Any = None) -> None:
        leftover = int(self._queue.size())
        for _ in range(leftover):
            self._queue.dequeue()
        self._ready.clear()
        self._state = state
        self._position = 0
        self._whole = state is None
        self._iterator = self._iterate(state)

    def _iterate(self, state: Any) -> DataIterator:
        # A state holds its seed and epoch. The first pass is always epoch 0, also after a stop.
        fresh = {"seed": self._seed, "epoch": 0} if state is None else {}
        return self._flow.iterate(state=state, **fresh)

    def read_step(self, state: Any, steps: int) -> tuple[list[np.ndarray], Origins] | None:
        arrays: list[np.ndarray] = []
        origins: Origins = []
        ahead = steps * self._replicas
        with open_traced(self._flow, state, seed=self._seed, ahead=ahead) as iterator:
            for batch in itertools.islice(iterator, self._replicas):
                arrays += self._check(batch.datapoint, None)
                origins.append(batch.origins)
        if len(origins) < self._replicas:
            raise ConfigError("The data end before this step.", pipeline=str(self.dataflow))
        return arrays, origins

    def get(self, step: tf.Tensor | tf.Variable) -> list[tf.Tensor]:
        return dequeued(self._queue, self._specs)

    def consumed(self, steps: int) -> None:
        for _ in range(steps * self._replicas):
            self._state, _ = self._ready.popleft()

    def state(self) -> Any:
        return self._state

    def stop(self) -> None:
        iterator, self._iterator = self._iterator, None
        if iterator is not None:
            iterator.close()

    def __len__(self) -> int:
        return len(self.dataflow)

    def _pull(self, iterator: DataIterator | None) -> tuple[list[np.ndarray], Any, _Signature]:
        """Read one batch. Return its arrays, the flow's state after it, and the arrays' shapes."""
        if iterator is None:
            raise InternalError("a batch was requested from an input source before its start()")
        try:
            datapoint = next(iterator)
        except StopIteration:
            if self._whole:
                warn_if_shorter_than_len(self.dataflow, self._position)
            self._whole = False
            raise
        batch = self._check(datapoint, self._position)
        self._position += 1
        return batch, iterator.state(), tuple(array.shape for array in batch)

    def _enqueue(self, batches: list[list[np.ndarray]]) -> None:
        if len(batches) == 1:
            self._queue.enqueue([_without_copy(array) for array in batches[0]])
        elif batches:
            self._queue.enqueue_many([np.stack(column) for column in zip(*batches, strict=True)])

    def _runnable(self, steps: int) -> int:
        """Return the number of steps for which the queue has batches of equal shapes.

        A step whose replicas get batches of different shapes counts as one step. At the end of the
        data, batches are dropped if there are too few for all replicas.
        """
        if len(self._ready) < self._replicas:
            return 0
        first = self._ready[0][1]
        alike = 0
        for _, signature in self._ready:
            if alike == steps * self._replicas or signature != first:
                break
            alike += 1
        return max(1, alike // self._replicas)


class FeedInput(_FlowInput):
    """Input source that reads a batch from a flow only when a step needs it, without a thread.

    Reading does not overlap with training; `QueueInput` overlaps them.

    Args:
        dataflow: Flow whose datapoints are batches.
        infinite: Whether to start over at the end of the flow. If False, training ends there.
    """

    def reserve(self, steps: int, poll: Callable[[], None]) -> int:
        batches: list[list[np.ndarray]] = []
        size = 0
        try:
            most = min(steps * self._replicas, _LONGEST_QUEUE)
            while len(self._ready) < self._replicas or (
                len(self._ready) < most and size < _CHUNK_BYTES
            ):
                poll()
                batch, state, signature = self._pull(self._iterator)
                if batches and signature != self._ready[-1][1]:
                    self._enqueue(batches)
                    batches = []
                batches.append(batch)
                self._ready.append((state, signature))
                size += _nbytes(batch)
        except StopIteration:
            pass
        finally:
            # Also enqueue the batches that were read before a failure.
            self._enqueue(batches)
        return self._runnable(steps)


@dataclass
class _Shared:
    """State that the training loop shares with one background thread of `QueueInput`.

    Each `start` creates one, because a thread that hangs in its flow outlives `stop`.
    """

    iterator: DataIterator | None
    stopping: bool = False
    starving: bool = False
    ended: bool = False
    error: BaseException | None = None
    # Batches read from the flow and not yet in the queue. All have the same shapes.
    batches: list[list[np.ndarray]] = field(default_factory=list)
    entries: list[tuple[Any, _Signature]] = field(default_factory=list)
    nbytes: int = 0


class QueueInput(_FlowInput):
    """Input source in which a thread reads a flow and fills a TensorFlow queue. The default.

    Args:
        dataflow: Flow whose datapoints are batches.
        queue_size: Number of batches in the queue. Small batches use a longer queue, up to 8 MiB.
            Batches of worker processes (`PrefetchData`) stay in shared memory, up to 256 MiB.
        infinite: Whether to start over at the end of the flow. If False, training ends there.

    Raises:
        ConfigError: `queue_size` is a queue object instead of a number.

    Examples:
        >>> from towerpack.dataflow import BatchData, DataFromList
        >>> len(QueueInput(BatchData(DataFromList([[0.0], [1.0]]), 2)))
        1
    """

    def __init__(self, dataflow: DataFlow, queue_size: int = 50, *, infinite: bool = True) -> None:
        super().__init__(dataflow, infinite=infinite)
        if hasattr(queue_size, "enqueue"):
            raise ConfigError(
                "queue_size must be the number of batches in the queue, got a queue.",
                fix="write QueueInput(ds, queue_size=50)",
            )
        self._queue_size = max(1, queue_size)
        self._limit = self._queue_size
        self._changed = threading.Condition()
        # Held while batches are enqueued, to keep their order. Acquire before `_changed`.
        self._sending = threading.Lock()
        self._thread: threading.Thread | None = None
        self._shared = _Shared(None)

    def start(self, state: Any = None) -> None:
        with self._sending:
            super().start(state)
        self._shared = _Shared(self._iterator)
        self._thread = threading.Thread(
            target=self._fill_queue, args=(self._shared,), name="QueueInput", daemon=True
        )
        self._thread.start()

    def reserve(self, steps: int, poll: Callable[[], None]) -> int:
        shared = self._shared
        while True:
            with self._changed:
                enough = len(self._ready) >= self._replicas
                shared.starving = not (enough or shared.error or shared.ended)
                if not shared.starving:
                    break
                if not shared.batches:
                    self._changed.wait(_POLL_S)
            # The thread may wait for the flow while it holds the batches of this step.
            self._flush(shared)
            poll()
        if shared.error is not None:
            raise shared.error
        with self._changed:  # the thread continues to add batches
            return self._runnable(steps)

    def consumed(self, steps: int) -> None:
        with self._changed:
            super().consumed(steps)
            self._changed.notify_all()

    def fill(self) -> float | None:
        return min(1.0, len(self._ready) / self._limit)

    def stop(self) -> None:
        with self._changed:
            self._shared.stopping = True
            self._changed.notify_all()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(_JOIN_S)
            if thread.is_alive():
                # The thread is a daemon: it cannot keep the process alive.
                text = "The flow did not return within %g s of the end of training: %s"
                _LOG.warning(text, _JOIN_S, self.dataflow)
                return
        super().stop()

    def _fill_queue(self, shared: _Shared) -> None:
        failed: BaseException | None = None
        try:
            while not shared.stopping:
                self._add(shared, *self._pull(shared.iterator))
        except StopIteration:
            pass
        except BaseException as error:  # noqa: BLE001 - raised by `reserve`
            failed = error
        # Also publish the batches that were read before a failure.
        self._publish(shared)
        with self._changed:
            shared.error = failed
            shared.ended = True
            self._changed.notify_all()

    def _add(
        self, shared: _Shared, batch: list[np.ndarray], state: Any, signature: _Signature
    ) -> None:
        entries = shared.entries
        if entries and signature != entries[-1][1]:
            self._publish(shared)
        with self._changed:
            shared.batches.append(batch)
            shared.entries.append((state, signature))
            shared.nbytes += _nbytes(batch)
            waiting = len(shared.batches)
            self._lengthen(shared.nbytes / waiting, lent=any(map(is_lent, batch)))
            # At most a quarter of the queue, so that stacking does not empty it.
            is_full = waiting >= min(_CHUNK_BATCHES, max(1, self._limit // 4))
            due = shared.starving or shared.nbytes >= _CHUNK_BYTES or is_full
        if due:
            self._publish(shared)

    def _lengthen(self, batch_bytes: float, *, lent: bool) -> None:
        batch_bytes = max(1.0, batch_bytes)
        cheap = int(_CHEAP_QUEUE_BYTES / batch_bytes)
        wanted = self._queue_size
        if lent:
            wanted = min(wanted, max(2, int(_LENT_QUEUE_BYTES / batch_bytes)))
        self._limit = max(wanted, self._replicas, min(_LONGEST_QUEUE, cheap))

    def _publish(self, shared: _Shared) -> None:
        with self._changed:
            # A step that lacks batches does not wait for this thread: `reserve` flushes itself.
            while len(self._ready) + len(shared.batches) > self._limit:
                if shared.stopping:
                    return
                self._changed.wait(_POLL_S)
        self._flush(shared)

    def _flush(self, shared: _Shared) -> None:
        """Enqueue batches read from the flow, in the reading thread or the training loop."""
        with self._sending:
            with self._changed:
                batches, entries = shared.batches, shared.entries
                shared.batches, shared.entries, shared.nbytes = [], [], 0
                if shared.stopping:
                    # The queue may already belong to a later thread.
                    return
            self._enqueue(batches)
            with self._changed:
                self._ready.extend(entries)
                self._changed.notify_all()


def dequeued(queue: Any, specs: Sequence[tf.TensorSpec]) -> list[tf.Tensor]:
    """Add an operation to the graph that dequeues a batch. Return tensors of the specs' shapes."""
    batch = queue.dequeue()
    tensors = list(batch) if isinstance(batch, list | tuple) else [batch]
    for tensor, spec in zip(tensors, specs, strict=True):
        tensor.set_shape(spec.shape)
    return tensors


def _without_copy(array: np.ndarray) -> Any:
    """Return a worker's array as a tensor in the same memory, which is released with the tensor.

    Other arrays are returned unchanged. TensorFlow copies those, because they may still change.
    """
    fits = array.dtype.kind in "biufc" and array.flags.carray
    if fits and array.ctypes.data % _ALIGNED == 0 and is_lent(array):
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    return array


def _nbytes(batch: list[np.ndarray]) -> int:
    return sum(
        sum(map(len, array.flat)) if array.dtype == object else array.nbytes for array in batch
    )
