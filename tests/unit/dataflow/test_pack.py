"""`PackSequences`: every token once, few padding tokens, and what all stages promise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling import scaled
from towerpack import ConfigError, DataFlowError
from towerpack.dataflow import (
    BatchData,
    DataFlow,
    DataFromArrays,
    DataFromGenerator,
    DataFromList,
    MapData,
    PackSequences,
    PrefetchData,
    ShuffleData,
)
from towerpack.dataflow.replay import open_traced
from towerpack.dataflow.testing import check_flow

LENGTHS = [3, 9, 0, 2, 8, 4, 5, 1, 7, 3, 2, 2, 6]
TEXTS = [np.arange(n) + 100 * i for i, n in enumerate(LENGTHS)]


def texts() -> DataFlow:
    return DataFromList([{"ids": text, "first": (text % 100 == 0).tolist()} for text in TEXTS])


def segments(row: Any, key: Any, ids: Any, positions: Any) -> list[list[int]]:
    """Tokens of each segment of a row, whose other components are right."""
    count = int(row[ids].max())
    assert sorted(row[ids][row[ids] > 0]) == row[ids][row[ids] > 0].tolist()
    assert row[ids].dtype == row[positions].dtype == np.int32
    found = [row[key][row[ids] == segment] for segment in range(1, count + 1)]
    expected = np.concatenate([np.arange(len(tokens)) for tokens in found])
    assert row[positions].tolist() == [*expected, *[0] * (len(row[ids]) - len(expected))]
    return [tokens.tolist() for tokens in found]


def test_rows() -> None:
    rows = list(PackSequences(texts(), 9, window=5, pad={"ids": -1}))
    assert [r["ids"].tolist() for r in rows[:2]] == [
        [0, 1, 2, 300, 301, -1, -1, -1, -1],
        list(range(100, 109)),
    ]
    assert rows[0]["segment_ids"].tolist() == [1, 1, 1, 2, 2, 0, 0, 0, 0]
    assert rows[0]["positions"].tolist() == [0, 1, 2, 0, 1, 0, 0, 0, 0]
    assert rows[0]["first"].tolist() == [True, False, False, True] + [False] * 5
    (batch,) = BatchData(PackSequences(DataFromList([([1, 2],), ([3],)]), 4), 1)
    assert [part.tolist() for part in batch] == [[[1, 2, 3, 0]], [[1, 1, 2, 0]], [[0, 1, 0, 0]]]
    with pytest.raises(TypeError, match="not known"):
        len(PackSequences(texts(), 9))


@settings(max_examples=scaled(200, at_least=20), deadline=None)
@given(st.lists(st.integers(0, 20), max_size=40), st.integers(1, 20), st.integers(1, 50))
def test_every_token_is_in_one_segment(lengths: list[int], length: int, window: int) -> None:
    sequences = [[1000 * i + t for t in range(n)] for i, n in enumerate(lengths)]
    flow = PackSequences(
        DataFromList([[s] for s in sequences]), length, window=window, long="split"
    )
    rows = list(flow)
    packed = [tokens for row in rows for tokens in segments(row, 0, 1, 2)]
    pieces = [s[start : start + length] for s in sequences for start in range(0, len(s), length)]
    assert sorted(packed) == sorted(pieces)
    if window >= len(lengths) and rows:  # two rows would otherwise have been one
        full = sorted(int((row[1] > 0).sum()) for row in rows)
        assert len(rows) == 1 or full[0] + full[1] > length


SOURCES: dict[str, Callable[[], DataFlow]] = {
    "planned": lambda: ShuffleData(texts()),
    "in order": lambda: DataFromGenerator(lambda: ((text,) for text in TEXTS)),
}


@pytest.mark.parametrize("name", SOURCES)
def test_laws_of_flows(name: str) -> None:
    def make() -> DataFlow:
        return PackSequences(SOURCES[name](), 9, window=4)

    check_flow(make, stops=range(20))
    check_flow(lambda: BatchData(PackSequences(make().inputs[0], 4, window=3, long="split"), 2))
    key = "ids" if name == "planned" else 0
    above = PrefetchData(MapData(make(), lambda row: {key: row[key] + 1}), 2)
    for flow, add in ((PrefetchData(make(), 2), 0), (above, 1)):
        with flow.iterate(seed=7, epoch=1) as rows:
            parallel = [row[key].tolist() for row in rows]
        assert parallel == [(r[key] + add).tolist() for r in make().iterate(seed=7, epoch=1)]


def test_origins_are_the_sequences() -> None:
    flow = PackSequences(ShuffleData(texts()), 9, window=5)
    with open_traced(flow, None, seed=3) as traced:
        for row, origins in traced:
            rows = [tokens[0] // 100 for tokens in segments(row, "ids", "segment_ids", "positions")]
            assert [origin.index for origin in origins] == rows


def test_padding_of_long_tails() -> None:
    lengths = np.minimum(np.random.default_rng(0).pareto(1.1, 4000) * 20 + 1, 512).astype(int)
    flow = PackSequences(DataFromList([(np.ones(n, int),) for n in lengths]), 512)
    used, total = sum(lengths), sum(row[0].size for row in flow)
    assert total * 0.99 < used <= total


@pytest.mark.parametrize(
    ("datapoint", "message"),
    [
        ((np.zeros((2, 2), int),), "Datapoint 1 must be made of sequences"),
        ((np.zeros(2),), "sequences of integers"),
        (("ab",), "sequences of integers"),
        (([[1], [2, 3]],), "sequences of integers"),
        (([1, 2], [3]), "of the same length"),
        ((), "made of sequences"),
        (np.arange(3), "made of sequences"),
        ({"ids": [1]}, "as in pad= and the first"),
        (([1] * 6,), "Datapoint 1 has 6 tokens, but rows have 5"),
    ],
)
def test_wrong_datapoints(datapoint: Any, message: str) -> None:
    iterator = iter(PackSequences(DataFromList([([1, 2],), datapoint]), 5))
    for _ in range(2):
        with pytest.raises(DataFlowError, match=message) as caught:
            next(iterator)
        assert caught.value.fix


def test_wrong_arguments() -> None:
    ds = DataFromArrays(np.zeros((3, 2), int))
    for arguments in ({"length": 0}, {"length": 5, "window": 0}, {"length": 5, "long": "cut"}):
        with pytest.raises(ConfigError):
            PackSequences(ds, **arguments)  # type: ignore[arg-type]
    with pytest.raises(DataFlowError, match="as in pad="):
        list(PackSequences(ds, 5, pad={"ids": 1}))
    with pytest.raises(DataFlowError, match="made of sequences"):
        list(PackSequences(DataFromArrays({"positions": np.zeros((3, 2), int)}), 5))
