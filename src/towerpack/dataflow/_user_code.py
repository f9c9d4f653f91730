"""Flows that users write: their pass, their `reset_state`, what their class overrides.

`for dp in self.ds` in a user's `__iter__` has no arguments through which seed and epoch could come.
They come from `AMBIENT`: while such a generator runs, this context variable holds its pass.

Flows for the predecessor open or read their files in `reset_state`, which the caller had to call.
`prepare_on_use` makes the methods of such a class call `reset_state` first, once in each process.
So every reader of a flow, also code of the user's, may iterate it or ask for its length at once.
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
"""A flow that is begun once more within one pass of what wraps it is in epoch e + AGAIN, and then
in e + 2 * AGAIN: epochs that no pass of its own has. `divmod(epoch, AGAIN)` gives back both."""

_LIBRARY = __name__.partition(".")[0]
_WITHIN = 1 << 30  # from here on: what is begun within passes that were begun once more


class Ambient:
    """The pass of one user-written flow, with a seed that is keyed by the flow's place."""

    def __init__(self, seed: int, epoch: int) -> None:
        self.seed = seed
        self.epoch = epoch
        # Objects are kept so that their ids stay theirs.
        self._known: dict[int, tuple[object, int]] = {}
        self._passes = Counter[int]()
        self._generators: dict[int, np.random.Generator] = {}

    def next_pass(self, flow: object) -> tuple[int, int]:
        """Seed and epoch for one more pass over an inner flow; the first has the epoch of this."""
        index = self._index(flow)
        again = self._passes[index]
        self._passes[index] += 1
        outer_again, number = divmod(self.epoch, AGAIN)
        if outer_again:
            # A sum would not tell the second pass in the first one from the first in the second.
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


def is_ours(cls: type[Any] | Callable[..., Any]) -> bool:
    return cls.__module__.partition(".")[0] == _LIBRARY


def alike(cls: Any, methods: dict[str, Any]) -> Any:
    """A subclass with other methods, and with the same name. It cannot be found by that."""
    names = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    metaclass = cast("Any", type(cls))  # often ABCMeta
    return metaclass(cls.__name__, (cls,), {**names, **methods})


def with_method(target: T, method: Callable[..., Any]) -> T:
    """An object as it were if its class had not overridden a method; what it holds is the same."""
    cls: Any = type(target)
    if getattr(cls, method.__name__) is method:
        return target

    def reduce(self: T, protocol: Any) -> Any:
        return with_method, (_sharing(cls, self), method)  # a class without a name cannot travel

    return _sharing(alike(cls, {method.__name__: method, "__reduce_ex__": reduce}), target)


def _sharing(cls: type[T], target: T) -> T:
    made = object.__new__(cls)
    made.__dict__ = target.__dict__
    return made


# Attributes of a flow, pickled with it: another process has another number.
_RESET_IN = "_DataFlow__reset_in"
_LENGTH_BEFORE = "_DataFlow__length_before"
_lock = threading.RLock()  # threads that read the same flow wait while its `reset_state` runs


def _renew_lock() -> None:
    global _lock  # whose holder may be gone in a fork
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


def overrides_reset(flow: Any) -> bool:
    cls = cast("Any", type(flow))
    return hasattr(cls.reset_state, _PREPARES)


def is_ready(flow: object) -> bool:
    """Whether `reset_state` was called in this process, or is being called by this thread."""
    with _lock:
        return vars(flow).get(_RESET_IN) == os.getpid()


def make_ready(flow: Any) -> None:
    with _lock:
        if not is_ready(flow):
            flow.reset_state()


_PREPARES = "_towerpack_prepares"


def prepare_on_use(cls: type[Any]) -> None:
    """Let the methods that read flows of a class call its own `reset_state` first."""
    if is_ours(cls.reset_state):
        return
    calls = {"reset_state": _reset, "__iter__": _read, "__getitem__": _read, "__len__": _measure}
    for name, call in {**calls, "length": _measure}.items():
        method: Any = getattr(cls, name, None)
        users = isinstance(method, FunctionType) and (name == "length" or not is_ours(method))
        if users and not hasattr(method, _PREPARES):
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
        state[_RESET_IN] = os.getpid()  # now: `method` may read the flow itself
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
    """A source written by the user, read by `source[i]`."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self.size = len(source)

    def get(self, epoch: int, position: int) -> Datapoint:
        try:
            return self._source[position]
        except TowerpackError:
            raise
        except Exception as error:
            name = type(self._source).__name__
            raise DataFlowError(
                f"{name}[{position}] raised {type(error).__name__}: {error}",
                fix=f"what has __len__ and __getitem__ holds 0..{self.size}-1; see the cause",
            ) from error


class ReadyNode(InnerNode):
    """Read the plan of a stage of the user's when its `reset_state` has run in this process."""

    def __init__(self, flow: Any, inner: Node) -> None:
        super().__init__(inner)
        self._flow = flow

    def read(self, epoch: int, positions: Positions) -> Block:
        make_ready(self._flow)
        return self.inner.read(epoch, positions)


class ReplayStream(Stream):
    """Run the user's code, which only knows how to start: a resume runs it again and skips.

    If datapoints are `kept`, each is copied: the code may fill one array again and again.
    """

    def __init__(
        self,
        start: Callable[[], Iterator[Datapoint]],
        ambient: Callable[[], Ambient],
        name: str,
        state: State,
        kept: bool = False,
    ) -> None:
        self._start = start
        self._kept = kept
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
                fix="see the cause above; next() tries this datapoint again",
            ) from error
        finally:
            AMBIENT.reset(token)
        self._count += 1
        return duplicate(datapoint) if self._kept else datapoint

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
