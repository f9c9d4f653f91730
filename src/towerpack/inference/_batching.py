from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Final

import numpy as np

from towerpack._core.batching import Request, compute_in_halves, take
from towerpack._core.errors import ConfigError, SpecError
from towerpack.inference.predictor import Predictor

_TRIES: Final = 3


class BatchingPredictor(AbstractContextManager["BatchingPredictor"]):
    """Predictor that combines single examples from many threads into batches.

        with BatchingPredictor(predictor, max_batch=32) as predict:
            future = predict.submit(image)      # from any thread; without the batch dimension
            prob = future.result()

    Requests that arrive while a batch is computed form the next batch. Batches are padded with
    copies of the last example to one of a few sizes, so that TensorFlow compiles few shapes.

    Args:
        predictor: Predictor whose inputs and outputs have a batch dimension.
        max_batch: Maximum batch size.
        sizes: Allowed batch sizes. None for 1, 2, 4, … and `max_batch`.
        latency_s: Target for the duration of a request, in seconds. Batch sizes that take longer
            than half of the target are avoided, because a request also waits for the previous
            batch. Requests to an overloaded device take longer.
        max_waiting: Number of requests that may wait. `submit` blocks if there are more.
        devices: Names of devices, each of which gets a thread and a copy of the weights. If empty,
            the predictor's own device is used.
        example: Inputs of one example, to compute each batch size once before the first request.
            () uses zeros, None skips this.

    Raises:
        ConfigError: An input has no batch dimension, or a size is less than 1.
    """

    def __init__(
        self,
        predictor: Predictor,
        *,
        max_batch: int = 32,
        sizes: Sequence[int] | None = None,
        latency_s: float | None = None,
        max_waiting: int = 1024,
        devices: Sequence[str] = (),
        example: Sequence[Any] | None = None,
    ) -> None:
        doubled = [2**n for n in range(max(0, max_batch - 1).bit_length())]
        self.sizes = sorted({*doubled, max_batch} if sizes is None else sizes)
        if not self.sizes or self.sizes[0] < 1 or max_waiting < 1:
            raise ConfigError(
                "The arguments max_batch, sizes and max_waiting must be at least 1, got "
                f"{max_batch}, {sizes} and {max_waiting}."
            )
        for spec in predictor.specs:
            if spec.shape.rank is not None and spec.shape.as_list()[:1] != [None]:
                raise ConfigError(
                    f"The first dimension of the input '{spec.name}' must be None, for batches.",
                    got=f"{spec.dtype.name} {spec.shape}",
                    fix="return tf.TensorSpec([None, …], …) from the model's inputs()",
                )
        self._first = predictor
        self._latency_s, self._max_waiting = latency_s, max_waiting
        # Number of measurements, and shortest duration in seconds, of each batch size.
        self._seconds: dict[int, tuple[int, float]] = {}
        self._waiting: list[Request[list[np.ndarray], Future[Any]]] = []
        self._changed = threading.Condition()
        self._closed = False
        predictors = [predictor.on(device) for device in devices] or [predictor]
        if example is not None:
            for warmed in predictors:
                for size, seconds in warmed.warm_up(*example, sizes=self.sizes).items():
                    self._seconds[size] = (_TRIES, seconds)
        self._threads = [
            threading.Thread(
                target=self._work, args=[p], name=f"towerpack-batches-{i}", daemon=True
            )
            for i, p in enumerate(predictors)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, *arrays: Any, **named: Any) -> Future[Any]:
        """Submit one example. Return a future of the outputs, without a batch dimension.

        Args:
            *arrays: Inputs of one example, in order.
            **named: Inputs by name.

        Raises:
            ConfigError: The predictor is closed. All other errors are raised by the future.
        """
        future: Future[Any] = Future()
        try:
            batch = self._first.checked(
                [_one_row(array) for array in arrays],
                {name: _one_row(array) for name, array in named.items()},
            )
        except SpecError as error:
            error.add_note("The shapes include the batch dimension that BatchingPredictor adds.")
            future.set_exception(error)
            return future
        shapes = [array.shape for array in batch]
        request = Request([array[0] for array in batch], shapes, 1, future)
        with self._changed:
            while len(self._waiting) >= self._max_waiting and not self._closed:
                self._changed.wait()
            if self._closed:
                raise ConfigError("BatchingPredictor must not be called after close().")
            self._waiting.append(request)
            self._changed.notify()
        return future

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """Compute the outputs of one example, and wait for the result.

        Args:
            *arrays: Inputs of the example, in order.
            **named: Inputs by name.

        Raises:
            SpecError: An input is missing, or has the wrong dtype or shape.
        """
        return self.submit(*arrays, **named).result()

    def close(self) -> None:
        """Compute the waiting requests, and reject new requests. May be called again."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self, predictor: Predictor) -> None:
        def compute(rows: Sequence[list[np.ndarray]]) -> list[Any]:
            columns = self._columns(predictor, list(rows))
            if predictor.single:
                return list(columns[0][: len(rows)])
            return [[column[i] for column in columns] for i in range(len(rows))]

        while (requests := self._take()) is not None:
            live = [r for r in requests if r.answer.set_running_or_notify_cancel()]
            answers = compute_in_halves(compute, [r.call for r in live]) if live else []
            for request, answer in zip(live, answers, strict=True):
                if isinstance(answer, Exception):
                    request.answer.set_exception(answer)
                else:
                    request.answer.set_result(answer)

    def _take(self) -> list[Request[list[np.ndarray], Future[Any]]] | None:
        """Wait for requests. Return the requests of the next batch, or None after `close`."""
        with self._changed:
            while not self._waiting:
                if self._closed:
                    return None
                self._changed.wait()
        # Let threads submit requests after their futures were set. Otherwise the first request
        # would be computed alone, and every second batch would have size 1.
        before = 0
        while before < len(self._waiting) < self.sizes[-1]:
            before = len(self._waiting)
            time.sleep(0)
        with self._changed:
            requests = take(self._waiting, self._largest_size())
            self._changed.notify_all()
        return requests

    def _largest_size(self) -> int:
        """Return the largest batch size that meets the latency target, as far as measured."""
        limit = np.inf if self._latency_s is None else self._latency_s / 2
        seen = self._seconds.items()
        slow = {size for size, (times, least) in seen if times >= _TRIES and least > limit}
        return max((size for size in self.sizes if size not in slow), default=self.sizes[0])

    def _columns(self, predictor: Predictor, rows: list[list[np.ndarray]]) -> list[np.ndarray]:
        size = next(size for size in self.sizes if size >= len(rows))
        rows = rows + rows[-1:] * (size - len(rows))
        began = time.perf_counter()
        columns = predictor.compute_rows([np.stack(column) for column in zip(*rows, strict=True)])
        times, least = self._seconds.get(size, (0, np.inf))
        self._seconds[size] = times + 1, min(least, time.perf_counter() - began)
        return columns


def _one_row(value: Any) -> Any:
    return value[None] if isinstance(value, np.ndarray) else [value]
