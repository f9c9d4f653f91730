"""What a training tells whoever watches it: at its start, for each epoch, at its end."""

from __future__ import annotations

import logging
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from small_training import LINE, Do, flow, train
from towerpack.callbacks import Callback, ModelSaver
from towerpack.inputs import QueueInput
from towerpack.training import StopTraining
from warm_python import warm_python

PROGRAM = """
import sys; sys.path.insert(0, {support!r})
from towerpack import *
from small_training import SPECS, flow
import keras, tensorflow as tf

def build(x, y):
    for i in range(9):
        x = BatchNorm(f"bn{{i}}", FullyConnected(f"fc{{i}}", x, 3))
    return tf.reduce_mean(tf.square(x[:, 0] - y))

SimpleTrainer(TrainConfig(model=(SPECS, build, keras.optimizers.SGD), dataflow=flow(), max_epoch=2,
    seed=0, run_dir={run!r}, callbacks=[ModelSaver(), MinSaver("cost")])).train()
"""


def test_piped(tmp_path: Path) -> None:
    run = tmp_path / "run"
    program = PROGRAM.format(support=str(Path(__file__).parents[1] / "support"), run=str(run))
    done = subprocess.run([*warm_python(), "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    table = [line for line in lines if line.startswith("  ")]
    assert table[0] == "  fc0/kernel           [3, 3]  9"
    assert table[4] == "  bn0/moving_mean      [3]     3  not trained"
    assert table[10] == "  ... and 44 more, in log.txt"
    parts = ["productive", "compile", "data_wait", "save", "callbacks"]
    assert [line.split()[0] for line in table[11:]] == parts
    told = [line.partition(" ")[2] for line in lines if line not in table]
    assert told[:2] == [
        f"Run directory: {run}. Training: 2 epochs of 6 steps.",
        "The model has 54 variables with 216 numbers, 54 of them not trained:",
    ]
    header, first, second, _, end = told[2:]  # an epoch is one row
    assert header.split()[:4] == ["epoch", "step", "time", "cost"]
    assert first.split()[:2] == ["1", "6"]
    assert second.split()[:2] == ["2", "12"]
    assert re.search(r" \d\.\d+\* .* 0:00 left$", second)  # the star marks the best cost
    best = run / "checkpoints" / "best-cost-00000012"
    assert end.startswith("Complete: epoch 2 of 2, step 12; best cost ")
    assert end.endswith(f" in {best}.")
    # What is not shown is in the log.
    log = (run / "log.txt").read_text()
    assert [text for text in told if text not in log] == []
    assert "  bn8/moving_variance  [3]     3  not trained\n" in log
    assert "cost is best so far: " in log
    assert "more, in log.txt" not in log


def ending(run_dir: Path, caplog: pytest.LogCaptureFixture, *args: Any, **kwargs: Any) -> str:
    with caplog.at_level(logging.INFO, "towerpack"):
        train(run_dir, *args, model=LINE, **kwargs)
    return caplog.records[-1].message


def test_how_it_ended(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def stop(callback: Callback) -> None:
        raise StopTraining("good enough")

    newest = tmp_path / "0" / "checkpoints" / "step-00000006"
    told = ending(tmp_path / "0", caplog, [Do("trigger", stop), ModelSaver()])
    assert told == f"Stopped (good enough): epoch 1 of 2, step 6; newest checkpoint in {newest}."
    told = ending(tmp_path / "1", caplog, [Do("trigger", lambda c: c.trainer.request_stop())])
    assert told == "Stopped: epoch 1 of 2, step 6; nothing was saved."
    source = QueueInput(flow(), infinite=False)
    told = ending(tmp_path / "2", caplog, data=source, steps_per_epoch=4)
    assert told == "The data ended: epoch 2 of 2, step 6; nothing was saved."
    told = ending(tmp_path / "3", caplog)
    assert told == "Complete: epoch 2 of 2, step 12; nothing was saved."
    enough = Do("trigger", lambda c: c.trainer.request_stop("enough"))
    told = ending(tmp_path / "4", caplog, [enough])
    assert told == "Stopped (enough): epoch 1 of 2, step 6; nothing was saved."
    told = ending(tmp_path / "0", caplog, [ModelSaver()], max_epoch=2)
    told = ending(tmp_path / "0", caplog, [ModelSaver()], max_epoch=1)
    assert told.startswith("Complete: epoch 2, more than max_epoch=1, step 12; ")


def test_a_failure_is_its_own_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail(callback: Callback) -> None:
        raise KeyError("odd")

    with pytest.raises(KeyError):
        ending(tmp_path, caplog, [Do("trigger", fail)])
    assert "nothing was saved" not in caplog.text
