"""Maps: per datapoint and vectorised, their randomness and their errors."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from towerpack._core.errors import BatchError, ConfigError, MapError
from towerpack.dataflow import (
    BatchData,
    DataFromArrays,
    DataFromGenerator,
    DataFromList,
    MapData,
    MapDataComponent,
    RepeatedData,
    SelectComponent,
    ShuffleData,
)

X = np.arange(24, dtype=np.float32).reshape(12, 2)
Y = np.arange(12)


def arrays() -> DataFromArrays:
    return DataFromArrays(X, Y)


def stream() -> DataFromGenerator:
    return DataFromGenerator(lambda: ((X[i], int(Y[i])) for i in range(12)))


def test_component() -> None:
    assert [dp[1] for dp in MapDataComponent(arrays(), lambda y: -y, 1)] == [-i for i in range(12)]
    data = DataFromList([{"a": 1}, {"a": 2}])
    assert list(MapDataComponent(data, str, "a")) == [{"a": "1"}, {"a": "2"}]
    assert next(iter(MapData(data, lambda dp: dp.update(b=0) or dp))) == {"a": 1, "b": 0}
    assert data.lst == [{"a": 1}, {"a": 2}]  # which nobody has changed
    assert list(MapDataComponent(DataFromList([[1, 2]]), str)) == [["1", 2]]

    with pytest.raises(MapError, match=r"'b'\) raised KeyError .*\n +got +dict {a: int}"):
        list(MapDataComponent(data, str, "b"))
    with pytest.raises(ConfigError, match="needs a function"):
        MapData(data, 3)  # type: ignore[arg-type]


def test_vectorised_sees_blocks_and_gives_rows() -> None:
    sizes: list[int] = []

    def double(dp: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        sizes.append(len(dp[1]))
        return dp[0] * 2, dp[1]

    for ds in (arrays(), stream(), ShuffleData(arrays())):
        sizes.clear()
        for x, y in MapData(ds, double, batched=True):
            assert np.array_equal(x, X[y] * 2)
        assert sizes == [12]
    sizes.clear()
    list(BatchData(MapData(arrays(), double, batched=True), 4))
    assert sizes == [4, 4, 4]
    out = list(MapDataComponent(arrays(), lambda y: y + 1, 1, batched=True))
    assert [dp[1] for dp in out] == list(range(1, 13))


def test_vectorised_must_keep_rows() -> None:
    with pytest.raises(MapError, match="changed the number of rows") as caught:
        list(MapData(arrays(), lambda dp: (dp[0][:3],), batched=True))
    assert "12 rows" in str(caught.value)
    with pytest.raises(MapError, match="changed the number of rows"):
        list(MapData(arrays(), lambda dp: (dp[0], np.float32(1)), batched=True))
    with pytest.raises(MapError, match="returned a NoneType"):
        list(MapData(arrays(), lambda dp: None, batched=True))
    with pytest.raises(BatchError):
        ragged = DataFromList([(np.zeros(1),), (np.zeros(2),)])
        list(BatchData(MapData(ragged, lambda dp: dp, batched=True), 2))

    def fail(dp: Any) -> Any:
        raise ZeroDivisionError("no")

    with pytest.raises(MapError, match=r"fail\) raised ZeroDivisionError on datapoints 4\.\.7 of"):
        BatchData(MapData(arrays(), fail, batched=True), 4).plan(seed=0).get(1)
    for wrap in (lambda ds: ds, RepeatedData):
        with pytest.raises(ConfigError, match="MapData over batches must not"):
            MapData(wrap(BatchData(arrays(), 2)), lambda dp: dp, batched=True)
    with pytest.raises(ConfigError, match="needs batched=False"):
        MapData(arrays(), lambda dp: dp, batched=True, on_error="skip")


def test_rng_depends_on_seed_epoch_position_and_place() -> None:
    def draw(dp: Any, rng: np.random.Generator) -> tuple[float, ...]:
        return (*dp[2:], rng.random())

    ds = MapData(MapData(arrays(), draw, rng=True), lambda dp: (0, 0, *dp))
    ds = MapData(ds, draw, rng=True)
    seen: set[float] = set()
    for seed in (0, 1):
        for epoch in (0, 1):
            seen |= {value for pair in ds.iterate(seed=seed, epoch=epoch) for value in pair}
    assert len(seen) == 2 * 2 * 12 * 2


@pytest.mark.parametrize("make", [arrays, stream])
def test_error_tells_the_whole_story_and_loses_nothing(make: Any) -> None:
    left = [1, 2]

    def explode(dp: Any) -> Any:
        if dp[1] == 5 and left:
            left.pop()
            raise ValueError("bad picture")
        return dp

    ds = BatchData(MapData(make(), explode), 2)
    iterator = ds.iterate(epoch=3)
    assert [next(iterator)[1].tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    before = iterator.state()
    for _ in range(2):
        with pytest.raises(MapError) as caught:
            next(iterator)
        error = caught.value
        told = "MapData(explode) raised ValueError on datapoint 5 of epoch 3: bad picture"
        assert error.what == told and isinstance(error.__cause__, ValueError)
        assert str(error.pipeline).endswith(" > MapData(explode) > BatchData(2)")
        assert "float32 [2]" in str(error) and 'on_error="skip"' in str(error)
        assert iterator.state() == before
    for rest in (iterator, ds.iterate(state=before)):
        assert [y.tolist() for _, y in rest] == [[i, i + 1] for i in range(4, 12, 2)]


def test_returning_nothing_is_an_error() -> None:
    for ds in (arrays(), stream()):
        with pytest.raises(MapError, match="returned None for datapoint 0") as caught:
            list(MapData(ds, lambda dp: None))
        assert "return the datapoint at the end" in str(caught.value)
        with pytest.raises(MapError, match="StopIteration"):  # which does not end the pass
            list(MapData(ds, lambda dp: next(iter(()))))


@pytest.mark.parametrize("make", [arrays, stream])
def test_skip(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    def odd(dp: Any) -> Any:
        if dp[1] == 3:
            return None
        return 1 / (int(dp[1]) % 2) and dp[1]

    ds = MapData(make(), odd, on_error="skip")
    with pytest.raises(TypeError, match="not known"):
        len(ds)
    with caplog.at_level(logging.WARNING, "towerpack"):
        iterator = ds.iterate()
        assert list(iterator) == [1, 5, 7, 9, 11]
    assert iterator.skipped == 7
    assert iterator.state()["skipped"] == 7
    assert sum("ZeroDivisionError" in m or "None" in m for m in caplog.messages) == 5
    assert "MapData(odd) skipped 7 of 12 datapoints in epoch 0" in caplog.messages


def test_nothing_but_bad_datapoints_does_not_hang() -> None:
    bad = MapData(RepeatedData(arrays()), lambda dp: None, on_error="skip")
    with pytest.raises(MapError, match="skipped 10000 datapoints in a row") as caught:
        next(bad.iterate())
    assert "returned None for datapoint 9999" in str(caught.value)


def test_select() -> None:
    assert list(SelectComponent(arrays(), 1)) == [(i,) for i in range(12)]
    assert list(SelectComponent(stream(), [1])) == [(i,) for i in range(12)]
    swapped = next(iter(BatchData(SelectComponent(arrays(), [1, 0]), 12)))
    assert np.array_equal(swapped[0], Y) and np.array_equal(swapped[1], X)
    data = DataFromList([{"a": 1, "b": 2, "c": 3}])
    assert list(SelectComponent(data, ["c", "a"])) == [{"c": 3, "a": 1}]
    assert list(SelectComponent(DataFromList([[1, 2, 3]]), [2, 0])) == [[3, 1]]
    with pytest.raises(ConfigError, match="must not be empty"):
        SelectComponent(data, [])
    with pytest.raises(MapError, match=r"SelectComponent\('d'\) raised KeyError"):
        list(SelectComponent(data, "d"))
