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
from towerpack.training import TrainConfig, find_batch_size
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
    sizes: list[int] = []

    def tried(job: Any, timeout_s: float) -> tuple[float, str]:
        sizes.append(job[-1])
        return 1.0, "" if job[-1] <= capacity else "out of memory"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_size, "_tried", tried)
        rates = find_batch_size(config_of, limit=limit)
    most = min(capacity, limit)
    assert most - most / 15 - 1 < max(rates) <= most and (most > 15 or max(rates) == most)
    assert list(rates) == sorted(size for size in sizes if size <= capacity)
    assert len({*sizes}) == len(sizes) < np.log2(limit) + 6 and max(sizes) <= limit


def test_children_end_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    caplog.set_level("INFO", "towerpack")

    def make(size: int) -> TrainConfig:
        if size == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return config_of(size, 1 if size < 3 else 4000)

    rates = find_batch_size(make, limit=4, steps=2, memory=3 * GB)
    assert list(rates) == [1, 2] and min(rates.values()) > 0
    problems = [m for m in caplog.messages if "memory" in m]
    assert problems == ["Batch size 4: out of memory (killed)", "Batch size 3: out of memory"]
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
