from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import config

from towerpack._core.errors import ConfigError, DataFlowError, SpecError, StateError
from towerpack._core.logs import get_logger
from towerpack.dataflow import DataFlow
from towerpack.inputs._base import InputSource, Origins
from towerpack.inputs._check import fitting
from towerpack.inputs._proxy import ProxyInputSource
from towerpack.inputs._queue import QueueInput, dequeued
from towerpack.inputs.components import ordered_components

_LOG = get_logger(__name__)

# Limits of one reservation, unless one step needs more.
_MOST_S = 0.05
_MOST_BATCHES = 1024
_MOST_BYTES = 64 << 20
# The iterator's state is saved this often, but for at most 1 % of the time.
_ANCHOR_S = 10.0
_ANCHOR_SHARE = 0.01
_POLL_S = 0.2
_SAVE_S = 1.0
_JOIN_S = 5.0


class TFDatasetInput(ProxyInputSource):
    """Input source that reads batches from a `tf.data.Dataset`.

    A `prefetch` is appended to the dataset. Checkpoints hold the iterator's state as TensorFlow
    saves it, including the buffers of `shuffle` and `prefetch`.

    Args:
        dataset: Dataset whose elements are batches: a tensor for each input of the model, in order,
            or a dict by their names. A dtype is converted if that changes no value. A DataFlow is
            wrapped in a `QueueInput`.
        infinite: Start over at the end of the dataset. Otherwise training ends there.
        resumable: Whether checkpoints hold the position. Set to False if TensorFlow cannot save it
            (`from_generator`, `py_function`; `tf.random` or `tf.debugging` in a map). A resumed run
            then reads the dataset from the beginning.

    Raises:
        ConfigError: `dataset` is neither a dataset nor a DataFlow.
        StateError: The position of the dataset cannot be saved. Raised at setup.
    """

    def __init__(self, dataset: Any, *, infinite: bool = True, resumable: bool = True) -> None:
        if isinstance(dataset, DataFlow):
            super().__init__(QueueInput(dataset, infinite=infinite))
        elif isinstance(dataset, tf.data.Dataset):
            super().__init__(_DatasetInput(dataset, infinite=infinite, resumable=resumable))
        else:
            name = type(dataset).__name__
            raise ConfigError(f"dataset must be a tf.data.Dataset or a DataFlow, got {name}.")

    @staticmethod
    def dataflow_to_dataset(df: DataFlow, types: Sequence[Any]) -> tf.data.Dataset:
        """Convert one pass over a flow to a dataset, for further stages of `tf.data`.

        The position of the dataset cannot be saved. `TFDatasetInput(df)` can save it.

        Args:
            df: Flow whose datapoints are tuples or lists.
            types: Dtype or `tf.TensorSpec` of each component.
        """

        def datapoints() -> Iterator[tuple[Any, ...]]:
            return (tuple(datapoint) for datapoint in df)

        any_shape: Any = None
        specs = (t if isinstance(t, tf.TensorSpec) else tf.TensorSpec(any_shape, t) for t in types)
        return tf.data.Dataset.from_generator(datapoints, output_signature=tuple(specs))


class _Anchor(NamedTuple):
    """Saved state of the iterator, and the number of batches read from it since `start`."""

    position: int
    iterator: bytes


class _DatasetInput(InputSource):
    """Source that moves exactly the reserved batches from an iterator to a queue.

    Between two calls, the iterator is therefore at the position after the last consumed batch. If
    it has read further (for example below a source that works ahead), `state` returns an earlier
    position and the number of batches to skip. A thread calls the iterator, because Python cannot
    interrupt it.
    """

    def __init__(self, dataset: tf.data.Dataset, *, infinite: bool, resumable: bool) -> None:
        self._source = dataset
        self._infinite = infinite
        self._resumable = resumable
        self._replicas = 1
        self._specs: Sequence[tf.TensorSpec] = ()
        self._queue: Any = None
        self._dataset: Any = None
        self._iterator: Any = None
        self._move: Any = None
        self._beginning = b""
        self._anchors: deque[_Anchor] = deque()
        self._next_anchor = 0.0
        # Batches since `start`.
        self._moved = self._consumed = 0
        self._thread: threading.Thread | None = None
        self._ended = False
        self._error: Exception | None = None

    def setup(self, specs: Sequence[tf.TensorSpec], *, seed: int, replicas: int = 1) -> None:
        self._specs = specs
        self._replicas = replicas
        dataset = self._source.repeat() if self._infinite else self._source
        with tf.device("CPU:0"):
            self._queue = tf.queue.FIFOQueue(-1, [s.dtype for s in specs])  # without limit
            self._dataset = dataset.prefetch(tf.data.AUTOTUNE)
        self._move = self._traced_move()
        self._iterate()
        if self._resumable:
            self._beginning = self._saved_at_the_beginning()

    def start(self, state: Any = None) -> None:
        if not self._idle(0):
            raise DataFlowError(
                "The dataset cannot be read, because it still blocks an earlier run's thread.",
                fix="start the program again",
            )
        anchor, skipped = self._beginning, 0
        if state is not None and self._resumable:
            try:
                anchor, skipped = state["iterator"], int(state["skip"])
            except (TypeError, LookupError) as error:
                raise self._foreign(state) from error
        for _ in range(int(self._queue.size())):
            self._queue.dequeue()
        if self._iterator is None:
            self._iterate()
        if self._resumable:
            try:
                _restore(self._iterator, anchor)
            except (tf.errors.OpError, TypeError, ValueError) as error:
                raise self._foreign(state) from error
        self._anchors = deque([_Anchor(0, anchor)])
        self._next_anchor = time.monotonic() + _ANCHOR_S
        self._moved, self._consumed = 0, skipped
        self._ended, self._error = False, None

    def _saved_at_the_beginning(self) -> bytes:
        if _draws_seeds(self._source):
            got, fix = "a shuffle without a seed", "pass a seed: dataset.shuffle(…, seed=1)"
        else:
            try:
                return _saved(self._iterator)
            except tf.errors.OpError as error:
                got = error.message.rpartition("}} ")[2]
            fix = "use a DataFlow for Python code, and tf.random.stateless_* for random numbers"
        raise StateError(
            "A run cannot be resumed with this dataset, whose position TensorFlow cannot save.",
            got=got,
            expected="seeds for shuffles; no from_generator, py_function, tf.random, tf.debugging",
            fix=f"{fix}; or pass TFDatasetInput(dataset, resumable=False) to read the data from "
            "the beginning after a resume",
            pipeline=str(self._source),
        )

    def _foreign(self, state: Any) -> StateError:
        return StateError(
            "The saved data position belongs to another dataset.",
            got=f"{type(state).__name__} {state!s:.60}",
            expected="the state of a TFDatasetInput over the same dataset",
            fix="resume with the data that the checkpoint was saved with",
        )

    def _iterate(self) -> None:
        with tf.device("CPU:0"):
            self._iterator = iter(self._dataset)

    def _traced_move(self) -> Any:
        # `tf.timestamp` is not available if operations are deterministic.
        timed = not config.is_op_determinism_enabled()

        def move(iterator: Any, least: tf.Tensor, most: tf.Tensor) -> Any:
            deadline = tf.timestamp() + _MOST_S if timed else tf.constant(0.0, tf.float64)

            def unfinished(i: tf.Tensor, nbytes: tf.Tensor) -> tf.Tensor:
                enough = (i >= most) | (nbytes >= _MOST_BYTES)
                if timed:
                    enough |= tf.timestamp() >= deadline
                return (i < least) | tf.logical_not(enough)

            def body(i: tf.Tensor, nbytes: tf.Tensor) -> Any:
                batch = self._batch(next(iterator))
                self._queue.enqueue(batch)
                sizes = (tf.size(t, tf.int64) * t.dtype.size for t in batch)
                return i + 1, nbytes + sum(sizes)

            return tf.while_loop(unfinished, body, (tf.constant(0), tf.constant(0, tf.int64)))

        number = tf.TensorSpec([], tf.int32)
        signature = [tf.data.IteratorSpec(self._dataset.element_spec), number, number]
        with tf.device("CPU:0"):
            function = tf.function(move, input_signature=signature, autograph=False)
            return function.get_concrete_function()

    def _batch(self, element: Any) -> list[tf.Tensor]:
        """Return tensors in the order of the specs. Raise `SpecError` if they do not match."""
        element = ordered_components(element, self._specs, "The dataset")
        tensors = list(element) if isinstance(element, list | tuple) else [element]
        for tensor in tensors:
            if not isinstance(tensor, tf.Tensor):
                name = type(tensor).__name__
                raise SpecError(
                    f"Components of the dataset must be dense tensors, got {name}.",
                    fix="convert elements to a flat tuple or a dict of tensors with dataset.map(…)",
                )
        # Convert only if no value changes. `fitting` refuses the other dtypes.
        pairs = zip(tensors, self._specs, strict=False)
        cast = [tf.cast(t, s.dtype) if _holds(s.dtype, t.dtype) else t for t, s in pairs]
        return fitting(cast + tensors[len(cast) :], self._specs, "The dataset")

    def reserve(self, steps: int, poll: Callable[[], None]) -> int:
        wanted = min(steps * self._replicas, _MOST_BATCHES)
        # The thread may still run after an interrupted reservation or a slow save.
        self._wait(poll)
        missing = wanted - self._ready()
        if missing > 0 and not (self._ended or self._error):
            self._begin(least=self._replicas - self._ready(), most=missing)
            self._wait(poll)
        if self._ready() >= self._replicas:
            return min(steps, self._ready() // self._replicas)
        if self._error is not None:
            raise self._error
        return 0

    def _ready(self) -> int:
        return self._moved - self._consumed

    def get(self, step: tf.Tensor | tf.Variable) -> list[tf.Tensor]:
        return dequeued(self._queue, self._specs)

    def consumed(self, steps: int) -> None:
        self._consumed += steps * self._replicas
        self._anchor()

    def state(self) -> Any:
        if not self._resumable:
            return None
        if self._idle(0) and self._iterator is not None and self._moved == self._consumed:
            # Saving also hangs if the dataset hangs, so wait only for a limited time.
            self._begin(save=True)
            self._idle(_SAVE_S)
        anchor = self._anchor()
        return {"iterator": anchor.iterator, "skip": self._consumed - anchor.position}

    def _anchor(self) -> _Anchor:
        """Return the latest anchor before the current position, and drop earlier anchors."""
        while len(self._anchors) > 1 and self._anchors[1].position <= self._consumed:
            self._anchors.popleft()
        return self._anchors[0]

    def read_again(self, steps: int) -> list[np.ndarray] | None:
        if not self._resumable:
            return None
        anchor = self._anchors[0]
        skipped = self._consumed - anchor.position + steps * self._replicas
        return self._read(anchor.iterator, skipped)

    def read_step(self, state: Any, steps: int) -> tuple[list[np.ndarray], Origins] | None:
        if not self._resumable:
            return None
        start = state or {"iterator": self._beginning, "skip": 0}
        skipped = start["skip"] + steps * self._replicas
        return self._read(start["iterator"], skipped), [[] for _ in range(self._replicas)]

    def _read(self, saved: bytes, skipped: int) -> list[np.ndarray]:
        iterator = iter(self._dataset)
        _restore(iterator, saved)
        for _ in range(skipped):
            next(iterator)
        batches = [self._batch(next(iterator)) for _ in range(self._replicas)]
        return [tensor.numpy() for batch in batches for tensor in batch]

    def stop(self) -> None:
        if not self._idle(_JOIN_S):
            # The thread is a daemon: it cannot keep the process alive.
            text = "The dataset did not return within %g s of the end of training: %s"
            _LOG.warning(text, _JOIN_S, self._source)
            self._iterator = None
        elif self._iterator is not None:
            destroyer = _destroyer(self._iterator)
            self._iterator = None
            destroyer.start()

    def __len__(self) -> int:
        number = int(self._source.cardinality())
        return super().__len__() if number < 0 else number

    def _begin(self, *, save: bool = False, least: int = 0, most: int = 0) -> None:
        self._thread = threading.Thread(
            target=self._work, args=(save, least, most), name="towerpack-dataset", daemon=True
        )
        self._thread.start()

    def _idle(self, timeout_s: float) -> bool:
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                return False
            self._thread = None
        return True

    def _wait(self, poll: Callable[[], None]) -> None:
        while not self._idle(_POLL_S):
            poll()

    def _work(self, save: bool, least: int, most: int) -> None:
        try:
            while self._moved < self._consumed:
                next(self._iterator)
                self._moved += 1
            if self._resumable and (save or time.monotonic() >= self._next_anchor):
                self._save()
            if most > 0:
                self._fill(least, most)
        except (StopIteration, tf.errors.OutOfRangeError):
            self._ended = True
            if self._infinite:
                self._error = DataFlowError(
                    "The dataset to repeat must not be empty.", pipeline=str(self._source)
                )
        except Exception as error:  # noqa: BLE001 - raised by `reserve`
            self._error = DataFlowError(
                f"The dataset failed after batch {self._moved}: {type(error).__name__}.",
                got=getattr(error, "message", str(error)),
                pipeline=str(self._source),
            )
            self._error.__cause__ = error

    def _fill(self, least: int, most: int) -> None:
        before = int(self._queue.size())
        try:
            self._move(self._iterator, tf.constant(least), tf.constant(most))
        finally:
            # Also count the batches that were moved before a failure.
            self._moved += int(self._queue.size()) - before

    def _save(self) -> None:
        began = time.monotonic()
        if self._anchors[-1].position < self._moved:
            self._anchors.append(_Anchor(self._moved, _saved(self._iterator)))
        now = time.monotonic()
        self._next_anchor = now + max(_ANCHOR_S, (now - began) / _ANCHOR_SHARE)


def _holds(wide: tf.DType, narrow: tf.DType) -> bool:
    """Return whether a dtype can hold every value of another."""
    return (
        wide.is_numpy_compatible
        and tf.string not in (wide, narrow)
        and np.can_cast(narrow.as_numpy_dtype, wide.as_numpy_dtype, "safe")
    )


def _draws_seeds(dataset: Any) -> bool:
    """Return whether a shuffle has no seed, so that no position determines its next order.

    TensorFlow itself rejects such shuffles inside the functions of a dataset.
    """
    seeds = [getattr(dataset, name, None) for name in ("_seed", "_seed2")]
    return seeds == [0, 0] or any(map(_draws_seeds, dataset._inputs()))


def _destroyer(iterator: Any) -> threading.Thread:
    """Create a thread that destroys an iterator. Delete other references before it starts.

    Destroying one iterator in 20 takes up to a minute, until its autotuner (`Model::OptimizeLoop`)
    wakes up again. If Python destroyed the iterator, it would hold the GIL during that time.
    """
    name = f"towerpack-iterator-{uuid.uuid4()}"

    def destroy() -> None:
        with tf.device("CPU:0"):
            tf.raw_ops.StageClear(dtypes=[tf.resource], shared_name=name)

    with tf.device("CPU:0"):
        handles = tf.nest.flatten(iterator, expand_composites=True)
        tf.raw_ops.Stage(values=handles, shared_name=name)
    return threading.Thread(target=destroy, name="towerpack-iterator", daemon=True)


def _saved(iterator: Any) -> bytes:
    """Return the state of an iterator. `tf.train.Checkpoint` can save iterators only to files."""
    handle, refuse = iterator._iterator_resource, 2
    state = tf.raw_ops.SerializeIterator(resource_handle=handle, external_state_policy=refuse)
    return tf.io.serialize_tensor(state).numpy()


def _restore(iterator: Any, saved: bytes) -> None:
    state = tf.io.parse_tensor(saved, tf.variant)
    tf.raw_ops.DeserializeIterator(resource_handle=iterator._iterator_resource, serialized=state)
