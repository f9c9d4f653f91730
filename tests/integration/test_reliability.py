"""Lines of docs/reliability.md that no other test proves."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from processes import children_of
from small_training import Do, X, Y, assert_same, train
from towerpack import WorkerError
from towerpack.callbacks import Callback, ModelSaver
from towerpack.checkpoint import load_checkpoint
from towerpack.dataflow import BatchData, DataFromArrays, MapData, PrefetchData


def test_a_killed_data_worker_costs_no_step(tmp_path: Path) -> None:
    before, go = children_of(os.getpid()), tmp_path / "go"

    # In here, where workers do not import this module, and TensorFlow, for it.
    def at_work(point: Any) -> Any:
        """From the hundredth batch on not before the kill: only who has work is missed."""
        *rest, number = point
        while number >= 800 and not go.exists():
            time.sleep(0.01)
        return rest

    def kill(callback: Callback) -> None:
        workers = [pid for pid in children_of(os.getpid()) if pid not in before]
        os.kill(workers[0], signal.SIGKILL)
        go.touch()

    def run(name: str, *callbacks: Callback) -> Any:
        points = DataFromArrays(np.tile(X, (40, 1)), np.tile(Y, 40), np.arange(1920))
        flow = PrefetchData(BatchData(MapData(points, at_work), 8), num_proc=2)
        # No save is due before the end.
        return train(tmp_path / name, [ModelSaver(), *callbacks], dataflow=flow, max_epoch=1)

    reached: list[int] = []
    watch = Do("after_call", lambda callback: reached.append(callback.trainer.global_step))
    with pytest.raises(WorkerError, match="SIGKILL"):
        run("killed", Do("trigger_step", kill, 20), watch)
    assert load_checkpoint(tmp_path / "killed").step == reached[-1] >= 20
    ends = [run(name).get_weights() for name in ("killed", "undisturbed")]
    assert_same(*ends)
