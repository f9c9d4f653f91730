"""Datapoints that pass a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from towerpack._core.errors import ConfigError
from towerpack._core.logs import get_logger
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._flow import DataFlow, Length, Place, Wrapper, open_flow
from towerpack.dataflow._stream import State, Stream, Tally, inner_state
from towerpack.dataflow.stages._mapping import (
    ErrorPolicy,
    Limit,
    Mapper,
    MapStream,
    OnError,
    function_name,
    skipping_of,
)

log = get_logger(__name__)

_TELL_EVERY = 100_000  # in a row; an endless flow of which nothing passes would hang silently


class FilterData(Wrapper):
    """Keeps the datapoints for which `predicate` is true.

    How many are kept is not known beforehand, so what stands above can only be read in order: do
    costly maps below it that need not see everything, above it.

    Contract: in order; length unknown; random with `rng`; thread- and fork-safe as `ds` and
    `predicate` are; resumable as `ds` is.

    Args:
        ds: What to choose from.
        predicate: From a datapoint to something true or false. `None` is taken for a forgotten
            `return`, and is an error.
        rng: Call `predicate(datapoint, rng)`, as `MapData` does.
        on_error: What an exception in `predicate` does: "raise" a `MapError`, or "skip" the
            datapoint and count it (`iterator.skipped`), as `MapData` does.
        max_errors: As for `MapData`.

    Raises:
        MapError: `predicate` raised, or returned `None`; raised while iterating.
    """

    def __init__(
        self,
        ds: DataFlow,
        predicate: Callable[..., Any],
        *,
        rng: bool = False,
        on_error: OnError = "raise",
        max_errors: Limit = None,
    ) -> None:
        super().__init__(ds)
        if not callable(predicate):
            raise ConfigError(f"FilterData needs a function, not {predicate!r:.60}.")
        self.predicate = predicate
        self.rng = self.random = rng
        self.policy = ErrorPolicy(on_error, max_errors)

    def length(self) -> Length:
        return None

    def arguments(self) -> str:
        return function_name(self.predicate)

    def open(self, place: Place, epoch: int, state: State) -> Stream:
        inner = open_flow(self.ds, place, epoch, inner_state(state))
        name = f"{type(self).__name__}({self.arguments()})"
        key = place.key(self) if self.rng else None

        def verdict(datapoint: Datapoint, *rng: object) -> tuple[Datapoint, bool] | None:
            passed = self.predicate(datapoint, *rng)
            return None if passed is None else (datapoint, bool(passed))

        mapper = Mapper(verdict, name, key, skipping_of(type(self)))
        skipped = (place.tally or Tally()) if self.policy.on_error == "skip" else None
        return FilterStream(inner, mapper, epoch, state, skipped, self.policy)


class FilterStream(MapStream):
    """Hands on what passed; see `MapStream`."""

    def __init__(self, inner: Stream, mapper: Mapper, epoch: int, state: State, *rest: Any) -> None:
        super().__init__(inner, mapper, epoch, state, *rest)
        self._kept: int = 0 if state is None else state["kept"]

    def __next__(self) -> Datapoint:
        dropped = 0
        while True:
            datapoint, passed = super().__next__()
            if passed:
                self._kept += 1
                return datapoint
            dropped += 1
            if dropped % _TELL_EVERY == 0:
                log.warning("%s has dropped %d datapoints in a row", self.name, dropped)

    def state(self) -> State:
        return {**super().state(), "kept": self._kept}

    def ended(self) -> None:
        super().ended()
        total = self.count - self.bad
        log.info("%s kept %d of %d in epoch %d", self.name, self._kept, total, self.epoch)
