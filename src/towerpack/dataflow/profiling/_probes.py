"""A copy of a pipeline whose every stage measures how long it is at work.

What a stage compiles to or opens is changed in place to a subclass of its own class, in which the
methods that give datapoints are timed, so that `isinstance` still holds. Times are written to
mapped files, one for every thread of every process: no engine carries them, and they outlive it.
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
_GIVERS = ("read", "get", "__next__", "__call__")  # of nodes, streams, and functions of stages
_MOST_FLOWS = 1000  # a longer list is data

DATAPOINTS, SECONDS, CPU_SECONDS = range(3)
FIELDS = 3

Tables = dict[str, NDArray[np.float64]]
"""For each thread, named `process-thread-name`, its numbers: [stages, FIELDS]."""


class Timers(threading.local):
    """Tables of `stages` stages, one per thread; time is charged to the innermost stage at work."""

    def __init__(self, directory: str, stages: int) -> None:
        self._arguments = directory, stages
        self._process = os.getpid()
        self._stack: list[int] = []
        self._clocks = 0.0, 0.0, 0
        size = stages * FIELDS * 8
        try:
            # Not "w": a worker that is sent its job again goes on in the table that it has.
            with open(os.path.join(directory, name_of_thread()), "a+b") as file:
                file.truncate(size)
                memory = mmap(file.fileno(), size)
        except FileNotFoundError:  # the measurement is over, and a worker is still at work
            memory = mmap(-1, size)
        self._table = memoryview(memory).cast("d")

    def __reduce__(self) -> Any:
        return Timers, self._arguments

    def enter(self, stage: int) -> None:
        if self._process != os.getpid():  # a fork would write to its parent's table
            self.__init__(*self._arguments)
        self._charge()
        self._stack.append(stage)

    def leave(self, datapoints: int) -> None:
        """Count what the innermost stage gave, and charge the one around it from now on."""
        self._charge()
        stage = self._stack.pop()
        if stage not in self._stack[-1:]:  # else it called itself
            self._table[stage * FIELDS + DATAPOINTS] += datapoints

    def read(self) -> Tables:
        tables = {path.name: np.fromfile(path) for path in Path(self._arguments[0]).iterdir()}
        # Between its making and `truncate`, a file is empty.
        return {name: one.reshape(-1, FIELDS) for name, one in tables.items() if one.size}

    def _charge(self) -> None:
        now, cpu, waits = clocks = perf_counter(), thread_time(), _count_waits()
        if self._stack:
            at, (since, cpu_since, waits_before) = self._stack[-1] * FIELDS, self._clocks
            # Without a wait it computed, although other programs may have had the CPU meanwhile.
            computed = now - since if waits == waits_before > 0 else cpu - cpu_since
            self._table[at + SECONDS] += now - since
            self._table[at + CPU_SECONDS] += computed
        self._clocks = clocks


def _count_waits() -> int:
    """How often this thread gave up its CPU; 0 where that is not known."""
    if sys.platform != "linux":
        return 0
    import resource  # there is none on Windows

    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def name_of_thread() -> str:
    thread = threading.current_thread()
    return f"{os.getpid()}-{thread.ident}-{quote(thread.name, safe='')}"


def probed(ds: DataFlow, directory: str) -> tuple[DataFlow, list[DataFlow], Timers]:
    """A copy of a pipeline that measures itself; the original's flows, sources first; timers."""
    pairs: dict[int, tuple[DataFlow, DataFlow]] = {}
    flow = cloned(ds, pairs)
    timers = Timers(directory, len(pairs))
    for index, (_, clone) in enumerate(pairs.values()):
        if is_exact(clone):
            _watch(clone, (timers, index))
        else:  # of the user's: timed where it gives datapoints
            method = "__getitem__" if has_items(type(clone)) else "__iter__"
            _attach(clone, (timers, index), method)
    return flow, [one for one, _ in pairs.values()], timers


def cloned(flow: DataFlow, pairs: dict[int, tuple[DataFlow, DataFlow]]) -> DataFlow:
    """Copy a pipeline, noting in `pairs` each flow and its copy by identity, sources first."""
    if id(flow) not in pairs:
        if is_exact(flow) and overrides_reset(flow):
            make_ready(flow)  # its functions are methods of the original
        clone = copy(flow)
        pairs[id(flow)] = flow, clone  # now, for flows that hold each other
        for name, value in vars(clone).items():
            flows = cast("list[Any]", value) if type(value) in (list, tuple) else [value]
            if len(flows) <= _MOST_FLOWS and any(isinstance(one, DataFlow) for one in flows):
                new = [cloned(one, pairs) if isinstance(one, DataFlow) else one for one in flows]
                vars(clone)[name] = new[0] if flows[0] is value else type(value)(new)
        pairs[id(flow)] = pairs.pop(id(flow))  # after those that it holds
    return pairs[id(flow)][1]


def _watch(stage: Any, probe: tuple[Timers, int]) -> None:
    """Time what a stage makes, without touching its class, which engines look at."""
    inside: list[bool] = []

    def watched(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*arguments: Any) -> Any:
            inside.append(True)
            try:
                result = make(*arguments)
            finally:
                inside.pop()
            if isinstance(result, ReadAhead):
                _watch(result, probe)
                return result
            # The map of a node is timed with the node, not once more for every datapoint.
            return result if inside else _attach(result, probe, *_GIVERS)

        return made

    for name in filter(lambda name: hasattr(stage, name), _MAKERS):
        setattr(stage, name, watched(getattr(stage, name)))


def _attach(target: Any, probe: tuple[Timers, int], *methods: str) -> Any:
    """Time the methods of an object, unless they are, for a stage further down."""
    if target is not None and not hasattr(target, _PROBE):
        target.__class__ = _timed(cast("type[Any]", type(target)), methods)
        setattr(target, _PROBE, probe)
    return target


@cache
def _timed(cls: type[Any], methods: tuple[str, ...]) -> type[Any]:
    """A subclass that differs in nothing but that it is timed; also its name is the same."""

    def reduce(self: Any, protocol: Any) -> Any:
        # Classes that are made here cannot be found by name in another process.
        bare: Any = object.__new__(cls)
        bare.__dict__.update(self.__dict__)
        return _attach, (bare, bare.__dict__.pop(_PROBE), *methods)

    def timed(method: str) -> Callable[..., Any]:
        function = getattr(cls, method)

        def give(self: Any, *arguments: Any) -> Any:
            count = len(arguments[-1]) if method == "read" else 1
            return _give(getattr(self, _PROBE), count, function, self, *arguments)

        def iterate(self: Any) -> Iterator[Datapoint]:
            following = partial(_give, getattr(self, _PROBE), 1, function(self).__next__)
            with suppress(StopIteration):
                while True:
                    yield following()

        return iterate if method == "__iter__" else give

    found = {method: timed(method) for method in methods if hasattr(cls, method)}
    return alike(cls, {"__reduce_ex__": reduce, **found})


def _give(
    probe: tuple[Timers, int], count: int, function: Callable[..., Any], *arguments: Any
) -> Any:
    """Call what gives `count` datapoints, and charge a stage for it."""
    timers, stage = probe
    given = 0
    timers.enter(stage)
    try:
        result = function(*arguments)
        given = count
        return result
    finally:
        timers.leave(given)
