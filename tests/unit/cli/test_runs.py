from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from towerpack.callbacks.monitors import JSONLMonitor
from towerpack.checkpoint import CheckpointStore
from towerpack.cli import app
from towerpack.training import RunDir
from towerpack.training._clock import Clock
from towerpack.training._ledger import Ledger


def show(*arguments: Any) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["runs", "show", *map(str, arguments)])
    return result.exit_code, result.stdout


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Killed at step 130, gone on from step 100, open."""
    directory = RunDir(tmp_path / "run")
    directory.record_start(seed=5)
    for resumed_at, step in ((None, 130), (100, 200)):
        ledger = Ledger(directory.ledger, Clock(), step=lambda at=step: at, resumed_at=resumed_at)
        ledger.beat()
    monitor = JSONLMonitor(directory.stats)
    monitor.at(200, 2)
    monitor.put_scalar("cost", 0.25, 200)
    monitor.put_scalar("odd", float("nan"), 200)
    monitor.close()
    with CheckpointStore(directory.checkpoints) as store:
        store.save(100, {"model": {}}, {})
    assert "running" in show(directory.path)[1]
    directory.close()
    return directory.path


def test_show(run: Path) -> None:
    code, text = show(run)
    assert code == 0
    rows = [line.split() for line in text.splitlines()]
    ((first, second),) = [[row for row in rows if "killed" in row]]
    assert (first[0], first[3:]) == ("1", ["0", "to", "130", "30", "killed"])
    assert (second[0], second[3:]) == ("2", ["100", "to", "200", "killed"])
    assert "Epoch 2, step 200: cost 0.25, odd nan" in text
    assert "goodput 0.0%" in text
    assert any(row[:1] == ["100"] and row[-1] == "whole" for row in rows)


def test_json(run: Path) -> None:
    code, text = show(run, "--json")
    tree = json.loads(text)
    assert code == 0
    assert [life["lost_steps"] for life in tree["lives"]] == [30, 0]
    assert tree["values"] == {"cost": 0.25, "odd": "nan"}
    assert [row["step"] for row in tree["checkpoints"]] == [100]
    assert (tree["seed"], tree["running"], tree["epoch"], tree["step"]) == (5, False, 2, 200)
    lives = tree["lives"]
    wall = lives[-1]["ended"] - lives[0]["began"]
    assert sum(tree["seconds"].values()) == pytest.approx(wall, abs=1e-5)


@pytest.mark.parametrize("name", ["missing", "empty", "damaged"])
def test_what_is_no_run(tmp_path: Path, name: str) -> None:
    if name != "missing":
        (tmp_path / name).mkdir()
    if name == "damaged":
        (tmp_path / name / "run.json").write_text("[")
    assert show(tmp_path / name)[0] == 1


def test_a_run_that_has_just_begun(tmp_path: Path) -> None:
    with RunDir(tmp_path) as directory:
        directory.record_start(seed=5)
    code, text = show(tmp_path)
    assert code == 0
    assert "No values yet" in text
