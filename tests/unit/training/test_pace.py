"""How many steps one call runs."""

from __future__ import annotations

import pytest

from towerpack.training.loop.executor import Pace


def settled(step_s: float, calls: int = 40, budget_s: float = 0.05) -> int:
    pace = Pace(budget_s)
    for _ in range(calls):
        pace.ran(pace.steps, pace.steps * step_s)
    return pace.steps


@pytest.mark.parametrize(("step_s", "steps"), [(0.5, 1), (0.05, 1), (0.0051, 9), (0.001, 50)])
def test_a_call_lasts_as_long_as_it_should(step_s: float, steps: int) -> None:
    assert settled(step_s) in (steps, steps - 1)


def test_there_is_a_most() -> None:
    assert settled(1e-9) == settled(0.0) == 4096


def test_it_begins_with_one_and_doubles_at_most() -> None:
    pace = Pace()
    seen = []
    for _ in range(5):
        seen.append(pace.steps)
        pace.ran(pace.steps, pace.steps * 1e-6)
    assert seen == [1, 2, 4, 8, 16]


def test_it_gives_way_at_once() -> None:
    pace = Pace(budget_s=0.05)
    for _ in range(8):
        pace.ran(pace.steps, pace.steps * 1e-4)
    pace.ran(pace.steps, pace.steps * 0.025)
    assert pace.steps == 2


def test_a_short_call_does_not_slow_it_down_and_one_without_steps_says_nothing() -> None:
    pace = Pace()
    for _ in range(6):
        pace.ran(pace.steps, pace.steps * 1e-4)
    before = pace.steps
    pace.ran(1, 1e-4)
    assert pace.steps == 2 * before
    pace.ran(0, 10.0)
    assert pace.steps == 2 * before
