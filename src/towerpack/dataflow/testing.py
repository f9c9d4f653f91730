"""Tests of the laws that every DataFlow must satisfy, including user-defined flows.

    def test_my_flow():
        check_flow(lambda: MyFlow(...))

Every call of `make` must create a new instance of the same flow. States are serialized with msgpack
and restored into new instances, as after a crash.
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
    """Raised if a flow violates a law."""


class FlowLaws:
    """Base class of pytest tests. Derive from this class and define `make` to check every law.

    Attributes:
        seed: Random seed of the passes.
        epochs: Number of passes to check.
        limit: Number of datapoints to check in each pass, which may be infinite.
    """

    seed: int = 7
    epochs: int = 2
    limit: int = 200

    def make(self) -> DataFlow:
        """Create the flow. Every call must return a new, equal flow."""
        raise NotImplementedError

    def test_pass_is_function_of_seed_and_epoch(self) -> None:
        """Run `check_pass`."""
        check_pass(self.make, seed=self.seed, epochs=self.epochs, limit=self.limit)

    def test_length(self) -> None:
        """Run `check_length`."""
        check_length(self.make, seed=self.seed, epochs=self.epochs, limit=self.limit)

    def test_iterators_do_not_disturb_each_other(self) -> None:
        """Run `check_independence`."""
        check_independence(self.make, seed=self.seed, limit=self.limit)

    def test_reading(self) -> None:
        """Run `check_reading`."""
        check_reading(self.make, seed=self.seed, epochs=self.epochs, limit=self.limit)

    def test_resume(self) -> None:
        """Run `check_resume`."""
        check_resume(self.make, seed=self.seed, epochs=self.epochs, limit=self.limit)


def check_flow(
    make: Make,
    *,
    seed: int = 7,
    epochs: int = 2,
    limit: int = 200,
    stops: Iterable[int] | None = None,
) -> None:
    """Check that a flow satisfies every law.

    Args:
        make: Function that creates the flow.
        seed: Random seed of the passes.
        epochs: Number of passes to check.
        limit: Number of datapoints to check in each pass, which may be infinite.
        stops: Numbers of datapoints after which to stop and resume (default: a selection).

    Raises:
        LawError: The flow violates a law.
    """
    check_pass(make, seed=seed, epochs=epochs, limit=limit)
    check_length(make, seed=seed, epochs=epochs, limit=limit)
    check_independence(make, seed=seed, limit=limit)
    check_reading(make, seed=seed, epochs=epochs, limit=limit)
    check_resume(make, seed=seed, epochs=epochs, limit=limit, stops=stops)


def check_pass(make: Make, *, seed: int = 7, epochs: int = 2, limit: int = 200) -> None:
    """Check that a pass depends only on seed and epoch, not on earlier passes.

    Args:
        make, seed, epochs, limit: See `check_flow`.
    """
    used, counted = make(), make()
    expected = [_take(make().iterate(seed=seed, epoch=epoch), limit) for epoch in range(epochs)]
    for epoch in [*range(epochs), *reversed(range(epochs))]:
        datapoints = _take(used.iterate(seed=seed, epoch=epoch), limit)
        _same(datapoints, expected[epoch], f"epoch {epoch} again")
    for epoch in range(epochs):
        _same(_take(counted.iterate(seed=seed), limit), expected[epoch], f"pass {epoch}, counted")


def check_length(make: Make, *, seed: int = 7, epochs: int = 2, limit: int = 200) -> None:
    """Check that `len` returns the number of datapoints, or raises `TypeError`.

    Args:
        make, seed, epochs, limit: See `check_flow`.

    Raises:
        LawError: The length is wrong.
    """
    flow = make()
    try:
        length = len(flow)
    except TypeError:
        return
    for epoch in range(epochs):
        count = len(_take(flow.iterate(seed=seed, epoch=epoch), max(limit, length + 1)))
        if count != length:
            raise LawError(f"{flow} has len() {length}, but epoch {epoch} has {count} datapoints.")


def check_independence(make: Make, *, seed: int = 7, limit: int = 200) -> None:
    """Check that two interleaved passes over one instance do not affect each other.

    Args:
        make, seed, limit: See `check_flow`.
    """
    expected = [_take(make().iterate(seed=seed, epoch=epoch), limit) for epoch in (0, 1)]
    flow = make()
    iterators = [flow.iterate(seed=seed, epoch=epoch) for epoch in (0, 1)]
    passes: list[list[Datapoint]] = [[], []]
    for _ in range(limit):
        for datapoints, iterator in zip(passes, iterators, strict=True):
            datapoints += islice(iterator, 1)
    for epoch in (0, 1):
        _same(passes[epoch], expected[epoch], f"{flow}, epoch {epoch} beside another")


def check_reading(make: Make, *, seed: int = 7, epochs: int = 2, limit: int = 200) -> None:
    """Check that datapoints are the same when read one by one, in order, or in another order.

    Args:
        make, seed, epochs, limit: See `check_flow`.
    """
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
    """Check that a pass that is stopped and restored continues with identical datapoints.

    Args:
        make, seed, epochs, limit, stops: See `check_flow`.
    """
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
        raise LawError(f"Two calls of state() of {restored} return different states.")
    where = f"{restored}, epoch {epoch}, restored at {stop}"
    rest = whole[stop:]
    _same(_take(iterator, len(rest)), rest, f"{where}: what followed the state")
    for attempt in ("once", "twice"):
        _same(_take(restored.iterate(state=state), len(rest)), rest, f"{where} {attempt}")
    for more in sorted({0, len(rest) // 2}):  # states after a restore must also be correct
        iterator = make().iterate(state=state)
        _take(iterator, more)
        again = make().iterate(state=_packed(iterator.state()))
        _same(_take(again, len(rest) - more), rest[more:], f"{where} and {more} later")


def _packed(state: Any) -> Any:
    msgpack: Any = importlib.import_module("msgpack")  # has no types
    return msgpack.unpackb(msgpack.packb(state))


def _take(iterator: Iterable[Datapoint], count: int) -> list[Datapoint]:
    # A flow may reuse the memory of a datapoint for the next one.
    return [duplicate(datapoint) for datapoint in islice(iterator, count)]


def _same(actual: Sequence[Datapoint], expected: Sequence[Datapoint], where: str) -> None:
    if len(actual) != len(expected):
        raise LawError(f"{where}: {len(actual)} datapoints instead of {len(expected)}")
    for index, (first, second) in enumerate(zip(actual, expected, strict=True)):
        if not same_datapoints(first, second):
            raise LawError(
                f"{where}: datapoint {index} is {first!r:.200}, expected {second!r:.200}"
            )


def same_datapoints(first: Any, other: Any) -> bool:
    """Return whether two datapoints are equal in values, types, shapes and dtypes.

    Args:
        first, other: The datapoints.
    """
    if type(first) is not type(other):
        return False
    if isinstance(first, np.generic) and cast("Any", first).dtype != other.dtype:
        return False
    if isinstance(first, np.ma.MaskedArray):
        masked = cast("Any", first)
        masks = np.ma.getmaskarray(masked), np.ma.getmaskarray(other)
        return same_datapoints(*masks) and same_datapoints(masked.filled(0), other.filled(0))
    if isinstance(first, np.ndarray):
        array = cast("NDArray[Any]", first)
        if array.dtype != other.dtype or array.shape != other.shape:
            return False
        if array.dtype.kind == "O":
            return all(map(same_datapoints, array.ravel().tolist(), other.ravel().tolist()))
        return bool(np.array_equal(array, other, equal_nan=array.dtype.kind in "fcmM"))
    if isinstance(first, Mapping):
        mapping = cast("Mapping[Any, Any]", first)
        return list(mapping) == list(other) and all(
            same_datapoints(mapping[key], other[key]) for key in mapping
        )
    if isinstance(first, (list, tuple)):
        items = cast("Sequence[Any]", first)
        return len(items) == len(other) and all(map(same_datapoints, items, other))
    return bool(first == other) or (first != first and other != other)
