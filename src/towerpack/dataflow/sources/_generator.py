"""Datapoints from generators and other iterables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, cast

from towerpack._core.errors import ConfigError, DataFlowError
from towerpack.dataflow._ambient import Ambient
from towerpack.dataflow._arguments import given
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._draws import position_rng
from towerpack.dataflow._flow import Length, Place, Stage
from towerpack.dataflow._stream import ReplayStream, State, Stream


class DataFromIterable(Stage):
    """Datapoints of any iterable, which is iterated once for each pass.

    Contract: in the iterable's order; its length if it has one; not random; thread- and fork-safe
    as far as the iterable is; resumable by iterating again and skipping.

    Args:
        iterable: Not copied. An iterator or generator object is good for a single pass.
    """

    def __init__(self, iterable: Iterable[Any]) -> None:
        if not _iterable(iterable):
            raise ConfigError(
                "DataFromIterable takes what can be iterated.",
                got=given(iterable),
                fix="a list, or DataFromGenerator for a function",
            )
        self._source: Any = iterable
        self._used = False

    def length(self) -> Length:
        return len(self._source) if isinstance(self._source, Sized) else None

    def identity(self) -> str:
        length = self.length()
        return "" if length is None else str(length)

    def open(self, place: Place, epoch: int, state: State) -> Stream:
        key = place.key(self)
        return ReplayStream(
            lambda: self._start(key, epoch),
            lambda: Ambient(key, epoch),
            type(self).__name__,
            state,
        )

    def _start(self, key: int, epoch: int) -> Iterator[Datapoint]:
        source = cast("Iterable[Any]", self._source)
        if self._used:
            raise DataFlowError(
                f"{type(self).__name__} was given a {type(source).__name__}, which can be "
                "iterated once, and that was done.",
                fix="pass the generator function instead, not what it returned",
            )
        self._used = isinstance(source, Iterator)
        return iter(source)


class DataFromGenerator(DataFromIterable):
    """Datapoints that a generator function yields.

    Contract: in the generator's order; length unknown; random only through `rng`; thread- and
    fork-safe as far as the function is; resumable by running it again and skipping.

    Args:
        gen: A function without arguments that returns an iterator, called once for each pass. An
            iterator or generator object is accepted too, for a single pass.
        rng: Call `gen(rng)` with a NumPy generator that is a function of (seed, epoch).
    """

    def __init__(
        self, gen: Callable[..., Iterable[Any]] | Iterable[Any], *, rng: bool = False
    ) -> None:
        self._called = callable(gen) and not isinstance(gen, Iterator)
        if not self._called and (rng or not _iterable(cast("object", gen))):
            raise ConfigError(
                "DataFromGenerator takes a generator function.",
                got=given(gen),
                fix=f"def gen({'rng' * rng}): yield datapoint",
            )
        self._source = gen
        self._used = False
        self._rng = self.random = rng

    def length(self) -> Length:
        return None

    def arguments(self) -> str:
        return getattr(self._source, "__name__", "")

    def _start(self, key: int, epoch: int) -> Iterator[Datapoint]:
        if not self._called:
            return super()._start(key, epoch)
        arguments = (position_rng(key, epoch, 0),) if self._rng else ()
        return iter(self._source(*arguments))


def _iterable(source: object) -> bool:
    # Not by `iter()`, which may open files. `__getitem__` alone is enough for Python, too.
    return hasattr(type(source), "__iter__") or hasattr(type(source), "__getitem__")
