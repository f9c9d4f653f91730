from __future__ import annotations

from collections.abc import Callable
from typing import Any

from towerpack._core.logs import get_logger
from towerpack.dataflow._flow import DataFlow
from towerpack.dataflow._iteration_state import State, Stream, inner_state
from towerpack.dataflow._plan import Traced, untraced
from towerpack.dataflow.datapoints import Datapoint
from towerpack.dataflow.pipeline_names import Length
from towerpack.dataflow.stage_context import StageContext
from towerpack.dataflow.stages._on_error import FunctionStage, Limit, Mapper, MapStream, OnError

log = get_logger(__name__)

_WARN_EVERY = 100_000  # dropped datapoints in a row: an infinite flow may seem to hang


class FilterData(FunctionStage):
    """Keep the datapoints for which `predicate` is true.

    The length is unknown, and stages above can only be read in order.

    Args:
        ds: Flow to filter.
        predicate: Function that returns a truth value for a datapoint, not `None`.
        rng, on_error, max_errors: As for `MapData`.

    Raises:
        MapError: `predicate` raised or returned `None`; raised while iterating.
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
        super().__init__(ds, predicate, rng, on_error, max_errors)

    def length(self) -> Length:
        return None

    def function(self) -> Callable[..., Any]:
        def verdict(datapoint: Datapoint, *rng: object) -> tuple[Datapoint, bool] | None:
            passed = self.f(datapoint, *rng)
            return None if passed is None else (datapoint, bool(passed))

        return verdict

    def open(self, context: StageContext, epoch: int, state: State) -> Stream:
        inner = self.ds.open_in(context, epoch, inner_state(state))
        return FilterStream(inner, self.mapper(context), epoch, state, self.policy, context.tally)


class FilterStream(MapStream):
    def __init__(self, inner: Stream, mapper: Mapper, epoch: int, state: State, *rest: Any) -> None:
        super().__init__(inner, mapper, epoch, state, *rest)
        self._passed: int = 0 if state is None else state["kept"]

    def __next__(self) -> Datapoint:
        dropped = 0
        while True:
            result = super().__next__()
            datapoint, passed = untraced(result)
            if passed:
                self._passed += 1
                if isinstance(result, Traced):
                    return Traced(datapoint, result.origins)
                return datapoint
            dropped += 1
            if dropped % _WARN_EVERY == 0:
                log.warning("%s has dropped %d datapoints in a row", self.name, dropped)

    def state(self) -> State:
        return {**super().state(), "kept": self._passed}

    def ended(self) -> None:
        super().ended()
        total = self.count - self.bad
        log.info("%s kept %d of %d in epoch %d", self.name, self._passed, total, self.epoch)
