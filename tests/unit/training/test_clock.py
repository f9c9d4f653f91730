"""Each moment of a training belongs to one part."""

from __future__ import annotations

import pytest

from towerpack.training.state.clock import CALLBACKS, COMPILE, DATA_WAIT, PRODUCTIVE, SAVE, Clock


class Now:
    """A clock that moves when it is told to."""

    def __init__(self, at: float = 0.0) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at


def spend(now: Now, clock: Clock, part: str | None, seconds: float) -> None:
    if part is None:
        now.at += seconds
    else:
        with clock.during(part):
            now.at += seconds


def test_parts_and_shares() -> None:
    now = Now(10.0)
    clock = Clock(now)
    assert clock.report() == {}
    spend(now, clock, None, 3.0)
    spend(now, clock, DATA_WAIT, 1.0)
    spend(now, clock, PRODUCTIVE, 2.0)
    clock.ran(1)
    assert clock.seconds() == {PRODUCTIVE: 0, COMPILE: 5, DATA_WAIT: 1, SAVE: 0, CALLBACKS: 0}
    clock.begin_epoch()
    assert clock.report() == {}
    spend(now, clock, PRODUCTIVE, 4.0)
    clock.ran(16)
    spend(now, clock, DATA_WAIT, 2.0)
    spend(now, clock, None, 1.5)
    with clock.during(DATA_WAIT):
        spend(now, clock, SAVE, 0.5)
    assert clock.report() == pytest.approx(
        {"throughput/steps_per_s": 2.0, "time/compute_share": 0.5, "time/data_wait_share": 0.25}
    )
    assert clock.seconds() == {PRODUCTIVE: 4, COMPILE: 5, DATA_WAIT: 3, SAVE: 0.5, CALLBACKS: 1.5}


def test_what_an_exception_leaves_belongs_to_what_is_around_it() -> None:
    now = Now()
    clock = Clock(now)
    with pytest.raises(KeyError), clock.during(DATA_WAIT):
        raise KeyError
    spend(now, clock, None, 1.0)
    assert clock.seconds()[COMPILE] == 1.0
