"""FilterData, and the budgets for errors that it shares with maps."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from small_flows import generated, numbers
from towerpack._core.errors import ConfigError, MapError
from towerpack.dataflow import DataFlow, FilterData, MapData, MapDataComponent, RepeatedData


def bad_every(k: int) -> Callable[[Any], Any]:
    def f(dp: Any) -> Any:
        if dp[0] % k == k - 1:
            raise ValueError("bad")
        return dp

    return f


@pytest.mark.parametrize("make", [numbers, generated])
def test_filter(make: Callable[[int], DataFlow], caplog: pytest.LogCaptureFixture) -> None:
    ds = FilterData(make(10), lambda dp: dp[0] % 3 == 0)
    with caplog.at_level(logging.INFO, logger="towerpack.dataflow"):
        assert [int(dp[0]) for dp in ds] == [0, 3, 6, 9]
    assert "FilterData(<lambda>) kept 4 of 10 in epoch 0" in caplog.text
    with pytest.raises(TypeError):
        len(ds)


def test_a_predicate_that_fails_names_the_datapoint_and_loses_nothing() -> None:
    ds = FilterData(generated(6), lambda dp: bad_every(4)(dp)[0] % 2 == 0)
    iterator = ds.iterate(seed=0)
    assert next(iterator) == (0,) and next(iterator) == (2,)
    for _ in range(2):
        with pytest.raises(MapError, match="raised ValueError on datapoint 3 of epoch 0"):
            next(iterator)
    assert iterator.state()["at"]["count"] == 3
    skipping = FilterData(generated(6), lambda dp: bool(bad_every(4)(dp)), on_error="skip")
    iterator = skipping.iterate()
    assert [dp[0] for dp in iterator] == [0, 1, 2, 4, 5] and iterator.skipped == 1


def test_a_predicate_without_return_is_found_out() -> None:
    with pytest.raises(MapError, match="returned None for datapoint 0"):
        next(iter(FilterData(numbers(3), lambda dp: None)))
    with pytest.raises(ConfigError):
        FilterData(numbers(3), 1)  # type: ignore[arg-type]


def test_an_endless_flow_of_which_nothing_passes_is_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("towerpack.dataflow.stages._filter._WARN_EVERY", 50)
    ds = FilterData(RepeatedData(numbers(7), 20), lambda dp: False)
    assert list(ds) == []
    assert "has dropped 100 datapoints in a row" in caplog.text


class TestBudget:
    @pytest.mark.parametrize("make", [numbers, generated])
    def test_a_number_of_errors(self, make: Callable[[int], DataFlow]) -> None:
        ds = MapData(make(100), bad_every(10), on_error="skip", max_errors=3)
        iterator = ds.iterate(seed=0)
        assert [int(next(iterator)[0]) for _ in range(36)][-1] == 38
        for _ in range(2):  # and again: the state stays before the datapoint that was too much
            with pytest.raises(MapError) as info:
                next(iterator)
            assert iterator.skipped == 3
            assert iterator.state()["at"] == {"count": 39, "bad": 3, "inner": 39}
        text = str(info.value)
        assert "MapData(f) failed for 4 of the first 40 datapoints of epoch 0" in text
        assert "at most max_errors=3" in text and "on datapoint 39 of epoch 0: bad" in text

    def test_a_share(self) -> None:
        fine = MapData(numbers(5000), bad_every(10), on_error="skip", max_errors=0.1)
        assert len(list(fine)) == 4500
        tight = MapData(numbers(5000), bad_every(10), on_error="skip", max_errors=0.099)
        with pytest.raises(MapError, match="failed for 100 of the first 1000 datapoints"):
            list(tight)

    def test_a_share_of_a_short_pass_is_judged_at_its_end(self) -> None:
        ds = MapData(numbers(50), bad_every(10), on_error="skip", max_errors=0.05)
        iterator = ds.iterate(seed=0)
        assert len([next(iterator) for _ in range(45)]) == 45
        for _ in range(2):
            with pytest.raises(MapError, match="failed for 5 of the first 50") as info:
                next(iterator)
        assert "on datapoint 49" in str(info.value)
        resumed = ds.iterate(state=iterator.state())
        with pytest.raises(MapError, match="failed for 5"):
            next(resumed)

    def test_a_resume_goes_on_counting(self) -> None:
        def make() -> DataFlow:
            return MapDataComponent(
                generated(100), lambda x: bad_every(7)((x,))[0], on_error="skip", max_errors=5
            )

        iterator = make().iterate(seed=0)
        for _ in range(20):
            next(iterator)
        for one in (iterator, make().iterate(state=iterator.state())):
            with pytest.raises(MapError, match="failed for 6 of the first 42"):
                list(one)

    def test_limits_that_make_no_sense(self) -> None:
        for limit in (-1, True, 1.0, float("nan")):
            with pytest.raises(ConfigError, match="max_errors must be"):
                MapData(numbers(3), bad_every(2), on_error="skip", max_errors=limit)
        with pytest.raises(ConfigError, match="max_errors=5"):
            MapData(numbers(3), bad_every(2), max_errors=5)
        with pytest.raises(ConfigError, match="on_error must be"):
            FilterData(numbers(3), bad_every(2), on_error="drop")  # type: ignore[arg-type]
