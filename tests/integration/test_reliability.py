"""Lines of docs/reliability.md that no other test proves."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from processes import children_of
from small_training import Do, X, Y, assert_same, train
from towerpack import WorkerError
from towerpack.callbacks import Callback, ModelSaver
from towerpack.checkpoint import load_checkpoint
from towerpack.dataflow import BatchData, DataFromArrays, MapData, PrefetchData, ShuffleData


def at_work(point: Any) -> Any:
    """Takes longer than a step: a worker that has nothing to do is replaced without a word."""
    time.sleep(0.0005)
    return point


def test_a_killed_data_worker_costs_no_step(tmp_path: Path) -> None:
    before = children_of(os.getpid())

    def kill(callback: Callback) -> None:
        workers = [pid for pid in children_of(os.getpid()) if pid not in before]
        os.kill(workers[0], signal.SIGKILL)

    def run(name: str, *callbacks: Callback) -> Any:
        points = MapData(ShuffleData(DataFromArrays(X, Y)), at_work)
        flow = PrefetchData(BatchData(points, 8), num_proc=2)
        # No save is due before the end. More steps than batches that can wait for them.
        return train(tmp_path / name, [ModelSaver(), *callbacks], dataflow=flow,
                     steps_per_epoch=1000, max_epoch=1)  # fmt: skip

    reached: list[int] = []
    watch = Do("after_call", lambda callback: reached.append(callback.trainer.global_step))
    with pytest.raises(WorkerError, match="SIGKILL"):
        run("killed", Do("trigger_step", kill, 20), watch)
    assert load_checkpoint(tmp_path / "killed").step == reached[-1] >= 20
    ends = [run(name).get_weights() for name in ("killed", "undisturbed")]
    assert_same(*ends)
