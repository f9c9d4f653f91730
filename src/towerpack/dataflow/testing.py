"""The laws that every flow keeps, for your own flows too.

    def test_my_flow():
        check_flow(lambda: MyFlow(...))

`make` constructs the flow anew each time it is called, so that nothing an instance remembers can
help. States go through msgpack and are restored into fresh instances, as after a crash.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from towerpack.dataflow._flow import DataFlow
from towerpack.dataflow.datapoints import Datapoint, duplicate
from towerpack.dataflow.stage_context import StageContext

Make = Callable[[], DataFlow]


class LawError(AssertionError):
    """A flow broke a law of the contract."""


class FlowLaws:
    """Base class for tests: derive, define `make`, and pytest runs every law.

    Attributes:
        seed: What passes are a function of.
        epochs: How many passes to look at.
        limit: How many datapoints of a pass to look at; needed for infinite flows.
    """

    seed: int = 7
    epochs: int = 2
    limit: int = 200

    def make(self) -> DataFlow:
        """Construct the flow; called many times, always for an equal one."""
        raise NotImplementedError

    def test_pass_is_function_of_seed_and_epoch(self) -> None:
        """Two instances give the same pass for one seed and epoch."""
        check_pass(self.make, seed=self.seed, epochs=self.epochs, limit=self.limit)

    def test_length(self) -> None:
        """A known length agrees with iteration; an unknown one is a `TypeError`."""
        check_length(self.make, seed=self.seed, epochs=self.epochs, limit=self.limit)

    def test_iterators_do_not_disturb_each_other(self) -> None:
        """Two passes over one instance, taken in turns, give what each gives alone."""
        check_independence(self.make, seed=self.seed, limit=self.limit)

    def test_reading(self) -> None:
        """A datapoint is the same whether it is read alone, in order or in another order."""
        check_reading(self.make, seed=self.seed, epochs=self.epochs, limit=self.limit)

    def test_resume(self) -> None:
        """Stopped anywhere and restored, the rest is identical, as often as it is restored."""
        check_resume(self.make, seed=self.seed, epochs=self.epochs, limit=self.limit)


def check_flow(
    make: Make,
    *,
    seed: int = 7,
    epochs: int = 2,
    limit: int = 200,
    stops: Iterable[int] | None = None,
) -> None:
    """Check every law.

    Args:
        make: Constructs the flow.
        seed: What passes are a function of.
        epochs: How many passes to look at.
        limit: How many datapoints of a pass to look at; needed for infinite flows.
        stops: After how many datapoints to stop and resume; by default some of all.

    Raises:
        LawError: A law is broken.
    """
    check_pass(make, seed=seed, epochs=epochs, limit=limit)
    check_length(make, seed=seed, epochs=epochs, limit=limit)
    check_independence(make, seed=seed, limit=limit)
    check_reading(make, seed=seed, epochs=epochs, limit=limit)
    check_resume(make, seed=seed, epochs=epochs, limit=limit, stops=stops)


def check_pass(make: Make, *, seed: int = 7, epochs: int = 2, limit: int = 200) -> None:
    """A pass is a function of (seed, epoch), whatever was done with the instance before."""
    used, counted = make(), make()
    expected = [_take(make().iterate(seed=seed, epoch=epoch), limit) for epoch in range(epochs)]
    for epoch in [*range(epochs), *reversed(range(epochs))]:
        found = _take(used.iterate(seed=seed, epoch=epoch), limit)
        _same(found, expected[epoch], f"epoch {epoch} again")
    for epoch in range(epochs):
        _same(_take(counted.iterate(seed=seed), limit), expected[epoch], f"pass {epoch}, counted")


def check_length(make: Make, *, seed: int = 7, epochs: int = 2, limit: int = 200) -> None:
    """A known length agrees with iteration; an unknown one is a `TypeError`."""
    flow = make()
    try:
        length = len(flow)
    except TypeError:
        return
    for epoch in range(epochs):
        found = len(_take(flow.iterate(seed=seed, epoch=epoch), max(limit, length + 1)))
        if found != length:
            raise LawError(f"{flow}: len() is {length}, but epoch {epoch} gave {found} datapoints")


def check_independence(make: Make, *, seed: int = 7, limit: int = 200) -> None:
    """Two passes over one instance, taken in turns, give what each gives alone."""
    expected = [_take(make().iterate(seed=seed, epoch=epoch), limit) for epoch in (0, 1)]
    flow = make()
    iterators = [flow.iterate(seed=seed, epoch=epoch) for epoch in (0, 1)]
    found: list[list[Datapoint]] = [[], []]
    for _ in range(limit):
        for one, iterator in zip(found, iterators, strict=True):
            one += islice(iterator, 1)
    for epoch in (0, 1):
        _same(found[epoch], expected[epoch], f"{flow}, epoch {epoch} beside another")


def check_reading(make: Make, *, seed: int = 7, epochs: int = 2, limit: int = 200) -> None:
    """A datapoint is the same whether it is read alone, in order or in another order."""
    flow = make()
    if flow.compile_in(StageContext(seed, serial=True)) is None:
        return
    plan = flow.plan(seed=seed)
    for epoch in range(epochs):
        expected = _take(make().iterate(seed=seed, epoch=epoch), limit)
        order = np.random.default_rng(epoch).permutation(len(expected))
        shuffled = plan.read(order, epoch=epoch)
        alone = [plan.get(int(position), epoch=epoch) for position in order]
        wanted = [expected[position] for position in order]
        _same(shuffled, wanted, f"{flow}, epoch {epoch} in another order")
        _same(alone, wanted, f"{flow}, epoch {epoch}, one by one")


def check_resume(
    make: Make,
    *,
    seed: int = 7,
    epochs: int = 2,
    limit: int = 200,
    stops: Iterable[int] | None = None,
) -> None:
    """Stopped anywhere and restored, the rest is identical, as often as it is restored."""
    for epoch in range(epochs):
        whole = _take(make().iterate(seed=seed, epoch=epoch), limit)
        wanted = set(range(len(whole) + 1)) if stops is None else set(stops)
        if stops is None and len(wanted) > 12:
            wanted = {0, 1, 2, len(whole) - 1, len(whole), *range(0, len(whole), len(whole) // 6)}
        for stop in sorted(wanted):
            if stop <= len(whole):
                _check_stop(make, seed, epoch, stop, whole)


def _check_stop(make: Make, seed: int, epoch: int, stop: int, whole: list[Datapoint]) -> None:
    iterator = make().iterate(seed=seed, epoch=epoch)
    _take(iterator, stop)
    state = _packed(iterator.state())
    restored = make()
    if not same_datapoints(state, _packed(iterator.state())):
        raise LawError(f"{restored}: asking for the state twice gives two states")
    where = f"{restored}, epoch {epoch}, restored at {stop}"
    rest = whole[stop:]
    _same(_take(iterator, len(rest)), rest, f"{where}: what followed the state")
    for attempt in ("once", "twice"):
        _same(_take(restored.iterate(state=state), len(rest)), rest, f"{where} {attempt}")
    for more in sorted({0, len(rest) // 2}):  # a state taken after a restore is as good as any
        iterator = make().iterate(state=state)
        _take(iterator, more)
        again = make().iterate(state=_packed(iterator.state()))
        _same(_take(again, len(rest) - more), rest[more:], f"{where} and {more} later")


def _packed(state: Any) -> Any:
    msgpack: Any = importlib.import_module("msgpack")  # has no types
    return msgpack.unpackb(msgpack.packb(state))


def _take(iterator: Iterable[Datapoint], count: int) -> list[Datapoint]:
    # A flow may lend the memory of a datapoint until the next one is asked for.
    return [duplicate(datapoint) for datapoint in islice(iterator, count)]


def _same(found: Sequence[Datapoint], expected: Sequence[Datapoint], where: str) -> None:
    if len(found) != len(expected):
        raise LawError(f"{where}: {len(found)} datapoints instead of {len(expected)}")
    for index, (one, other) in enumerate(zip(found, expected, strict=True)):
        if not same_datapoints(one, other):
            raise LawError(f"{where}: datapoint {index} is {one!r:.200}, expected {other!r:.200}")


def same_datapoints(one: Any, other: Any) -> bool:
    """Whether two datapoints are equal in values, types, shapes and dtypes."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.generic) and cast("Any", one).dtype != other.dtype:
        return False
    if isinstance(one, np.ma.MaskedArray):
        masked = cast("Any", one)
        masks = np.ma.getmaskarray(masked), np.ma.getmaskarray(other)
        return same_datapoints(*masks) and same_datapoints(masked.filled(0), other.filled(0))
    if isinstance(one, np.ndarray):
        array = cast("NDArray[Any]", one)
        if array.dtype != other.dtype or array.shape != other.shape:
            return False
        if array.dtype.kind == "O":
            return all(map(same_datapoints, array.ravel().tolist(), other.ravel().tolist()))
        return bool(np.array_equal(array, other, equal_nan=array.dtype.kind in "fcmM"))
    if isinstance(one, Mapping):
        mapping = cast("Mapping[Any, Any]", one)
        return list(mapping) == list(other) and all(
            same_datapoints(mapping[key], other[key]) for key in mapping
        )
    if isinstance(one, (list, tuple)):
        items = cast("Sequence[Any]", one)
        return len(items) == len(other) and all(map(same_datapoints, items, other))
    return bool(one == other) or (one != one and other != other)
