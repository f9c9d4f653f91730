from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import numpy as np

from towerpack._core.batching import Request, compute_in_halves, take
from towerpack._core.errors import RequestError, reason_of
from towerpack._core.logs import get_logger
from towerpack.serving._protocol import Call

Outputs = dict[str, np.ndarray]
# Errors that TensorFlow, ONNX Runtime and other runtimes raise for unsuitable input values.
_BAD_VALUES = {"InvalidArgumentError", "InvalidArgument", "ValueError"}


class Batcher:
    """Queue of model calls. One thread computes them in batches.

    Calls that arrive while a batch is computed form the next batch. `observe` gets the number of
    rows of each batch.
    """

    def __init__(self, most: int, max_waiting: int, observe: Callable[[int], object]) -> None:
        self._most, self._max_waiting, self._observe = most, max_waiting, observe
        self.waiting: list[Request[Call, asyncio.Future[Outputs | Exception]]] = []
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="towerpack-model")
        self._task: asyncio.Task[None] | None = None

    async def run(self, call: Call, has_gone: Callable[[], Awaitable[bool]]) -> Outputs:
        """Compute a call. Calls with many rows are split, so that other calls need not wait.

        `has_gone` tells whether the client has disconnected. Further parts are then not computed.
        """
        if len(self.waiting) >= self._max_waiting:
            raise RequestError("Too many requests wait for the model.", status=429)
        if call.rows < 2:
            return await self._answer(call)
        good: list[Outputs] = []
        failures: list[RequestError] = []  # only of one part, because each keeps arrays alive
        messages: list[str | None] = []
        for part in _cut(call, self._most):
            if await has_gone():
                raise RequestError("The client has disconnected.", status=408)
            answers = await self._answers(part)
            texts = [str(each) if isinstance(each, RequestError) else None for each in answers]
            messages += texts if len(texts) == part.rows else texts * part.rows
            good += [each for each in answers if not isinstance(each, RequestError)]
            failures = failures or [each for each in answers if isinstance(each, RequestError)]
        if len(good) == 1 and not failures:
            return good[0]
        # In a thread, because a call with many rejected rows has as many outputs with one row.
        return await asyncio.to_thread(_join_parts, call, good, failures, messages)

    async def _answers(self, call: Call) -> list[Outputs | RequestError]:
        """Compute a call. If a call in row format fails, return outputs or an error of each row."""
        try:
            return [await self._answer(call)]
        except RequestError as error:
            if not call.by_row or error.status != 400:
                raise
        rows = [self._answer(row) for row in _cut(call, 1)]
        answers = await asyncio.gather(*rows, return_exceptions=True)
        for each in answers:
            if isinstance(each, BaseException) and not isinstance(each, RequestError):
                raise each
        return cast("list[Outputs | RequestError]", answers)

    async def _answer(self, call: Call) -> Outputs:
        shapes = [(name, a.dtype, a.shape[1:]) for name, a in call.inputs.items()]
        key = (id(call.model), call.signature, shapes) if call.rows else object()
        job = Request(call, key, call.rows, asyncio.get_running_loop().create_future())
        self.waiting.append(job)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())
        outputs = await job.answer
        if isinstance(outputs, Exception):
            raise _explained(outputs) from outputs
        return outputs

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self.waiting:
            jobs = take(self.waiting, self._most)
            calls = [job.call for job in jobs]
            self._observe(sum(call.rows for call in calls) or 1)
            results = await loop.run_in_executor(self.thread, compute_in_halves, _together, calls)
            for job, outputs in zip(jobs, results, strict=True):
                if not job.answer.done():  # cancelled
                    job.answer.set_result(outputs)


def _cut(call: Call, most: int) -> Iterator[Call]:
    for start in range(0, call.rows, most):
        part = {name: array[start : start + most] for name, array in call.inputs.items()}
        yield call._replace(inputs=part, rows=min(most, call.rows - start))


def _join_parts(
    call: Call, good: list[Outputs], failures: list[RequestError], messages: list[str | None]
) -> Outputs:
    """Join the outputs of all parts. Write error messages of rows into `call.errors`."""
    if len({tuple(a.shape[1:] for a in outputs.values()) for outputs in good}) != 1:
        # No row has outputs, or their outputs cannot be joined.
        raise next(iter(failures), RequestError("The rows have outputs of different shapes."))
    errors = iter(messages)
    call.errors[:] = [next(errors) if text is None else text for text in call.errors]
    return _joined(good)


def _together(calls: Sequence[Call]) -> list[Outputs]:
    model, signature = calls[0].model, calls[0].signature
    inputs = _joined([call.inputs for call in calls])
    outputs = model.run(inputs, signature)
    if len(calls) == 1:
        return [outputs]
    rows = sum(call.rows for call in calls)
    if {len(array) for array in outputs.values()} != {rows}:
        # The caller then computes each call alone.
        raise RuntimeError("The outputs must have as many rows as the inputs.")
    ends = np.cumsum([call.rows for call in calls]).tolist()
    slices = [slice(e - call.rows, e) for call, e in zip(calls, ends, strict=True)]
    return [{name: array[part] for name, array in outputs.items()} for part in slices]


def _joined(parts: Sequence[Outputs]) -> Outputs:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _explained(error: Exception) -> RequestError:
    bad = any(kind.__name__ in _BAD_VALUES for kind in type(error).__mro__)
    if not bad:
        get_logger(__name__).error("the model failed", exc_info=error)
    error.__traceback__ = None  # the traceback would keep all arrays of the computation alive
    if bad:
        return RequestError(f"The model refused the values: {reason_of(error)}")
    return RequestError(f"The model failed: {type(error).__name__}.", status=500)
