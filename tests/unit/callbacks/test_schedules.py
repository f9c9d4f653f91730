from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from small_host import Param, PutValues, SmallHost, round_trip
from towerpack import CallbackError, ConfigError
from towerpack.callbacks import (
    Callback,
    HyperParamSetterWithFunc,
    ScheduledHyperParamSetter,
    StatMonitorParamSetter,
)

LR = "learning_rate"


class Record(Callback):
    """The learning rate that each step is run with."""

    def __init__(self) -> None:
        self.values: list[float] = []

    acts_between_steps = False

    def before_step(self) -> None:
        self.values.append(round(self.trainer.hyper_param(LR).get(), 6))


def rates(tmp_path: Path, setter: Callback, *, epochs: int = 5, start: int = 0) -> list[float]:
    """The learning rate of each of two steps of each epoch."""
    record = Record()
    host = SmallHost(tmp_path, [setter, record], steps_per_epoch=2, max_epoch=epochs)
    host.epoch, host.global_step = start, 2 * start
    host.run()
    return record.values


def twice(*values: float) -> list[float]:
    return [value for value in values for _ in range(2)]


@pytest.mark.parametrize(
    ("points", "interp", "expected"),
    [
        ([(0, 0.5), (2, 0.05)], None, twice(0.5, 0.5, 0.05, 0.05, 0.05)),
        ([(1, 0.5)], None, twice(0.1, 0.5, 0.5, 0.5, 0.5)),
        ([(0, 1.0), (4, 0.2)], "linear", twice(1.0, 0.8, 0.6, 0.4, 0.2)),
        ([(1, 1.0), (3, 0.0)], "linear", twice(0.1, 1.0, 0.5, 0.0, 0.0)),
    ],
)
def test_by_epochs(tmp_path: Path, points: Any, interp: Any, expected: list[float]) -> None:
    assert rates(tmp_path, ScheduledHyperParamSetter(LR, points, interp)) == expected


@pytest.mark.parametrize(("interp", "expected"), [(None, 0.5), ("linear", 0.3)])
def test_a_start_in_the_middle_gets_the_value_due(
    tmp_path: Path, interp: Any, expected: float
) -> None:
    setter = ScheduledHyperParamSetter(LR, [(0, 0.5), (4, 0.1)], interp)
    assert rates(tmp_path, setter, start=2)[0] == expected


def test_inside_an_epoch_it_is_not_over(tmp_path: Path) -> None:
    setter = ScheduledHyperParamSetter(LR, [(0, 0.5), (2, 0.05)])
    host = SmallHost(tmp_path, [setter], steps_per_epoch=4)
    host.epoch, host.local_step, host.global_step = 2, 1, 5
    host.start()
    assert host.hyper_param(LR).get() == 0.5


def test_by_steps(tmp_path: Path) -> None:
    setter = ScheduledHyperParamSetter(LR, [(0, 0.5), (3, 0.25), (7, 0.125)], step_based=True)
    record = Record()
    host = SmallHost(tmp_path, [setter, record], steps_per_epoch=10, max_epoch=1, steps_per_call=8)
    host.run()
    assert host.calls == [3, 4, 3]
    assert setter.next_stop(7) is None
    # `before_step` fires just before its step only where calls are of one step; the first of each
    # call is right in any case.
    assert [record.values[i] for i in (0, 3, 7)] == [0.5, 0.25, 0.125]


@pytest.mark.parametrize(("by_name", "calls"), [(True, [8, 2]), (False, [2, 1, 1, 1, 1, 4])])
def test_a_line_by_steps_is_set_at_each_step(
    tmp_path: Path, by_name: bool, calls: list[int]
) -> None:
    param = Param(0.1)
    points = [(2, 1.0), (6, 0.0)]
    setter = ScheduledHyperParamSetter(LR if by_name else param, points, "linear", step_based=True)
    record = Record()
    host = SmallHost(
        tmp_path,
        [setter, record],
        steps_per_epoch=10,
        max_epoch=1,
        steps_per_call=8,
        params={LR: param},
    )
    host.run()
    assert host.calls == calls
    assert record.values == [0.1, 0.1, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0, 0.0, 0.0]
    assert setter.state() == {"last": 0.0}


def test_steps_matter_only_to_tables_by_steps() -> None:
    assert not ScheduledHyperParamSetter(LR, [(0, 1.0)]).acts_in("trigger_step")
    assert ScheduledHyperParamSetter(LR, [(0, 1.0)], step_based=True).acts_in("trigger_step")


@pytest.mark.parametrize("interp", [None, "linear"])
@pytest.mark.parametrize("stop", [1, 2, 3])
def test_schedule_resumes_as_if_uninterrupted(tmp_path: Path, interp: Any, stop: int) -> None:
    points = [(0, 0.5), (2, 0.05), (4, 0.01)]
    whole = rates(tmp_path, ScheduledHyperParamSetter(LR, points, interp))
    before = ScheduledHyperParamSetter(LR, points, interp)
    first = rates(tmp_path, before, epochs=stop)
    after = ScheduledHyperParamSetter(LR, points, interp)
    after.restore(round_trip(before.state()))
    record = Record()
    param = Param(before.due(stop) or 0.0)
    host = SmallHost(tmp_path, [after, record], steps_per_epoch=2, max_epoch=5, params={LR: param})
    host.epoch, host.global_step = stop, 2 * stop
    host.run()
    assert first + record.values == whole


def test_a_change_by_hand_survives_a_resume_but_not_the_next_point(tmp_path: Path) -> None:
    before = ScheduledHyperParamSetter(LR, [(0, 0.5), (3, 0.05)])
    rates(tmp_path, before, epochs=1)
    after = ScheduledHyperParamSetter(LR, [(0, 0.5), (3, 0.05)])
    after.restore(round_trip(before.state()))
    record = Record()
    host = SmallHost(
        tmp_path, [after, record], steps_per_epoch=2, max_epoch=4, params={LR: Param(0.25)}
    )
    host.epoch, host.global_step = 1, 2
    host.run()
    assert record.values == twice(0.25, 0.25, 0.05)


def test_a_change_by_hand_at_a_point_survives_too(tmp_path: Path) -> None:
    after = ScheduledHyperParamSetter(LR, [(0, 0.5), (1, 0.25)])
    after.restore({"last": 0.25})
    host = SmallHost(tmp_path, [after], params={LR: Param(0.125)})
    host.epoch, host.global_step = 1, 4
    host.start()
    assert host.hyper_param(LR).get() == 0.125


def test_a_new_table_wins_over_the_checkpoint(tmp_path: Path) -> None:
    before = ScheduledHyperParamSetter(LR, [(0, 0.5)])
    rates(tmp_path, before, epochs=1)
    after = ScheduledHyperParamSetter(LR, [(0, 0.125)])
    after.restore(round_trip(before.state()))
    assert rates(tmp_path, after, start=1)[0] == 0.125


def test_a_table_in_any_order_that_starts_late(tmp_path: Path) -> None:
    points = [(3, 0.25), (1, 0.5), (0, 0.125)]
    ordered = ScheduledHyperParamSetter(LR, points)
    assert rates(tmp_path / "a", ordered, start=2)[0] == 0.5
    late = ScheduledHyperParamSetter(LR, points, set_at_beginning=False)
    assert rates(tmp_path / "b", late, start=2) == twice(0.1, 0.25, 0.25)


@pytest.mark.parametrize("points", [[], [(1, 0.1), (1, 0.2)], [(-1, 0.1)], [(0, math.nan)]])
def test_a_table_that_makes_no_sense(points: Any) -> None:
    with pytest.raises(ConfigError, match=r"needs points \(epoch, value\), each epoch once"):
        ScheduledHyperParamSetter(LR, points)


def test_an_interpolation_that_is_not_known() -> None:
    with pytest.raises(ConfigError, match="'linear'"):
        ScheduledHyperParamSetter(LR, [(0, 1.0)], "cosine")  # type: ignore[arg-type]


def test_each_change_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "towerpack")
    rates(tmp_path, ScheduledHyperParamSetter(LR, [(0, 0.5), (2, 0.05), (3, 0.05)]))
    assert [r.message for r in caplog.records] == [
        "learning_rate: 0.1 → 0.5 at step 0.",
        "learning_rate: 0.5 → 0.05 at step 4.",
    ]


def test_an_object_may_be_the_parameter(tmp_path: Path) -> None:
    param = Param(1.0)
    SmallHost(tmp_path, [ScheduledHyperParamSetter(param, [(1, 0.25)])]).run()
    assert param.get() == 0.25
    with pytest.raises(ConfigError, match="needs a hyper-parameter"):
        ScheduledHyperParamSetter(3, [(1, 0.25)])  # type: ignore[arg-type]


def test_by_a_function(tmp_path: Path) -> None:
    seen: list[tuple[int, float]] = []

    def func(epoch: int, now: float) -> float | None:
        seen.append((epoch, round(now, 6)))
        return None if epoch == 1 else now / 2

    assert rates(tmp_path, HyperParamSetterWithFunc(LR, func), epochs=3) == twice(0.05, 0.05, 0.025)
    assert seen == [(0, 0.1), (1, 0.05), (2, 0.05), (3, 0.025)]


def halve(epoch: int, now: float) -> float:
    return now / 2


def test_a_function_is_not_asked_twice_after_a_resume(tmp_path: Path) -> None:
    before = HyperParamSetterWithFunc(LR, halve)
    rates(tmp_path, before, epochs=2)
    after = HyperParamSetterWithFunc(LR, halve)
    after.restore(round_trip(before.state()))
    assert rates(tmp_path, after, start=2, epochs=4) == twice(0.1, 0.05)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_an_error(tmp_path: Path, value: float) -> None:
    with pytest.raises(CallbackError, match="value of learning_rate must be finite"):
        rates(tmp_path, HyperParamSetterWithFunc(LR, lambda epoch, now: value))


def by_stat(**kwargs: Any) -> StatMonitorParamSetter:
    return StatMonitorParamSetter(LR, "e", lambda lr: lr * 0.5, 0.1, 3, **kwargs)


def watched(
    tmp_path: Path, setter: StatMonitorParamSetter, values: list[float], *, lr: float = 1.0
) -> list[float]:
    record = Record()
    host = SmallHost(
        tmp_path,
        [PutValues("e", values), setter, record],
        steps_per_epoch=1,
        max_epoch=len(values) + 1,
        params={LR: Param(lr)},
    )
    host.max_epoch = len(values)
    host.run()
    return [*record.values, host.hyper_param(LR).get()]


def test_by_a_statistic(tmp_path: Path) -> None:
    # 5, 4.95, 4.95: no better by 0.1 within three values, as there; then the watch starts anew.
    assert watched(tmp_path, by_stat(), [5, 4.95, 4.95, 4.95, 3, 3, 3]) == [
        1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.25
    ]  # fmt: skip
    up = by_stat(reverse=True)
    assert watched(tmp_path, up, [5, 6, 7, 7, 7.05]) == [1, 1, 1, 1, 1, 0.5]


@pytest.mark.parametrize("last_k", [1, 2, 3])
def test_it_waits_for_last_k_values(tmp_path: Path, last_k: int) -> None:
    setter = StatMonitorParamSetter(LR, "e", lambda lr: lr * 0.5, 0.0, last_k)
    rates_seen = watched(tmp_path, setter, [1.0] * 6)
    assert rates_seen == [0.5 ** (i // last_k) for i in range(7)]


def test_statistics_survive_a_resume(tmp_path: Path) -> None:
    before = by_stat()
    watched(tmp_path, before, [5, 4.95])
    state = round_trip(before.state())
    after: Callable[[], StatMonitorParamSetter] = by_stat
    resumed = after()
    resumed.restore({**state, "seen": -1})
    assert watched(tmp_path, resumed, [4.95]) == [1, 0.5]
    assert state == {"values": [5.0, 4.95], "seen": 2}


def test_nan_is_passed_over(tmp_path: Path) -> None:
    assert watched(tmp_path, by_stat(), [5, math.nan, 4.95, 4.95]) == [1, 1, 1, 1, 0.5]


def test_values_are_compared_as_the_variable_keeps_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "towerpack")
    param = Param(0.1)
    assert param.get() != 0.1
    SmallHost(
        tmp_path, [ScheduledHyperParamSetter(LR, [(0, 0.1), (1, 0.1)])], params={LR: param}
    ).run()
    assert caplog.records == []
    assert param.get() == float(np.float32(0.1))
