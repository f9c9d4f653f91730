from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import numpy as np

from towerpack._core.errors import ConfigError, MapError, TowerpackError, text_of
from towerpack._core.logs import get_logger
from towerpack.dataflow._batch_rows import without_rows
from towerpack.dataflow._compile import Wrapper
from towerpack.dataflow._flow import DataFlow, length_of
from towerpack.dataflow._item_rng import position_rng
from towerpack.dataflow._iteration_state import InnerStream, State, Stream, Tally
from towerpack.dataflow._plan import Traced, untraced
from towerpack.dataflow.arguments import check_choice
from towerpack.dataflow.datapoints import Datapoint, copied, describe_datapoint
from towerpack.dataflow.pipeline_names import Length
from towerpack.dataflow.stage_context import StageContext

log = get_logger(__name__)

_LOG_FIRST = 5
_LOG_EVERY = 1000
_GIVE_UP_AFTER = 10_000  # in a row: an infinite flow of bad datapoints would hang
_SHARE_FROM = 1000  # datapoints: a share of fewer means little

# Arguments by which stages skip bad datapoints.
_SKIPPING = {"on_error": 'on_error="skip"', "catch_exceptions": "catch_exceptions=True"}

OnError = Literal["raise", "skip"]
Limit = int | float | None


@dataclass(frozen=True)
class ErrorPolicy:
    on_error: OnError
    max_errors: Limit

    def __post_init__(self) -> None:
        limit: Any = self.max_errors
        check_choice(self.on_error, "on_error", get_args(OnError))
        if limit is None:
            return
        count = isinstance(limit, (int, np.integer)) and not isinstance(limit, bool)
        share = isinstance(limit, (float, np.floating)) and bool(limit < 1)
        if not (count or share) or limit < 0:
            what = f"max_errors must be a number of datapoints or a share in [0, 1), got {limit!r}."
            raise ConfigError(what)
        if self.on_error == "raise":
            raise ConfigError(f'max_errors={limit} requires on_error="skip".')

    def exceeded(self, bad: int, count: int, *, ended: bool = False) -> bool:
        limit = self.max_errors
        if limit is None or isinstance(limit, (int, np.integer)):
            return limit is not None and bool(bad > limit)
        return (ended or count >= _SHARE_FROM) and bad > limit * count


@dataclass(eq=False)
class Mapper:
    f: Callable[..., Any]
    name: str
    key: int | None = None  # random key, if the function gets a generator
    skipping: str | None = None  # argument that skips bad datapoints, for messages

    def __call__(self, datapoint: Datapoint, epoch: int, position: int) -> Datapoint:
        try:
            if self.key is None:
                result = self.f(copied(datapoint))
            else:
                result = self.f(copied(datapoint), position_rng(self.key, epoch, position))
        except Exception as error:
            where = f"datapoint {position} of epoch {epoch}"
            raise self.failure(error, where, datapoint) from error
        if result is None:
            raise MapError(
                f"{self.name} returned None for datapoint {position} of epoch {epoch}.",
                fix=self._or_skip("return the datapoint at the end of the function"),
            )
        return result

    def failure(self, error: Exception, where: str, datapoint: Datapoint) -> MapError:
        cause = error if isinstance(error, TowerpackError) else TowerpackError(text_of(error))
        return MapError(
            f"{self.name} raised {type(error).__name__} on {where}: {cause.what}",
            got="\nin ".join(filter(None, [cause.got, describe_datapoint(datapoint)])),
            expected=cause.expected,
            fix=self._or_skip(cause.fix or "correct the error shown above"),
        )

    def _or_skip(self, fix: str) -> str:
        skipping = f"; set {self.skipping} to skip and count bad datapoints"
        return fix + skipping * (self.skipping is not None)


class MapStream(InnerStream):
    def __init__(
        self,
        inner: Stream,
        mapper: Mapper,
        epoch: int,
        state: State,
        policy: ErrorPolicy,
        tally: Tally | None,
    ) -> None:
        self._inner = inner
        self._mapper = mapper
        self.name = mapper.name
        self.epoch = epoch
        self._policy = policy
        self._tally = tally or Tally()
        self.count, self.bad = (0, 0) if state is None else (state["count"], state["bad"])
        self._in_a_row = 0
        self._last: MapError | None = None
        self._before: State = None
        self._pending: list[Datapoint] = []  # read but not mapped yet; retained for a retry

    def __next__(self) -> Datapoint:
        while True:
            if not self._pending:
                before = self._inner.state()
                try:
                    self._pending = [next(self._inner)]
                except StopIteration:
                    self.ended()
                    raise
                self._before = before
            try:
                row = self._pending[0]
                result = without_rows(self._mapper, untraced(row), self.epoch, self.count)
            except MapError as error:
                if self._policy.on_error == "raise":
                    raise
                self._skip(error)
            else:
                if isinstance(row, Traced):
                    result = row.mapped(result, self._mapper, self.epoch, self.count)
                self._forward()
                self._in_a_row = 0
                return result

    def state(self) -> dict[str, Any]:
        inner = self._before if self._pending else self._inner.state()
        return {"count": self.count, "bad": self.bad, "inner": inner}

    def _forward(self) -> None:
        self._pending = []
        self.count += 1

    def _skip(self, error: MapError) -> None:
        self._check_limit(self.bad + 1, self.count + 1, error)
        self._tally.skipped += 1
        self.bad += 1
        self._last = error.with_traceback(None)  # its frames refer to this stream
        self._forward()
        if self.bad <= _LOG_FIRST or self.bad % _LOG_EVERY == 0:
            log.warning("skipped: %s", error.what)
        self._in_a_row += 1
        if self._in_a_row == _GIVE_UP_AFTER:
            self._in_a_row = 0
            raise MapError(
                f"{self.name} skipped {_GIVE_UP_AFTER} datapoints in a row.",
                details=f"The last error: {error.what}",
                fix="correct the function or the data",
            ) from error

    def ended(self) -> None:
        self._check_limit(self.bad, self.count, self._last, ended=True)
        if self.bad:
            numbers = self.bad, self.count, self.epoch
            log.warning("%s skipped %d of %d datapoints in epoch %d", self.name, *numbers)

    def _check_limit(
        self, bad: int, count: int, last: MapError | None, *, ended: bool = False
    ) -> None:
        if self._policy.exceeded(bad, count, ended=ended):
            raise MapError(
                f"{self.name} failed for {bad} of the first {count} datapoints of epoch "
                f"{self.epoch}.",
                expected=f"at most max_errors={self._policy.max_errors}",
                details=None if last is None else f"The last error: {last.what}",
                fix="correct the function or the data, or increase max_errors",
            ) from last


def function_name(f: Callable[..., Any]) -> str:
    name = getattr(f, "__name__", None) or getattr(getattr(f, "func", None), "__name__", None)
    return name or type(f).__name__


class FunctionStage(Wrapper):
    def __init__(
        self, ds: DataFlow, f: Callable[..., Any], rng: bool, on_error: OnError, max_errors: Limit
    ) -> None:
        super().__init__(ds)
        if not callable(cast("object", f)):
            raise ConfigError(f"{type(self).__name__} needs a function, got {f!r:.60}.")
        self.f = f
        self.rng = self.random = rng
        self.on_error = on_error
        self.policy = ErrorPolicy(on_error, max_errors)
        parameters = inspect.signature(type(self).__init__).parameters
        self.skipping = next((text for n, text in _SKIPPING.items() if n in parameters), None)

    def length(self) -> Length:
        return None if self.on_error == "skip" else length_of(self.ds)

    def arguments(self) -> str:
        return function_name(self.f)

    def function(self) -> Callable[..., Any]:
        return self.f

    def mapper(self, context: StageContext) -> Mapper:
        name = f"{type(self).__name__}({self.arguments()})"
        return Mapper(self.function(), name, context.key(self) if self.rng else None, self.skipping)
