"""`find_batch_size`: the search, and that a child process that ends in any way ends alone."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from app_commands import run
from towerpack import ConfigError, TowerpackError
from towerpack.dataflow import BatchData, DataFromArrays, RepeatedData
from towerpack.nn import FullyConnected
from towerpack.training import BatchSizeTrial, TrainConfig, find_batch_size
from towerpack.training.trainers import batch_size

GB = 1 << 30


def config_of(size: int, width: int = 1) -> TrainConfig:
    """A row takes `width` MB, several times."""

    def build(x: tf.Tensor) -> tf.Tensor:
        y = FullyConnected("y", x, 250)
        return tf.reduce_mean(tf.tile(y[:, None], [1, 1000 * width, 1]) ** 2)

    rows = DataFromArrays(np.zeros((64, 8), np.float32))
    return TrainConfig(
        dataflow=RepeatedData(BatchData(rows, size)),
        model=(lambda: [tf.TensorSpec([None, 8], tf.float32, "x")], build, keras.optimizers.SGD),
    )


@settings(max_examples=200)
@given(st.integers(1, 5000), st.integers(1, 5000))
def test_the_search(capacity: int, limit: int) -> None:
    def tried(job: Any, size: int, timeout_s: float) -> BatchSizeTrial:
        assert 1 <= size <= limit
        return BatchSizeTrial(size, *((1.0, "") if size <= capacity else (None, "out of memory")))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_size, "_tried", tried)
        found = find_batch_size(config_of, limit=limit)
    most = min(capacity, limit)
    assert most - most / 15 - 1 < found.largest <= most and (most > 16 or found.largest == most)
    sizes = [trial.size for trial in found.trials]
    assert sizes == sorted({*sizes}) and len(sizes) < np.log2(limit) + 6


def test_children_end_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def make(size: int) -> TrainConfig:
        if size == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return config_of(size, 1 if size < 3 else 4000)

    found = find_batch_size(make, limit=4, steps=2, memory=3 * GB)
    assert found.largest == 2
    problems = [trial.problem for trial in found.trials]
    assert problems == ["", "", "out of memory", "out of memory (killed)"]
    assert all(trial.rows_per_s for trial in found.trials[:2])
    lines = str(found).splitlines()
    assert lines[0].split() == ["batch", "size", "rows/s"] and lines[4].endswith("(killed)")
    assert list(tmp_path.iterdir()) == []


def test_not_even_one_row() -> None:
    began = time.monotonic()
    with pytest.raises(TowerpackError, match="not done after 1 s") as caught:
        find_batch_size(config_of, timeout_s=1)
    assert time.monotonic() - began < 30 and caught.value.fix

    def wrong(size: int) -> TrainConfig:
        raise ConfigError(f"no data for {size}")

    with pytest.raises(TowerpackError, match="ConfigError: no data for 1"):
        find_batch_size(wrong)


def test_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        find_batch_size,
        "__kwdefaults__",
        {**find_batch_size.__kwdefaults__, "limit": 2, "steps": 1},
    )
    printed = run("tune", "digits", "--batch-size")
    assert printed.splitlines()[0].split() == ["batch", "size", "rows/s"]
    assert "towerpack train digits data.batch_size=2" in printed
