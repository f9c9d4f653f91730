"""Sources."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from towerpack._core.errors import ConfigError, DataFlowError, StateError
from towerpack.dataflow import (
    BatchData,
    DataFlow,
    DataFromArrays,
    DataFromGenerator,
    DataFromIterable,
    DataFromList,
    FakeData,
    MapData,
    RepeatedData,
    ShuffleData,
)

IMAGES = np.arange(24, dtype=np.uint8).reshape(4, 3, 2)
LABELS = np.arange(4)


class TestDataFromArrays:
    def test_tuples_lists_and_dicts(self) -> None:
        image, label = next(iter(DataFromArrays(IMAGES, LABELS)))
        assert np.array_equal(image, IMAGES[0]) and label == 0
        assert type(next(iter(DataFromArrays(IMAGES, LABELS)))) is tuple
        assert type(next(iter(DataFromArrays([IMAGES, LABELS])))) is list
        datapoint = next(iter(DataFromArrays({"image": IMAGES, "label": LABELS})))
        assert list(datapoint) == ["image", "label"]

    def test_named_tuples_stay(self) -> None:
        class Pair(NamedTuple):
            image: np.ndarray
            label: np.ndarray

        ds = ShuffleData(DataFromArrays(Pair(IMAGES, LABELS)))
        assert type(next(iter(ds))) is Pair
        assert next(iter(BatchData(ds, 2))).label.shape == (2,)

    def test_does_not_copy_but_what_it_yields_is_yours(self) -> None:
        images = IMAGES.copy()
        ds = DataFromArrays(images)
        assert ds.arrays[0] is images
        for flow in (ds, ShuffleData(ds), BatchData(ds, 2), BatchData(ShuffleData(ds), 2)):
            for (image,) in flow:
                image += 1
        for i in range(4):
            ds[i][0][:] = 0
        assert np.array_equal(images, IMAGES)

    def test_arrays_that_have_not_the_same_rows(self) -> None:
        for arrays in ((IMAGES, LABELS[:3]), (IMAGES, np.float32(3)), ()):
            with pytest.raises(ConfigError, match="the same number of rows"):
                DataFromArrays(*arrays)

    def test_memory_maps_and_strided_arrays(self, tmp_path: Path) -> None:
        np.save(tmp_path / "a.npy", np.arange(40).reshape(20, 2))
        mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
        ds = DataFromArrays(mapped, np.asfortranarray(mapped), np.arange(40)[::2])
        for one, other, third in BatchData(ShuffleData(ds), 5):
            assert np.array_equal(one, other) and np.array_equal(one[:, 0], third)


class TestDataFromList:
    def test_in_order_and_itself(self) -> None:
        data = [[1], [2], [3]]
        ds = DataFromList(data)
        assert len(ds) == 3
        assert all(one is other for one, other in zip(ds, data, strict=True))

    def test_states_that_were_saved_by_earlier_versions(self) -> None:
        ds = DataFromList([(i,) for i in range(6)], True, seed=5)
        flow = "DataFromList(6, shuffled)"
        state = {"version": 1, "flow": flow, "seed": 9, "epoch": 2, "at": 2, "skipped": 0}
        assert list(ds.iterate(state=state)) == [(4,), (0,), (5,), (1,)]
        assert ds.lst == [(i,) for i in range(6)]  # which the shuffle leaves alone


class TestDataFromGenerator:
    def test_generator_object_is_good_for_one_pass(self) -> None:
        ds = DataFromGenerator((i,) for i in range(3))
        assert len(list(ds)) == 3
        with pytest.raises(DataFlowError, match="can be iterated only once") as caught:
            list(ds)
        assert "generator function" in str(caught.value)
        assert len(DataFromIterable({1: 2, 3: 4})) == 2
        with pytest.raises(TypeError):
            len(DataFromIterable(i for i in range(3)))
        with pytest.raises(DataFlowError, match="once"):
            list(RepeatedData(DataFromGenerator((i,) for i in range(3)), 2))

    def test_rng(self) -> None:
        def draws(rng: np.random.Generator) -> Iterator[tuple[float]]:
            for _ in range(3):
                yield (rng.random(),)

        ds = DataFromGenerator(draws, rng=True)
        passes = [list(ds.iterate(seed=1, epoch=epoch)) for epoch in (0, 1, 0)]
        assert passes[0] == passes[2] != passes[1]
        with pytest.raises(ConfigError, match="generator function"):
            DataFromGenerator([(1,)], rng=True)

    def test_an_error_is_raised_again_and_does_not_end_the_pass(self) -> None:
        attempts: list[int] = []

        def flaky() -> Iterator[tuple[int]]:
            yield (0,)
            yield (1,)
            attempts.append(1)
            if len(attempts) < 3:
                raise OSError("disk")
            yield (2,)

        iterator = BatchData(DataFromGenerator(flaky), 3).iterate()
        for _ in range(2):
            with pytest.raises(DataFlowError, match="OSError at datapoint 2: disk") as caught:
                next(iterator)
            assert isinstance(caught.value.__cause__, OSError)
            assert caught.value.pipeline == "DataFromGenerator(flaky) > BatchData(3)"
            assert iterator.state()["at"] == {"window": 0, "used": 0, "inner": 0}
        assert next(iterator)[0].tolist() == [0, 1, 2]

    def test_a_shorter_pass_cannot_be_continued(self) -> None:
        state = DataFromIterable([(i,) for i in range(9)])
        iterator = MapData(state, lambda dp: dp).iterate()
        for _ in range(9):
            next(iterator)
        saved = dict(iterator.state(), flow="DataFromIterable(3) > MapData")
        shorter = MapData(DataFromIterable([(0,), (1,), (2,)]), lambda dp: dp)
        with pytest.raises(StateError, match="ended after 3 datapoints") as caught:
            next(shorter.iterate(state=saved))
        assert "3 datapoints" in str(caught.value)


class TestFakeData:
    def test_shapes_dtypes_domains(self) -> None:
        dtypes = ["float32", "int64", "uint8", bool]
        domains = [(-2, -1), (5, 8), (0, 256), (0, 1)]
        ds = FakeData([[2, 3], [], [4], [5]], 100, True, dtypes, domains)  # as the predecessor's
        assert len(ds) == len(list(ds)) == 100
        f, i, u, b = next(iter(BatchData(ds, 100)))
        assert f.dtype == np.float32 and f.shape == (100, 2, 3)
        assert f.min() >= -2 and f.max() <= -1 and f.std() > 0.2
        assert i.dtype == np.int64 and set(i.tolist()) == {5, 6, 7}
        assert u.dtype == np.uint8 and u.max() > 200
        assert b.dtype == np.bool_ and 150 < b.sum() < 350
        for random, different in ((True, 10), (False, 1)):
            assert len({x.item() for (x,) in FakeData([[]], 10, random)}) == different


def test_one_that_defines_nothing() -> None:
    with pytest.raises(ConfigError, match="must define __iter__, or both"):
        iter(DataFlow())
