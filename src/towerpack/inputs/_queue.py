"""Inputs from a DataFlow through a TensorFlow queue: filled by a thread, or before each call."""

from __future__ import annotations

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
from towerpack.dataflow.stages._repeat import warn_if_shorter_than_len
from towerpack.inputs._base import InputSource
from towerpack.inputs._check import SpecChecker

_LOG = get_logger(__name__)

# Small batches are stacked and enqueued many at a time: one enqueue costs about 100 µs of Python
# and dispatch, as much as a whole step of a tiny model (LOG.md).
_CHUNK_BYTES = 1 << 20
_CHUNK_BATCHES = 64
# A queue of small batches is made longer than asked for, so that one call can run many steps.
_CHEAP_QUEUE_BYTES = 8 << 20
_LONGEST_QUEUE = 1024
# Batches that lie where workers made them stay there while they wait, so fewer wait.
_LENT_QUEUE_BYTES = 256 << 20
# TensorFlow ends the process over memory that is aligned less.
_ALIGNED = 64
_POLL_S = 0.2
_JOIN_S = 5.0

_Signature = tuple[tuple[int, ...], ...]


class _FlowInput(InputSource):
    """What the two inputs from a flow share: the queue, and where each batch in it came from.

    The queue's length is counted here and not left to TensorFlow: no enqueue or dequeue ever has
    to wait where Python could not interrupt it.
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
        # One entry for each batch in the queue: the flow's state after it, and its shapes.
        self._ready: deque[tuple[Any, _Signature]] = deque()

    def setup(self, specs: Sequence[tf.TensorSpec], *, seed: int, replicas: int = 1) -> None:
        self._specs = specs
        self._seed = seed
        self._replicas = replicas
        self._check = SpecChecker(specs, str(self.dataflow))
        shapes = [spec.shape for spec in specs]
        known = all(shape.is_fully_defined() for shape in shapes)
        with tf.device("CPU:0"):
            self._queue = tf.queue.FIFOQueue(
                self._capacity(), [s.dtype for s in specs], shapes=shapes if known else None
            )

    def _capacity(self) -> int:
        return 2 * (_LONGEST_QUEUE + self._replicas)

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
        # A state knows its seed and epoch. The first pass is always epoch 0, also after a stop.
        fresh = {"seed": self._seed, "epoch": 0} if state is None else {}
        return self._flow.iterate(state=state, **fresh)

    def read_again(self, steps: int) -> list[np.ndarray] | None:
        taken = steps * self._replicas
        iterator = self._iterate(self._ready[taken - 1][0] if taken else self._state)
        try:
            batches = [self._check(next(iterator), 0) for _ in range(self._replicas)]
        finally:
            iterator.close()
        return [array for batch in batches for array in batch]

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
        """One checked batch, the state after it and its shapes. StopIteration at the end."""
        if iterator is None:
            raise InternalError("a batch was asked for before start()")
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
            self._queue.enqueue([_handed_over(array) for array in batches[0]])
        elif batches:
            self._queue.enqueue_many([np.stack(column) for column in zip(*batches, strict=True)])

    def _runnable(self, steps: int) -> int:
        """For how many steps the next batches suffice and are alike, so that outputs stack.

        A step whose replicas get batches of different shapes runs in a call of its own. The rest of
        the data that does not suffice for one step of all replicas is left.
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
    """Take batches from a flow when a step needs them, without a thread.

    The simplest source: the flow's work and the model's alternate. `QueueInput` overlaps them.

    Args:
        dataflow: Its datapoints are batches.
        infinite: Start over at the end of the flow; otherwise training ends there.
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
            # Also when the flow failed: what came before the bad datapoint is good.
            self._enqueue(batches)
        return self._runnable(steps)


@dataclass
class _Pass:
    """What the thread of one `start` and the loop tell each other.

    A flow that hangs keeps its thread beyond `stop`; it must not meet the pass of a later `start`.
    """

    iterator: DataIterator | None
    stopping: bool = False
    starving: bool = False
    ended: bool = False
    error: BaseException | None = None
    # Taken from the flow, all of one signature, and not in the queue yet.
    batches: list[list[np.ndarray]] = field(default_factory=list)
    entries: list[tuple[Any, _Signature]] = field(default_factory=list)
    nbytes: int = 0


class QueueInput(_FlowInput):
    """A thread takes batches from a flow and keeps a TensorFlow queue filled. The default.

    Args:
        dataflow: Its datapoints are batches.
        queue_size: Batches that may wait. Small batches may wait in larger numbers, up to 8 MiB.
            Large ones that workers made (`PrefetchData`) are not copied, but wait where they were
            made, up to 256 MiB.
        infinite: Start over at the end of the flow; otherwise training ends there.
    """

    def __init__(self, dataflow: DataFlow, queue_size: int = 50, *, infinite: bool = True) -> None:
        super().__init__(dataflow, infinite=infinite)
        if hasattr(queue_size, "enqueue"):
            raise ConfigError(
                "QueueInput takes the size of its queue, not a queue.",
                fix="write QueueInput(ds, queue_size=50)",
            )
        self._queue_size = max(1, queue_size)
        self._limit = self._queue_size
        self._changed = threading.Condition()
        # Held while batches go into the queue, so that they keep their order; taken before
        # `_changed`, never inside of it.
        self._sending = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pass = _Pass(None)

    def _capacity(self) -> int:
        return super()._capacity() + 2 * self._queue_size

    def start(self, state: Any = None) -> None:
        with self._sending:
            super().start(state)
        self._pass = _Pass(self._iterator)
        self._thread = threading.Thread(
            target=self._fill_queue, args=(self._pass,), name="QueueInput", daemon=True
        )
        self._thread.start()

    def reserve(self, steps: int, poll: Callable[[], None]) -> int:
        """Wait for the thread; raise what it raised."""
        now = self._pass
        while True:
            with self._changed:
                now.starving = not (self._enough() or now.error or now.ended)
                if not now.starving:
                    break
                if not now.batches:
                    self._changed.wait(_POLL_S)
            # The thread may be waiting for the flow while it holds what we need.
            self._flush(now)
            poll()
        if now.error is not None:
            raise now.error
        with self._changed:  # the thread goes on adding batches
            return self._runnable(steps)

    def _enough(self) -> bool:
        return len(self._ready) >= self._replicas

    def consumed(self, steps: int) -> None:
        with self._changed:
            super().consumed(steps)
            self._changed.notify_all()

    def fill(self) -> float | None:
        return min(1.0, len(self._ready) / self._limit)

    def stop(self) -> None:
        with self._changed:
            self._pass.stopping = True
            self._changed.notify_all()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(_JOIN_S)
            if thread.is_alive():
                # It is a daemon: it cannot keep the process alive, wherever the flow hangs.
                text = "The flow did not give back control within %g s of the end of training: %s"
                _LOG.warning(text, _JOIN_S, self.dataflow)
                return
        super().stop()

    # ------------------------------------------------------------- in the thread

    def _fill_queue(self, now: _Pass) -> None:
        failed: BaseException | None = None
        try:
            while not now.stopping:
                self._take(now, *self._pull(now.iterator))
        except StopIteration:
            pass
        except BaseException as error:  # noqa: BLE001 - handed to the training loop, which raises it
            failed = error
        # Also when the flow failed: what came before is good.
        self._publish(now)
        with self._changed:
            now.error = failed
            now.ended = True
            self._changed.notify_all()

    def _take(self, now: _Pass, batch: list[np.ndarray], state: Any, signature: _Signature) -> None:
        entries = now.entries
        if entries and signature != entries[-1][1]:
            self._publish(now)
        with self._changed:
            now.batches.append(batch)
            now.entries.append((state, signature))
            now.nbytes += _nbytes(batch)
            waiting = len(now.batches)
            self._lengthen(now.nbytes / waiting, lent=any(map(is_lent, batch)))
            due = now.starving or now.nbytes >= _CHUNK_BYTES or waiting >= self._chunk_limit()
        if due:
            self._publish(now)

    def _chunk_limit(self) -> int:
        # A quarter of the queue, so that stacking does not empty it.
        return min(_CHUNK_BATCHES, max(1, self._limit // 4))

    def _lengthen(self, batch_bytes: float, *, lent: bool) -> None:
        batch_bytes = max(1.0, batch_bytes)
        cheap = int(_CHEAP_QUEUE_BYTES / batch_bytes)
        wanted = self._queue_size
        if lent:
            wanted = min(wanted, max(2, int(_LENT_QUEUE_BYTES / batch_bytes)))
        self._limit = max(wanted, self._replicas, min(_LONGEST_QUEUE, cheap))

    def _publish(self, now: _Pass) -> None:
        with self._changed:
            # A step that lacks batches does not wait for us: `reserve` then flushes by itself.
            while len(self._ready) + len(now.batches) > self._limit:
                if now.stopping:
                    return
                self._changed.wait(_POLL_S)
        self._flush(now)

    def _flush(self, now: _Pass) -> None:
        """Put what was taken from the flow into the queue; from the thread or from the loop."""
        with self._sending:
            with self._changed:
                batches, entries = now.batches, now.entries
                now.batches, now.entries, now.nbytes = [], [], 0
                if now.stopping:
                    # Perhaps another pass has begun, and the queue is its own.
                    return
            self._enqueue(batches)
            with self._changed:
                self._ready.extend(entries)
                self._changed.notify_all()


def dequeued(queue: Any, specs: Sequence[tf.TensorSpec]) -> list[tf.Tensor]:
    """Take one batch from a queue, in the graph. The tensors have the shapes of the specs."""
    taken = queue.dequeue()
    tensors = list(taken) if isinstance(taken, list | tuple) else [taken]
    for tensor, spec in zip(tensors, specs, strict=True):
        tensor.set_shape(spec.shape)
    return tensors


def _handed_over(array: np.ndarray) -> Any:
    """What a worker made, as a tensor in the same memory; the slot is free when the tensor is.

    Other arrays are copied: they might be changed, or be parts of a data set.
    """
    fits = array.dtype.kind in "biufc" and array.flags.carray
    if fits and array.ctypes.data % _ALIGNED == 0 and is_lent(array):
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    return array


def _nbytes(batch: list[np.ndarray]) -> int:
    """Bytes of a batch. An array of strings holds only references to them."""
    return sum(
        sum(map(len, array.flat)) if array.dtype == object else array.nbytes for array in batch
    )
