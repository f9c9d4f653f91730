"""`towerpack runs rewind`: a run continues from an earlier checkpoint, and later ones are kept."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from small_training import LINE, assert_same, train
from towerpack import ConfigError
from towerpack.callbacks import MinSaver, ModelSaver, PeriodicTrigger
from towerpack.callbacks.monitors import read_stats
from towerpack.checkpoint import list_abandoned, list_checkpoints, load_checkpoint
from towerpack.cli import app
from towerpack.training import RunDir
from towerpack.training.replay.rewind import rewind
from towerpack.training.state.ledger import read_ledger
from warm_python import warm_python

LATER = ["best-cost-00000018", "step-00000009", "step-00000012", "step-00000015", "step-00000018"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints of steps 3, 6, … 18, of which the last is the best."""
    return run(tmp_path_factory.mktemp("finished") / "run").run_dir


def abandoned(run: Path) -> list[str]:
    return [path.name for path in list_abandoned(run)]


def run(where: Path) -> Any:
    callbacks = [MinSaver("cost"), PeriodicTrigger(ModelSaver(keep=None), every_k_steps=3)]
    return train(where, callbacks, model=LINE, monitors=None, max_epoch=3)


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "run")


def test_a_rewound_run_ends_as_before(copy: Path, finished: Path) -> None:
    done = CliRunner().invoke(app, ["runs", "rewind", str(copy), "--to", "8"])
    assert done.exit_code == 0 and "continues from step 6" in done.output, done.output
    shown = CliRunner().invoke(app, ["ckpt", "ls", str(copy)]).output
    assert "abandoned-step-00000009" in shown and "continues from step 6" in shown
    assert abandoned(copy) == [f"abandoned-{name}" for name in LATER]
    assert [row.step for row in list_checkpoints(copy)] == [3, 6]
    again = run(copy)
    assert read_ledger(copy / "ledger.jsonl")[-1].from_step == 6
    assert_same(again.get_weights(), dict(load_checkpoint(finished).model))
    ours, theirs = (
        [
            (r.step, r.scalars["cost"])
            for r in read_stats(path / "stats.jsonl")
            if "cost" in r.scalars
        ]
        for path in (copy, finished)
    )
    assert ours == theirs
    assert len(abandoned(copy)) == 5
    rewind(copy, 8)
    assert len(abandoned(copy)) == 10


@pytest.mark.parametrize("renames", range(6))
def test_killed_after_each_rename(copy: Path, renames: int) -> None:
    program = f"""
import os, pathlib
from towerpack.training.replay.rewind import rewind
rename, done = pathlib.Path.rename, []
def killing(self, target):
    if len(done) == {renames}:
        os.kill(os.getpid(), 9)
    done.append(target)
    return rename(self, target)
pathlib.Path.rename = killing
rewind(pathlib.Path({str(copy)!r}), 8)
"""
    subprocess.run([*warm_python(), "-c", program], check=False, timeout=100)
    left = [row.path.name for row in list_checkpoints(copy)]
    assert len(left) == 7 - min(renames, 5) and all(row.valid for row in list_checkpoints(copy))
    # What is left is what an earlier end of the run would have left.
    assert load_checkpoint(copy).step == [18, 15, 15, 12, 9, 6][renames]
    step, moved = rewind(copy, 8)
    assert (step, len(moved)) == (6, 5 - min(renames, 5))
    assert load_checkpoint(copy).step == 6


def test_tagged_and_damaged_checkpoints(copy: Path) -> None:
    (copy / "checkpoints" / "step-00000006" / "model.safetensors").write_bytes(b"x")
    assert rewind(copy, 7)[0] == 3
    shutil.rmtree(copy / "checkpoints" / "step-00000003")
    with pytest.raises(ConfigError, match="not trained step 19") as caught:
        rewind(copy, 19)
    assert "1 to 18" in str(caught.value)


def test_what_cannot_be_rewound(copy: Path, tmp_path: Path) -> None:
    before = sorted(os.listdir(copy / "checkpoints"))
    for step, message in [(2, "no valid checkpoint"), (19, "not trained"), (-1, "not trained")]:
        done = CliRunner().invoke(app, ["runs", "rewind", str(copy), f"--to={step}"])
        assert done.exit_code and message in str(done.exception)
    with RunDir(copy):
        with pytest.raises(ConfigError, match="in use"):
            rewind(copy, 6)
    with pytest.raises(ConfigError, match="not a run"):
        rewind(tmp_path / "none", 6)
    assert not (tmp_path / "none").exists()
    assert sorted(os.listdir(copy / "checkpoints")) == before
    assert np.isfinite(rewind(copy, 18)[0]) and sorted(os.listdir(copy / "checkpoints")) == before
