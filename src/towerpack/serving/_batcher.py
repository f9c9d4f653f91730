"""Dynamic batching: calls of many requests, computed together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import numpy as np

from towerpack._core.batching import Request, compute_in_halves, take
from towerpack._core.errors import RequestError, reason_of
from towerpack._core.logs import get_logger
from towerpack.serving._protocol import Call

Outputs = dict[str, np.ndarray]
# What runtimes raise for values that a model cannot take: TensorFlow, ONNX Runtime, the others.
_BAD_VALUES = {"InvalidArgumentError", "InvalidArgument", "ValueError"}


class Batcher:
    """Compute together what waits: a queue, one task, one thread.

    Nothing waits for company. While the thread computes, calls gather, and are taken next: under
    load batches fill, and a lone call is computed at once. `observe` is told the rows of each.
    """

    def __init__(self, most: int, max_waiting: int, observe: Callable[[int], object]) -> None:
        self._most, self._max_waiting, self._observe = most, max_waiting, observe
        self.waiting: list[Request[Call, asyncio.Future[Outputs | Exception]]] = []
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="towerpack-model")
        self._task: asyncio.Task[None] | None = None

    async def run(self, call: Call) -> Outputs:
        """Compute a call, with others that go with it; one of many rows by parts, between others.

        Raises:
            RequestError: Too many wait, or the model refuses the call.
        """
        if len(self.waiting) >= self._max_waiting:
            raise RequestError("Too many requests wait for the model.", status=429)
        if call.rows < 2:
            return await self._answer(call)
        good: list[Outputs] = []
        refused: list[RequestError] = []  # of one part: each holds its computation
        bad: list[str | None] = []
        for part in _cut(call, self._most):
            answers = await self._answers(part)
            told = [str(one) if isinstance(one, RequestError) else None for one in answers]
            bad += told if len(told) == part.rows else told * part.rows
            good += [one for one in answers if not isinstance(one, RequestError)]
            refused = refused or [one for one in answers if isinstance(one, RequestError)]
        if len({tuple(a.shape[1:] for a in outputs.values()) for outputs in good}) != 1:
            # No row is good, or their outputs cannot be joined.
            refused.append(RequestError("The rows have outputs of different shapes."))
            raise refused[0]
        errors = iter(bad)
        call.errors[:] = [next(errors) if told is None else told for told in call.errors]
        return _joined(good)

    async def _answers(self, call: Call) -> list[Outputs | RequestError]:
        """Outputs of a call. If it is asked by row and fails, outputs or errors of each row."""
        try:
            return [await self._answer(call)]
        except RequestError as error:
            if not call.by_row or error.status != 400:
                raise
        rows = [self._answer(row) for row in _cut(call, 1)]
        found = await asyncio.gather(*rows, return_exceptions=True)
        for one in found:
            if isinstance(one, BaseException) and not isinstance(one, RequestError):
                raise one
        return cast("list[Outputs | RequestError]", found)

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
            found = await loop.run_in_executor(self.thread, compute_in_halves, _together, calls)
            for job, outputs in zip(jobs, found, strict=True):
                if not job.answer.done():  # cancelled
                    job.answer.set_result(outputs)


def _cut(call: Call, most: int) -> Iterator[Call]:
    """Parts of a call, of at most so many rows."""
    for at in range(0, call.rows, most):
        part = {name: array[at : at + most] for name, array in call.inputs.items()}
        yield call._replace(inputs=part, rows=min(most, call.rows - at))


def _together(calls: Sequence[Call]) -> list[Outputs]:
    model, signature = calls[0].model, calls[0].signature
    inputs = _joined([call.inputs for call in calls])
    outputs = model.run(inputs, signature)
    if len(calls) == 1:
        return [outputs]
    rows = sum(call.rows for call in calls)
    if {len(array) for array in outputs.values()} != {rows}:
        raise RuntimeError("Rows of outputs are not those of inputs: each call is tried alone.")
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
    error.__traceback__ = None  # It would hold all frames of the computation.
    if bad:
        return RequestError(f"The model refused the values: {reason_of(error)}")
    return RequestError(f"The model failed: {type(error).__name__}.", status=500)
