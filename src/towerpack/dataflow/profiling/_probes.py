"""Copies of pipelines whose stages measure their own time.

The class of a stage's nodes and streams is replaced by a subclass that times the methods which
return datapoints. `isinstance` still works. Each thread of each process writes its times to a
mapped file, which needs no support by engines and remains when the process ends.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import copy
from functools import cache, partial
from mmap import mmap
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any, cast
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from towerpack.dataflow._flow import DataFlow, has_items, is_exact
from towerpack.dataflow._user_code import alike, make_ready, overrides_reset
from towerpack.dataflow.datapoints import Datapoint
from towerpack.dataflow.parallel._compile_for_workers import ReadAhead

_PROBE = "_towerpack_probe"
_MAKERS = ("compile", "open", "workers", "read_ahead", "open_ahead", "node", "mapper")
_GETTERS = ("read", "get", "__next__", "__call__")  # of nodes, streams, and functions of stages
_MOST_FLOWS = 1000  # longer lists contain data, not flows

DATAPOINTS, SECONDS, CPU_SECONDS = range(3)
FIELDS = 3

Tables = dict[str, NDArray[np.float64]]
"""Measurements [stages, FIELDS] by thread, named `process-thread-name`."""


class Timers(threading.local):
    """Thread-local tables of times. Elapsed time counts for the innermost active stage."""

    def __init__(self, directory: str, stages: int) -> None:
        self._arguments = directory, stages
        self._process = os.getpid()
        self._stack: list[int] = []
        self._clocks = 0.0, 0.0, 0
        size = stages * FIELDS * 8
        try:
            # Append mode, because a worker that receives its job again continues its table.
            with open(os.path.join(directory, name_of_thread()), "a+b") as file:
                file.truncate(size)
                memory = mmap(file.fileno(), size)
        except FileNotFoundError:  # the measurement ended while a worker is still busy
            memory = mmap(-1, size)
        self._table = memoryview(memory).cast("d")

    def __reduce__(self) -> Any:
        return Timers, self._arguments

    def enter(self, stage: int) -> None:
        if self._process != os.getpid():  # a forked process must not write to its parent's table
            self.__init__(*self._arguments)
        self._charge()
        self._stack.append(stage)

    def leave(self, datapoints: int) -> None:
        """End the innermost stage, and count the datapoints that the stage returned."""
        self._charge()
        stage = self._stack.pop()
        if stage not in self._stack[-1:]:  # do not count a recursive call
            self._table[stage * FIELDS + DATAPOINTS] += datapoints

    def read(self) -> Tables:
        tables = {path.name: np.fromfile(path) for path in Path(self._arguments[0]).iterdir()}
        # A file is empty until `truncate`.
        return {name: table.reshape(-1, FIELDS) for name, table in tables.items() if table.size}

    def _charge(self) -> None:
        now, cpu, waits = clocks = perf_counter(), thread_time(), _count_waits()
        if self._stack:
            row, (since, cpu_since, waits_before) = self._stack[-1] * FIELDS, self._clocks
            # A thread that did not wait was computing, even if other programs used its CPU.
            computed = now - since if waits == waits_before > 0 else cpu - cpu_since
            self._table[row + SECONDS] += now - since
            self._table[row + CPU_SECONDS] += computed
        self._clocks = clocks


def _count_waits() -> int:
    """Return the number of voluntary context switches of this thread, or 0 if unknown."""
    if sys.platform != "linux":
        return 0
    import resource  # not available on Windows

    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def name_of_thread() -> str:
    thread = threading.current_thread()
    return f"{os.getpid()}-{thread.ident}-{quote(thread.name, safe='')}"


def probed(ds: DataFlow, directory: str) -> tuple[DataFlow, list[DataFlow], Timers]:
    """Return a copy of a pipeline that measures itself, the original flows, and the timers."""
    pairs: dict[int, tuple[DataFlow, DataFlow]] = {}
    flow = cloned(ds, pairs)
    timers = Timers(directory, len(pairs))
    for index, (_, clone) in enumerate(pairs.values()):
        if is_exact(clone):
            _watch(clone, (timers, index))
        else:  # a user's class, whose public methods are timed
            method = "__getitem__" if has_items(type(clone)) else "__iter__"
            _attach(clone, (timers, index), method)
    return flow, [original for original, _ in pairs.values()], timers


def cloned(flow: DataFlow, pairs: dict[int, tuple[DataFlow, DataFlow]]) -> DataFlow:
    """Copy a pipeline. Record each flow and its copy in `pairs`, by the `id` of the flow."""
    if id(flow) not in pairs:
        if is_exact(flow) and overrides_reset(flow):
            make_ready(flow)  # its functions are methods of the original
        clone = copy(flow)
        pairs[id(flow)] = flow, clone  # before the recursion, because flows may contain each other
        for name, value in vars(clone).items():
            items = cast("list[Any]", value) if type(value) in (list, tuple) else [value]
            if len(items) <= _MOST_FLOWS and any(isinstance(item, DataFlow) for item in items):
                new = [cloned(i, pairs) if isinstance(i, DataFlow) else i for i in items]
                vars(clone)[name] = new[0] if items[0] is value else type(value)(new)
        pairs[id(flow)] = pairs.pop(id(flow))  # move it after the flows that it contains
    return pairs[id(flow)][1]


def _watch(stage: Any, probe: tuple[Timers, int]) -> None:
    """Measure the time of nodes and streams that a stage creates. Its class stays the same."""
    inside: list[bool] = []

    def watched(make: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any) -> Any:
            inside.append(True)
            try:
                result = make(*arguments)
            finally:
                inside.pop()
            if isinstance(result, ReadAhead):
                _watch(result, probe)
                return result
            # The function of a map node is part of the time of the node.
            return result if inside else _attach(result, probe, *_GETTERS)

        return wrapper

    for name in filter(lambda name: hasattr(stage, name), _MAKERS):
        setattr(stage, name, watched(getattr(stage, name)))


def _attach(target: Any, probe: tuple[Timers, int], *methods: str) -> Any:
    """Time the methods of an object, unless they are already timed for an earlier stage."""
    if target is not None and not hasattr(target, _PROBE):
        target.__class__ = _timed(cast("type[Any]", type(target)), methods)
        setattr(target, _PROBE, probe)
    return target


@cache
def _timed(cls: type[Any], methods: tuple[str, ...]) -> type[Any]:
    def reduce(self: Any, protocol: Any) -> Any:
        # Another process cannot import the class that is created here by its name.
        bare: Any = object.__new__(cls)
        bare.__dict__.update(self.__dict__)
        return _attach, (bare, bare.__dict__.pop(_PROBE), *methods)

    def timed(method: str) -> Callable[..., Any]:
        function = getattr(cls, method)

        def give(self: Any, *arguments: Any) -> Any:
            count = len(arguments[-1]) if method == "read" else 1
            return _timed_call(getattr(self, _PROBE), count, function, self, *arguments)

        def iterate(self: Any) -> Iterator[Datapoint]:
            following = partial(_timed_call, getattr(self, _PROBE), 1, function(self).__next__)
            with suppress(StopIteration):
                while True:
                    yield following()

        return iterate if method == "__iter__" else give

    timed_methods = {method: timed(method) for method in methods if hasattr(cls, method)}
    return alike(cls, {"__reduce_ex__": reduce, **timed_methods})


def _timed_call(
    probe: tuple[Timers, int], count: int, function: Callable[..., Any], *arguments: Any
) -> Any:
    timers, stage = probe
    returned = 0
    timers.enter(stage)
    try:
        result = function(*arguments)
        returned = count
        return result
    finally:
        timers.leave(returned)
