"""What reads runs in a bucket: commands, predictors, weights for other runs, applications."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from s3_server import s3_server
from small_training import Model, X, train
from towerpack import ConfigError, logger
from towerpack._core.remote_path import RemotePath
from towerpack.apps import Runner, find_recipe
from towerpack.callbacks import MinSaver, ModelSaver
from towerpack.checkpoint import load_checkpoint, remote_run
from towerpack.cli import app
from towerpack.inference import Predictor, load_exported
from towerpack.training.state.run_dir import choose_run_dir, run_files
from towerpack.training.trainers.base import Trainer

URL = "s3://bucket/runs/small"


@pytest.fixture(scope="module", autouse=True)
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    with s3_server("bucket"), pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOWERPACK_RUN_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(remote_run, "PAUSE_S", 0.05)
        yield train(URL, [ModelSaver(keep=2), MinSaver("cost")], monitors=None, max_epoch=3)


def run(*words: str) -> str:
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, list(words))
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


def test_commands(tmp_path: Path) -> None:
    assert f"{URL}" in run("runs", "ls", "s3://bucket") and "Complete" in run("runs", "ls", URL)
    shown = json.loads(run("runs", "show", URL, "--json"))
    assert (shown["run"], shown["step"], shown["running"]) == (URL, 18, False)
    assert [c["step"] for c in shown["checkpoints"] if c["tag"] is None] == [12, 18]
    assert f"{URL}: " in run("runs", "plot", URL)
    assert URL in run("runs", "compare", URL, URL)
    assert "12" in run("ckpt", "ls", URL, "--check")
    assert "fc0/kernel" in run("ckpt", "show", URL)
    assert "0 differ" in run("ckpt", "diff", URL, f"{URL}/checkpoints/step-00000018")


def test_predictor_and_initial_weights(trained: Trainer, tmp_path: Path) -> None:
    expected = trained.get_predictor(outputs="out")(X)[0]
    assert np.array_equal(Predictor(Model(), URL, outputs="out")(X)[0], expected)
    best = Predictor(Model(), URL, outputs="out", tag="best-cost")
    assert best.step == load_checkpoint(URL, tag="best-cost").step
    other = train(tmp_path / "other", init=URL, max_epoch=1, model=Model(rate=0.0))
    assert other.global_step == 6
    resumed = train(tmp_path / "resumed", resume=URL, max_epoch=4)
    assert resumed.global_step == 24
    with pytest.raises(ConfigError, match="would delete s3://bucket/runs/small"):
        train("s3://bucket/runs", init=URL, on_existing="delete")


def test_new_directories_and_logger() -> None:
    assert train(URL, resume="never", max_epoch=1).global_step == 6
    assert load_checkpoint(URL).step == 18
    with pytest.raises(ConfigError, match="exists already"):
        train(URL, on_existing="error")
    try:
        logger.set_logger_dir("s3://bucket/logged")
        trainer = train(None, [ModelSaver()], max_epoch=1, fast_dev_run=True)  # type: ignore[arg-type]
        assert load_checkpoint("s3://bucket/logged-fast-dev-run").step == trainer.global_step == 1
    finally:
        choose_run_dir(None)


def test_an_application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "s3://bucket/digits"
    settings = ["train.epochs=1", "train.steps_per_epoch=2"]
    run("train", "digits", *settings, "--run-dir", url)
    monkeypatch.setenv("TOWERPACK_RUN_CACHE", str(tmp_path / "elsewhere"))
    runner = Runner.from_recipe(find_recipe(url))
    assert runner.checkpoint().step == 2 and runner.evaluate().step == 2
    assert "step 2" in run("eval", url)
    version = Path(run("export", url).rpartition("exported: ")[2].strip())
    for file in version.rglob("*"):
        if file.is_file():
            name = file.relative_to(version).as_posix()
            RemotePath(f"{url}/export/saved_model/1/{name}").upload(file)
    monkeypatch.setenv("TOWERPACK_RUN_CACHE", str(tmp_path / "server"))
    served = run_files(url, "export") / "export/saved_model/1"
    assert load_exported(served).signatures


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({}, "There is no s3://absent"),
        ({"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}, "access was denied"),
    ],
)
def test_errors_come_before_training(change: Any, text: str, monkeypatch: Any) -> None:
    for name, value in change.items():
        monkeypatch.delenv(name) if value is None else monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", "/nonexistent")
    program = f"""
        from small_training import train
        train({"s3://bucket/x" if change else "s3://absent/x"!r})
    """
    support = str(Path(__file__).parents[1] / "support")
    paths = os.pathsep.join([support, *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(line.strip() for line in program.splitlines())],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and text in done.stderr
    assert "Epoch 1" not in done.stderr


def test_local_runs_need_nothing_of_it(tmp_path: Path) -> None:
    program = f"""
import sys
from small_training import ModelSaver, train
from towerpack.checkpoint import load_checkpoint
train({str(tmp_path / "run")!r}, [ModelSaver()], max_epoch=1)
load_checkpoint({str(tmp_path / "run")!r})
names = ("fsspec", "s3fs", "aiohttp", "botocore", "towerpack.checkpoint.remote")
print([name for name in sys.modules if name.startswith(names)])
"""
    support = str(Path(__file__).parents[1] / "support")
    paths = os.pathsep.join([support, *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "[]"
