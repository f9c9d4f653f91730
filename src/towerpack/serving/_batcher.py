"""Dynamic batching: calls of many requests, computed together."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from towerpack._core.errors import RequestError
from towerpack._core.logs import get_logger
from towerpack.serving._protocol import Call

Outputs = dict[str, np.ndarray]
# What runtimes raise for values that a model cannot take: TensorFlow, ONNX Runtime, the others.
_BAD_VALUES = {"InvalidArgumentError", "InvalidArgument", "ValueError"}
_NODES = re.compile(r"\{\{.*?\}\} ?|\[\[.*?\]\]|\[Op:.*", re.DOTALL)


class _Waiting(NamedTuple):
    call: Call
    key: object  # calls with equal ones can be computed together
    answer: asyncio.Future[Outputs | Exception]


class Batcher:
    """Compute together what waits: a queue, one task, one thread.

    Nothing waits for company. While the thread computes, calls gather, and are taken next: under
    load batches fill, and a lone call is computed at once. `observe` is told the rows of each.
    """

    def __init__(self, most: int, max_waiting: int, observe: Callable[[int], object]) -> None:
        self._most, self._max_waiting, self._observe = most, max_waiting, observe
        self.waiting: list[_Waiting] = []
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="towerpack-model")
        self._task: asyncio.Task[None] | None = None

    async def run(self, call: Call) -> Outputs:
        """Compute a call, with others that go with it; one of many rows by parts, between others.

        Raises:
            RequestError: Too many wait, or the model refuses the call.
        """
        if len(self.waiting) >= self._max_waiting:
            raise RequestError("Too many requests wait for the model.", status=429)
        if call.rows <= self._most:
            return await self._answer(call)
        parts: list[Outputs] = []
        for at in range(0, call.rows, self._most):
            part = {name: array[at : at + self._most] for name, array in call.inputs.items()}
            rows = min(self._most, call.rows - at)
            parts.append(await self._answer(call._replace(inputs=part, rows=rows)))
        return _joined(parts)

    async def _answer(self, call: Call) -> Outputs:
        shapes = [(name, a.dtype, a.shape[1:]) for name, a in call.inputs.items()]
        key = (id(call.model), call.signature, shapes) if call.rows else object()
        job = _Waiting(call, key, asyncio.get_running_loop().create_future())
        self.waiting.append(job)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())
        outputs = await job.answer
        if isinstance(outputs, Exception):
            raise outputs
        return outputs

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self.waiting:
            jobs = self._take()
            calls = [job.call for job in jobs]
            self._observe(sum(call.rows for call in calls) or 1)
            found = await loop.run_in_executor(self.thread, _compute, calls)
            for job, outputs in zip(jobs, found, strict=True):
                if not job.answer.done():  # cancelled
                    job.answer.set_result(outputs)

    def _take(self) -> list[_Waiting]:
        """The first call and those behind it that go with it; the others keep their order."""
        jobs, others, rows = list[_Waiting](), list[_Waiting](), 0
        for job in self.waiting:
            fits = not jobs or (job.key == jobs[0].key and rows + job.call.rows <= self._most)
            (jobs if fits else others).append(job)
            rows += job.call.rows * fits
        self.waiting = others
        return jobs


def _compute(calls: Sequence[Call]) -> list[Outputs | Exception]:
    """The outputs of each call. Where a batch fails, its halves are tried, down to the bad call."""
    try:
        return [*_together(calls)]
    except Exception as error:  # noqa: BLE001 - becomes the answer of the call that caused it
        if len(calls) == 1:
            return [_explained(error)]
        half = len(calls) // 2
        return _compute(calls[:half]) + _compute(calls[half:])


def _together(calls: Sequence[Call]) -> list[Outputs]:
    model, signature = calls[0].model, calls[0].signature
    inputs = _joined([call.inputs for call in calls])
    rows = sum(call.rows for call in calls)
    if not rows:
        return [model.run(inputs, signature)]
    outputs = model.run(inputs, signature)
    if len(calls) == 1:
        return [outputs]
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
    if any(kind.__name__ in _BAD_VALUES for kind in type(error).__mro__):
        text = " ".join(_NODES.sub("", str(error)).split())
        return RequestError(f"The model refused the values: {text}")
    get_logger(__name__).error("the model failed", exc_info=error)
    return RequestError(f"The model failed: {type(error).__name__}.", status=500)
