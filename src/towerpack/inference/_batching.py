"""Prediction for many threads: what is asked for at the same time is computed together."""

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
    """Predict single datapoints, for any number of threads, in batches.

        with BatchingPredictor(predictor, max_batch=32) as predict:
            future = predict.submit(image)      # from any thread; without the batch's dimension
            prob = future.result()

    Nothing waits for company: while a batch is computed, requests gather, and are the next one. A
    lone request is computed at once. Batches are filled up with copies of their last datapoint to
    one of a few sizes, so that TensorFlow sees only these.

    Args:
        predictor: What computes; each input and output has a row for each datapoint.
        max_batch: The largest batch.
        sizes: Of batches; None for 1, 2, 4, … and `max_batch`.
        latency_s: How long a request may take: sizes are left out that have been seen to take more
            than half of it, since a request waits for the batch before its own. Under a load that
            the device does not master, requests take longer all the same.
        max_waiting: How many requests may wait; `submit` blocks where there are more.
        devices: Names of devices, each of which gets a thread and a copy of the weights; none for
            the predictor's own.
        example: One datapoint's inputs, with which every size is computed before the first request;
            () for zeros, None to do without.

    Raises:
        ConfigError: An input has no dimension for batches, or sizes make no sense.
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
                f"BatchingPredictor(max_batch={max_batch}, sizes={sizes}, "
                f"max_waiting={max_waiting}).",
                expected="at least 1 each",
            )
        for spec in predictor.specs:
            if spec.shape.rank is not None and spec.shape.as_list()[:1] != [None]:
                raise ConfigError(
                    f"The input '{spec.name}' has no open first dimension for batches.",
                    got=f"{spec.dtype.name} {spec.shape}",
                    fix="tf.TensorSpec([None, …], …) in the model's inputs()",
                )
        self._first = predictor
        self._latency_s, self._max_waiting = latency_s, max_waiting
        self._seconds: dict[int, tuple[int, float]] = {}  # by size: how often seen, the least
        self._waiting: list[Request[list[np.ndarray], Future[Any]]] = []
        self._changed = threading.Condition()
        self._closed = False
        predictors = [predictor.on(device) for device in devices] or [predictor]
        if example is not None:
            for each in predictors:
                for size, seconds in each.warm_up(*example, sizes=self.sizes).items():
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
        """Ask for a prediction; the future gives what the predictor gives, without batches.

        Args:
            *arrays: One datapoint's inputs, in order.
            **named: Or by name.

        Raises:
            ConfigError: It has been closed. Any other error is in the future.
        """
        future: Future[Any] = Future()
        try:
            batch = self._first.checked(
                [_one_row(array) for array in arrays],
                {name: _one_row(array) for name, array in named.items()},
            )
        except SpecError as error:
            error.add_note("Shapes are with the dimension of batches, which is added here.")
            future.set_exception(error)
            return future
        shapes = [array.shape for array in batch]
        request = Request([array[0] for array in batch], shapes, 1, future)
        with self._changed:
            while len(self._waiting) >= self._max_waiting and not self._closed:
                self._changed.wait()
            if self._closed:
                raise ConfigError("This BatchingPredictor has been closed.")
            self._waiting.append(request)
            self._changed.notify()
        return future

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """Predict one datapoint, and wait for it.

        Raises:
            SpecError: Something is missing, or has the wrong dtype or shape.
        """
        return self.submit(*arrays, **named).result()

    def close(self) -> None:
        """Compute what was submitted, and take no more. Twice is harmless."""
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
        """The requests of the next batch; None once all is done."""
        with self._changed:
            while not self._waiting:
                if self._closed:
                    return None
                self._changed.wait()
        self._let_others_submit()
        with self._changed:
            taken = take(self._waiting, self._most())
            self._changed.notify_all()
        return taken

    def _let_others_submit(self) -> None:
        """Give way to threads that are ready to submit, for as long as each time one does.

        Those whose futures have just been set are: without this, the first of them would be
        computed alone, and every second batch be one of 1.
        """
        before = 0
        while before < len(self._waiting) < self.sizes[-1]:
            before = len(self._waiting)
            time.sleep(0)

    def _most(self) -> int:
        """The largest size that keeps to the latency, as far as is known."""
        limit = np.inf if self._latency_s is None else self._latency_s / 2
        seen = self._seconds.items()
        slow = {size for size, (times, least) in seen if times >= _TRIES and least > limit}
        return max((size for size in self.sizes if size not in slow), default=self.sizes[0])

    def _columns(self, predictor: Predictor, rows: list[list[np.ndarray]]) -> list[np.ndarray]:
        size = next(size for size in self.sizes if size >= len(rows))
        rows = rows + rows[-1:] * (size - len(rows))
        began = time.perf_counter()
        columns = predictor.compute([np.stack(column) for column in zip(*rows, strict=True)])
        times, least = self._seconds.get(size, (0, np.inf))
        self._seconds[size] = times + 1, min(least, time.perf_counter() - began)
        for name, column in zip(predictor.output_names, columns, strict=True):
            if column.ndim == 0 or len(column) != size:
                raise SpecError(
                    f"The output '{name}' does not give one row for each datapoint.",
                    got=f"{column.dtype.name} {list(column.shape)} for {size} rows",
                    fix="ask for outputs with the dimension of batches",
                )
        return columns


def _one_row(value: Any) -> Any:
    return value[None] if isinstance(value, np.ndarray) else [value]
