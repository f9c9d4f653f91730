"""Support for user-defined flows: seeds of their passes, and calls of `reset_state`.

`for dp in self.ds` in a user's `__iter__` has no arguments for seed and epoch. Both come from the
context variable `AMBIENT`, which holds the pass of the generator that is running.

Flows written for Tensorpack open or read their files in `reset_state`, which the caller had to
call. `prepare_on_use` makes the methods of such a class call `reset_state` first.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from functools import wraps
from types import FunctionType
from typing import Any, TypeVar, cast

import numpy as np

from towerpack._core.errors import DataFlowError, TowerpackError
from towerpack._core.randomness import derive_seed, stream
from towerpack.dataflow._iteration_state import State, Stream, check_count, ended_early
from towerpack.dataflow._plan import InnerNode, Node
from towerpack.dataflow.datapoints import Block, Datapoint, Positions, duplicate

T = TypeVar("T")
AGAIN = 1 << 32
"""A flow that is iterated again within one pass of its wrapper is in epoch e + AGAIN, then in
e + 2 * AGAIN. `divmod(epoch, AGAIN)` returns both numbers."""

_LIBRARY = __name__.partition(".")[0]
_WITHIN = 1 << 30  # offset of passes within repeated passes


class Ambient:
    """Running pass of a user-defined flow: seed, epoch and the passes that it starts itself."""

    def __init__(self, seed: int, epoch: int) -> None:
        self.seed = seed
        self.epoch = epoch
        # Holds the objects, so that their ids stay unique.
        self._known: dict[int, tuple[object, int]] = {}
        self._passes = Counter[int]()
        self._generators: dict[int, np.random.Generator] = {}

    def next_pass(self, flow: object) -> tuple[int, int]:
        """Return seed and epoch for the next pass that user code starts over an inner flow."""
        index = self._index(flow)
        again = self._passes[index]
        self._passes[index] += 1
        outer_again, number = divmod(self.epoch, AGAIN)
        if outer_again:
            # With a sum, pass 2 within pass 1 would equal pass 1 within pass 2.
            again = _WITHIN + derive_seed(outer_again, again) % _WITHIN
        return derive_seed(self.seed, "inside", index), number + again * AGAIN

    def generator(self, flow: object) -> np.random.Generator:
        index = self._index(flow)
        if index not in self._generators:
            self._generators[index] = stream(self.seed, "rng", index, self.epoch)
        return self._generators[index]

    def _index(self, flow: object) -> int:
        return self._known.setdefault(id(flow), (flow, len(self._known)))[1]


AMBIENT: ContextVar[Ambient | None] = ContextVar("towerpack_dataflow_pass", default=None)


def is_in_towerpack(cls: type[Any] | Callable[..., Any]) -> bool:
    return cls.__module__.partition(".")[0] == _LIBRARY


def alike(cls: Any, methods: dict[str, Any]) -> Any:
    """Create a subclass with the same name that overrides some methods."""
    names = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    metaclass = cast("Any", type(cls))  # often ABCMeta
    return metaclass(cls.__name__, (cls,), {**names, **methods})


def with_method(target: T, method: Callable[..., Any]) -> T:
    """Return an object with the same attributes whose class uses `method`."""
    cls: Any = type(target)
    if getattr(cls, method.__name__) is method:
        return target

    def reduce(self: T, protocol: Any) -> Any:
        return with_method, (_sharing(cls, self), method)  # pickle cannot find the new class

    return _sharing(alike(cls, {method.__name__: method, "__reduce_ex__": reduce}), target)


def _sharing(cls: type[T], target: T) -> T:
    result = object.__new__(cls)
    result.__dict__ = target.__dict__
    return result


# Attributes of a flow. The first is a process id, so that an unpickled copy is prepared again.
_RESET_IN = "_DataFlow__reset_in"
_LENGTH_BEFORE = "_DataFlow__length_before"
_lock = threading.RLock()  # threads that read the same flow wait while its `reset_state` runs


def _renew_lock() -> None:
    global _lock  # its holder may not exist in a fork
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


def overrides_reset(flow: Any) -> bool:
    cls = cast("Any", type(flow))
    return hasattr(cls.reset_state, _PREPARES)


def is_ready(flow: object) -> bool:
    """Return whether `reset_state` has been called in this process or runs in this thread."""
    with _lock:
        return vars(flow).get(_RESET_IN) == os.getpid()


def make_ready(flow: Any) -> None:
    with _lock:
        if not is_ready(flow):
            flow.reset_state()


_PREPARES = "_towerpack_prepares"


def prepare_on_use(cls: type[Any]) -> None:
    """Make methods of a class that read the flow call its overridden `reset_state` first."""
    if is_in_towerpack(cls.reset_state):
        return
    calls = {"reset_state": _reset, "__iter__": _read, "__getitem__": _read, "__len__": _measure}
    for name, call in {**calls, "length": _measure}.items():
        method: Any = getattr(cls, name, None)
        overridden = isinstance(method, FunctionType) and (
            name == "length" or not is_in_towerpack(method)
        )
        if overridden and not hasattr(method, _PREPARES):
            setattr(cls, name, _calling(call, method))


def _calling(call: Callable[..., Any], method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def prepared(self: Any, *arguments: Any) -> Any:
        return call(self, method, *arguments)

    setattr(prepared, _PREPARES, True)
    return prepared


def _reset(flow: Any, method: Callable[[Any], Any]) -> None:
    state: dict[str, Any] = flow.__dict__
    with _lock:
        state[_RESET_IN] = os.getpid()  # set before the call: `method` may read the flow itself
        try:
            method(flow)
        except BaseException:
            state.pop(_RESET_IN, None)
            raise
        before = state.pop(_LENGTH_BEFORE, None)
        if before is not None and before != len(flow):
            raise DataFlowError(
                f"The length of {type(flow).__name__} was {before} before reset_state and is "
                f"{len(flow)} after it.",
                fix="let __len__ return 0 or raise TypeError until reset_state has run",
            )


def _read(flow: Any, method: Callable[..., Any], *arguments: Any) -> Any:
    make_ready(flow)
    return method(flow, *arguments)


def _measure(flow: Any, method: Callable[[Any], Any]) -> Any:
    """Return the length of a flow, which may be known only after `reset_state`."""
    if not is_ready(flow):
        # If `reset_state` does not help, the call below raises the same exception again.
        with suppress(Exception):
            length = method(flow)
            # A flow with open files cannot be sent to workers, so do not call `reset_state` yet.
            if length or length is None:
                vars(flow)[_LENGTH_BEFORE] = length
                return length
        make_ready(flow)
    return method(flow)


class IndexNode(Node):
    """Node of a user-defined source, which reads `source[position]`."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self.size = len(source)
        self.source = type(source).__name__

    def get(self, epoch: int, position: int) -> Datapoint:
        try:
            return self._source[position]
        except TowerpackError:
            raise
        except Exception as error:
            name = type(self._source).__name__
            raise DataFlowError(
                f"{name}[{position}] raised {type(error).__name__}: {error}",
                fix=f"make __getitem__ accept all indices below the length {self.size}",
            ) from error

    def name_of(self, index: int) -> str | None:
        """Return the name from the method `name_of` of the user's class, if it has one."""
        name = getattr(self._source, "name_of", None)
        return None if name is None else str(name(index))


class ReadyNode(InnerNode):
    """Node that calls `reset_state` of a user-defined stage once in each process."""

    def __init__(self, flow: Any, inner: Node) -> None:
        super().__init__(inner)
        self._flow = flow

    def read(self, epoch: int, positions: Positions) -> Block:
        make_ready(self._flow)
        return self.inner.read(epoch, positions)


class ReplayStream(Stream):
    """Stream over user code. A resumed stream runs the code again and skips datapoints."""

    def __init__(
        self,
        start: Callable[[], Iterator[Datapoint]],
        ambient: Callable[[], Ambient],
        name: str,
        state: State,
        retained: bool = False,
    ) -> None:
        self._start = start
        self._retained = retained
        self._make_ambient = ambient
        self._name = name
        self._count = check_count(state, sys.maxsize)
        self._ambient: Ambient | None = None
        self._iterator: Iterator[Datapoint] | None = None

    def __next__(self) -> Datapoint:
        if self._iterator is None:
            self._ambient = self._make_ambient()
        token = AMBIENT.set(self._ambient)
        try:
            if self._iterator is None:
                self._iterator = self._restart()
            datapoint = next(self._iterator)
        except StopIteration:
            raise
        except BaseException as error:
            # A generator that raised is finished and would seem to end here: start it again.
            self._iterator = None
            if isinstance(error, TowerpackError) or not isinstance(error, Exception):
                raise
            raise DataFlowError(
                f"{self._name} raised {type(error).__name__} at datapoint {self._count}: {error}",
                fix="correct the error shown above; next() then reads this datapoint again",
            ) from error
        finally:
            AMBIENT.reset(token)
        self._count += 1
        # The code may reuse the memory of a datapoint that the reader retains.
        return duplicate(datapoint) if self._retained else datapoint

    def state(self) -> State:
        return self._count

    def close(self) -> None:
        getattr(self._iterator, "close", lambda: None)()

    def _restart(self) -> Iterator[Datapoint]:
        iterator = self._start()
        for done in range(self._count):
            try:
                next(iterator)
            except StopIteration:
                raise ended_early(self._name, done, self._count) from None
        return iterator
