"""MixData and its schedules, and the predecessor's two ways to mix."""

from __future__ import annotations

import math
import pickle
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scaling import scaled
from towerpack._core.errors import ConfigError, DataFlowError, MapError
from towerpack.dataflow import (
    ConcatData,
    DataFlow,
    DataFromArrays,
    DataFromGenerator,
    DataFromIterable,
    DataFromList,
    JoinData,
    MapData,
    MixData,
    RandomChooseData,
    RandomMixData,
    RepeatedData,
)

Make = Callable[[int, int], DataFlow]


def numbers(name: int, size: int) -> DataFlow:
    return DataFromArrays(np.full(size, name), np.arange(size))


def generated(name: int, size: int) -> DataFlow:
    return DataFromGenerator(lambda: ((name, i) for i in range(size)))


def pairs(ds: DataFlow, limit: int = 10**9, **options: Any) -> list[tuple[int, int]]:
    iterator = ds.iterate(seed=0, **options)
    return [(int(a), int(b)) for (a, b), _ in zip(iterator, range(limit), strict=False)]


@settings(max_examples=scaled(300))
@given(st.lists(st.integers(1, 60), min_size=1, max_size=9))
@example([1] * 24 + [47, 187, 370, 288, 302, 323])  # the flow furthest behind first: off by 1.26
def test_shares_are_exact_to_within_one(weights: list[int]) -> None:
    mix = MixData([numbers(i, 1) for i in range(len(weights))], weights, stop="repeat")
    shares, given = np.array(weights) / sum(weights), np.zeros(len(weights), np.int64)
    for turn, (flow, _) in enumerate(pairs(mix, sum(weights))):
        given[flow] += 1
        assert np.abs(given - shares * (turn + 1)).max() < 1
    assert given.tolist() == weights


def test_weights(caplog: pytest.LogCaptureFixture) -> None:
    def whole(*weights: Any) -> tuple[int, ...]:
        return MixData([numbers(0, 1)] * len(weights), weights).weights

    assert whole(*[0.1] * 10) == (1,) * 10
    assert whole(0.7, 0.2, 0.1) == (7, 2, 1)
    assert whole(50, 100) == (1, 2)
    assert whole(np.float64(0.25), Fraction(1, 4)) == (1, 1)
    assert whole(1, 65_535) == (1, 65_535) and caplog.messages == []
    rounded = whole(math.pi, math.e)
    assert rounded[0] / sum(rounded) == pytest.approx(math.pi / (math.pi + math.e), abs=2e-5)
    assert "are rounded to [" in caplog.text
    assert whole(1, 1e-9) == (65_536, 1)
    for wrong in (0, -1, math.inf, math.nan):
        with pytest.raises(ConfigError, match="finite numbers"):
            whole(1, wrong)
    for flows, weights in (([], None), ([numbers(0, 1)] * 2, [1])):
        with pytest.raises(ConfigError, match="flow"):
            MixData(flows, weights)
    with pytest.raises(ConfigError, match=r"stop must be .*, got 'last'"):
        MixData([numbers(0, 1)], stop="last")  # type: ignore[arg-type]


def test_how_a_mix_ends() -> None:
    """Of plans; streams agree with them."""
    assert pairs(MixData([numbers(0, 100), numbers(1, 3)], [2, 1])) == [
        (0, 0), (1, 0), (0, 1), (0, 2), (1, 1), (0, 3), (0, 4), (1, 2), (0, 5), (0, 6),
    ]  # fmt: skip
    assert pairs(MixData([numbers(0, 5), numbers(1, 0)])) == [(0, 0)]
    found = pairs(MixData([numbers(0, 20), numbers(1, 2), numbers(2, 6)], [2, 1, 1], stop="all"))
    # Once flow 1 has ended, 0 and 2 keep the proportion 2 to 1.
    rest = [name for name, _ in found[found.index((1, 1)) + 1 :]]
    assert Counter(rest[:9]) == {0: 6, 2: 3}


@pytest.mark.parametrize("make", [numbers, generated])
def test_a_flow_that_raises_keeps_its_turn(make: Make) -> None:
    angry = [True]

    def sometimes(dp: Any) -> Any:
        if dp[1] == 2 and angry:
            angry.clear()
            raise ValueError
        return dp

    iterator = MixData([make(0, 4), MapData(make(1, 4), sometimes)]).iterate(seed=0)
    found = [next(iterator) for _ in range(5)]
    with pytest.raises(MapError):
        next(iterator)
    found += iterator
    assert [(int(a), int(b)) for a, b in found] == [(name, i) for i in range(4) for name in (0, 1)]


@settings(max_examples=scaled(600))
@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=5),
    weights=st.lists(st.integers(1, 12), min_size=5, max_size=5),
    stop=st.sampled_from(["first", "all"]),
)
def test_plans_and_streams_agree(sizes: list[int], weights: list[int], stop: Any) -> None:
    plan, stream = (
        MixData([make(i, n) for i, n in enumerate(sizes)], weights[: len(sizes)], stop=stop)
        for make in (numbers, generated)
    )
    found = pairs(plan)
    assert found == pairs(stream) and len(found) == len(plan)
    for flow, size in enumerate(sizes):
        given = [i for name, i in found if name == flow]
        assert given == list(range(size if stop == "all" else len(given)))
    everywhere = [tuple(map(int, plan.plan(seed=0).get(i))) for i in range(len(found))]
    assert everywhere == found


def test_the_predecessors_choice() -> None:
    ds = RandomChooseData([(numbers(0, 70), 0.1)] * 10)
    assert len(ds) == 700
    ds = RandomChooseData([(numbers(0, 70), 0.7), (numbers(1, 100), 0.3)])
    assert Counter(name for name, _ in pairs(ds)[:100]) == {0: 70, 1: 30}
    assert [name for name, _ in pairs(RandomChooseData([numbers(0, 2), numbers(1, 2)]))] == [
        0, 1, 0, 1,
    ]  # fmt: skip


def iterable(name: int, size: int) -> DataFlow:
    return DataFromIterable([(name, i) for i in range(size)])


class TestRandomMix:
    @pytest.mark.parametrize("make", [numbers, iterable])
    def test_all_of_each_in_its_order(self, make: Make) -> None:
        ds = RandomMixData([make(0, 300), make(1, 0), make(2, 100)])
        first, second = pairs(ds, epoch=0), pairs(ds, epoch=1)
        assert len(first) == len(ds) == 400 and first != second
        for found in (first, second):
            for name, size in ((0, 300), (2, 100)):
                assert [i for who, i in found if who == name] == list(range(size))
            # Evenly over the pass: a quarter of any half, give or take.
            assert 30 <= sum(name == 2 for name, _ in found[:200]) <= 70

    def test_lengths_must_be_known_and_true(self) -> None:
        for unknown in (generated(0, 3), RepeatedData(numbers(0, 3))):
            with pytest.raises(ConfigError, match="finite flows of known length"):
                RandomMixData([unknown])

        class Short(DataFlow):
            def __len__(self) -> int:
                return 5

            def __iter__(self) -> Any:
                yield (0, 0)

        with pytest.raises(
            DataFlowError, match=r"Short.* yielded fewer datapoints than its length"
        ):
            list(RandomMixData([Short()]))


@pytest.mark.parametrize("make", [ConcatData, JoinData, MixData, RandomMixData])
def test_flows_of_a_generator_are_kept_as_a_list(make: Any) -> None:
    flow = make(DataFromList([[i]] * 3) for i in range(2))
    again = pickle.loads(pickle.dumps(flow))
    first, second = ([*each.iterate(seed=1)] for each in (flow, again))
    assert first == second
