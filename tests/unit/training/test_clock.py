"""Where the time of an epoch goes."""

from __future__ import annotations

import pytest

from towerpack.training._clock import EpochClock


def test_shares() -> None:
    now = [10.0]
    clock = EpochClock(lambda: now[0])
    assert clock.report() == {}
    clock.waited(1.0)
    clock.ran(8, 2.0)
    assert clock.report() == {}, "no time has passed"
    now[0] = 14.0
    assert clock.report() == pytest.approx(
        {"throughput/steps_per_s": 2.0, "time/compute_share": 0.5, "time/data_wait_share": 0.25}
    )
    clock.reset()
    now[0] = 15.0
    assert clock.report() == {}
