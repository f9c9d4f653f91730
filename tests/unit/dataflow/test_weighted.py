"""`WeightedData`: frequencies follow the weights, and what all stages promise holds for it too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from scaling import scaled
from towerpack import ConfigError, StateError
from towerpack.dataflow import (
    BatchData,
    DataFlow,
    DataFromArrays,
    DataFromGenerator,
    DataFromList,
    MapData,
    PrefetchData,
    RepeatedData,
    ShardData,
    ShuffleData,
    WeightedData,
)
from towerpack.dataflow.testing import check_flow

WEIGHTS = [3, 0, 1, 2, 0.5, 0, 1, 0.5]
ROWS = DataFromArrays(np.arange(len(WEIGHTS)))
ONCE = {"replacement": False}


def drawn(flow: DataFlow, epoch: int = 0, seed: int = 4) -> list[int]:
    with flow.iterate(seed=seed, epoch=epoch) as points:
        return [int(point[0]) for point in points]


def assert_law(counts: Counter[Any], shares: dict[Any, float]) -> None:
    """Compare frequencies with a law. A right law fails once in about a million cases."""
    assert counts.keys() <= {key for key, share in shares.items() if share}
    total, number = counts.total(), sum(share > 0 for share in shares.values())
    expected = {key: share / sum(shares.values()) * total for key, share in shares.items()}
    assert min(e for e in expected.values() if e) > 5
    chi_square = sum((counts[key] - e) ** 2 / e for key, e in expected.items() if e)
    freedom = number - 1  # Wilson & Hilferty 1931
    limit = freedom * (1 - 2 / (9 * freedom) + 4.8 * (2 / (9 * freedom)) ** 0.5) ** 3
    assert chi_square < limit


def test_law_with_replacement() -> None:
    flow, draws = WeightedData(ROWS, WEIGHTS, size=9000), Counter[Any]()
    pairs, across = Counter[Any](), Counter[Any]()
    passes = [drawn(flow, epoch) for epoch in range(4)]
    for one, other in zip(passes, [*passes[1:], passes[0]], strict=True):
        draws.update(one)
        pairs.update(zip(one[::2], one[1::2], strict=True))
        across.update(zip(one, other, strict=True))
    assert_law(draws, dict(enumerate(WEIGHTS)))
    square = {(i, j): a * b for i, a in enumerate(WEIGHTS) for j, b in enumerate(WEIGHTS)}
    assert_law(pairs, square)
    assert_law(across, square)


def test_law_without_replacement() -> None:
    """The first draws are as if drawn one by one among the rows that are left."""
    plan = WeightedData(ROWS, WEIGHTS, **ONCE, size=2).plan(seed=4)
    number = max(3000, scaled(30_000))
    pairs = Counter(
        tuple(int(row) for (row,) in plan.read(range(2), epoch=epoch)) for epoch in range(number)
    )
    left = sum(WEIGHTS)
    law = {
        (i, j): a / left * b / (left - a)
        for i, a in enumerate(WEIGHTS)
        for j, b in enumerate(WEIGHTS)
        if i != j
    }
    assert_law(pairs, law)
    positive = [row for row, weight in enumerate(WEIGHTS) if weight]
    assert all(sorted(drawn(WeightedData(ROWS, WEIGHTS, **ONCE), e)) == positive for e in range(9))


@pytest.mark.parametrize("labels", [0, ["a"] * 2 + ["b"] * 6, "key"])
def test_balanced_classes(labels: Any) -> None:
    classes = [7, 7, 5, 5, 5, 5, 5, 5]
    rows: DataFlow = DataFromList([(c, row) for row, c in enumerate(classes)])
    if labels == "key":
        rows = DataFromArrays({"row": np.arange(8), "key": np.array(classes)})
    flow = WeightedData(rows, "balanced", labels=labels, size=8000)
    row = "row" if labels == "key" else 1
    counts = Counter(int(point[row]) for point in flow.iterate(seed=1))
    assert_law(counts, {i: 1 / classes.count(c) for i, c in enumerate(classes)})


@pytest.mark.parametrize("options", [{}, ONCE])
def test_laws_of_flows(options: Any) -> None:
    check_flow(lambda: WeightedData(ROWS, WEIGHTS, **options), stops=range(9))
    check_flow(lambda: ShuffleData(BatchData(WeightedData(ROWS, WEIGHTS, **options), 2)))
    flow = WeightedData(ROWS, WEIGHTS, **options)
    shards = [drawn(ShardData(flow, 3, index), 2) for index in range(3)]
    assert [row for rows in zip(*shards, strict=True) for row in rows] == drawn(flow, 2)[:6]
    workers = PrefetchData(MapData(flow, lambda dp: (dp[0] * 2,)), 2)
    assert drawn(workers, 3) == [2 * row for row in drawn(flow, 3)]
    plan = ShuffleData(flow).plan(seed=4)
    for position in range(6):
        (origin,) = plan.origin(position, epoch=1)
        assert origin.index == plan.get(position, epoch=1)[0]
    assert drawn(RepeatedData(flow, 2)) == drawn(flow) + drawn(flow, 1)
    assert len({tuple(drawn(flow, seed=seed)) for seed in range(4)}) > 1
    assert drawn(WeightedData(ROWS, WEIGHTS, **options, seed=6)) == drawn(
        WeightedData(ROWS, WEIGHTS, **options, seed=6), seed=9
    )


def test_repeated_datapoints_share_no_arrays() -> None:
    for rows in (DataFromList([(np.zeros(2),)] * 2), DataFromArrays(np.zeros((2, 2)))):
        first, second = (
            WeightedData(MapData(rows, lambda dp: (dp[0] + 1,)), [0, 1]).plan().read([0, 1])
        )
        first[0][:] = 7
        assert second[0].tolist() == [1, 1]


def test_states_know_the_weights() -> None:
    state = WeightedData(ROWS, WEIGHTS).iterate(seed=1).state()
    WeightedData(ROWS, np.array(WEIGHTS) * 2).iterate(state=state)  # the same shares
    with pytest.raises(StateError):
        WeightedData(ROWS, WEIGHTS[::-1]).iterate(state=state)


def test_tiny_weights() -> None:
    tiny = WeightedData(ROWS, [1e150, 1e-150, 0, 1, 1, 1, 1, 1e-158], **ONCE)
    assert all(2 not in drawn(tiny, epoch) for epoch in range(5)) and len(tiny) == 7


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WeightedData(ROWS, [1, 2]), "one number for each of 8"),
        (lambda: WeightedData(ROWS, [-1, *WEIGHTS[1:]]), "weight 0 is -1"),
        (lambda: WeightedData(ROWS, [1, np.nan, *WEIGHTS[2:]]), "weight 1 is nan"),
        (lambda: WeightedData(ROWS, [0] * 8), "only zeros"),
        (lambda: WeightedData(ROWS, "even"), "one number for each of 8"),
        (lambda: WeightedData(ROWS, WEIGHTS, **ONCE, size=7), "only 6 weights are above 0"),
        (lambda: WeightedData(ROWS, WEIGHTS, size=0), "at least 1"),
        (lambda: WeightedData(ROWS, "balanced"), "require each other"),
        (lambda: WeightedData(ROWS, WEIGHTS, labels=0), "require each other"),
        (lambda: WeightedData(ROWS, "balanced", labels=[1]), "one number for each"),
        (lambda: WeightedData(ShuffleData(ROWS), WEIGHTS), "another order"),
        (lambda: WeightedData(RepeatedData(ROWS), WEIGHTS), "finite flow"),
        (lambda: WeightedData(DataFromGenerator(lambda: iter([])), WEIGHTS), "known length"),
    ],
)
def test_bad_input(make: Callable[[], DataFlow], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        make()
    assert caught.value.fix or "at least 1" in message
