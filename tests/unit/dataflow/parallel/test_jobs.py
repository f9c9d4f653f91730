"""Jobs, whose arrays all processes share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from towerpack.dataflow import DataFromArrays, DataFromList
from towerpack.dataflow.parallel._pickled_job import PickledJob, load_job, owner_of
from towerpack.dataflow.stage_context import StageContext


def sent(value: Any) -> Any:
    image = PickledJob(value)
    return load_job(image.pieces, [os.dup(fd) for fd in image.fds]), image


def test_large_arrays_travel_beside_the_pickle() -> None:
    large, small = np.arange(1 << 16), np.arange(9)
    large.flags.writeable = False
    (there, here), image = sent((large, small))
    assert np.array_equal(there, large)
    assert np.array_equal(here, small)
    assert not there.flags.writeable
    assert here.flags.writeable
    assert image.pieces[-1].nbytes < 2000


def test_what_a_worker_writes_is_its_own() -> None:
    array = np.zeros(1 << 16, np.uint8)
    (one,), image = sent([array])
    other = load_job(image.pieces, [os.dup(fd) for fd in image.fds])[0]
    one[:] = 1
    assert not other.any()
    assert not array.any()


@pytest.mark.parametrize("rows", [slice(None), slice(100, 900), slice(None, None, 2)])
def test_mapped_files_travel_by_name(tmp_path: Path, rows: slice) -> None:
    path = tmp_path / "data.npy"
    np.save(path, np.arange(100_000, dtype=np.int32).reshape(1000, 100))
    mapped = np.load(path, mmap_mode="r")[rows]
    node = DataFromArrays(mapped).compile_in(StageContext(0))
    there, image = sent(node)
    assert np.array_equal(there.get(0, 7)[0], mapped[7])
    if mapped.flags.c_contiguous:
        assert [piece.file for piece in image.pieces] == [str(path), 0]


def test_arrays_in_memory_are_there_once() -> None:
    array = np.random.default_rng(0).integers(0, 9, (1000, 100))
    flow = DataFromArrays(array, np.arange(1000))
    expected = flow[7]
    PickledJob(flow.compile_in(StageContext(0)))
    assert owner_of(flow.arrays[0]) is not None
    assert flow.arrays[1].base is None, "too small to be worth it"
    assert np.array_equal(flow[7][0], expected[0])
    assert not np.shares_memory(flow.arrays[0], array)
    again = PickledJob(flow.compile_in(StageContext(1)))
    assert sum(p.nbytes for p in again.pieces if p.file == 0) < 50_000


def test_long_lists_travel_flat() -> None:
    items = [(i, {"text": "x" * (i % 7)}) for i in range(5000)]
    node, _ = sent(DataFromList(items).compile_in(StageContext(0)))
    assert type(node._source).__name__ == "FlatList"
    assert [node.get(0, i) for i in (0, 1, 4999)] == [items[0], items[1], items[4999]]
    assert node.read(0, range(10, 20)) == items[10:20]
