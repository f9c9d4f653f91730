from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from rich.text import Text
from typer.testing import CliRunner

from towerpack import ConfigError
from towerpack._display.figures import draw_confusion, pixels_of
from towerpack.callbacks.monitors import JSONLMonitor, Monitors
from towerpack.checkpoint import CheckpointStore
from towerpack.cli import app
from towerpack.cli._app import main
from towerpack.training import RunDir
from towerpack.training.state.clock import Clock
from towerpack.training.state.ledger import Ledger


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
    monitor.set_step(200, 2)
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
    assert sum(row[:1] == ["100"] and row[-1] == "whole" for row in rows) == 1


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


@pytest.mark.parametrize("name", ["run.json", "ledger.jsonl", "stats.jsonl", ".lock"])
def test_a_pipe_in_a_run_is_refused_and_not_waited_for(run: Path, name: str) -> None:
    (run / name).unlink()
    os.mkfifo(run / name)
    result = CliRunner().invoke(app, ["runs", "show", str(run)])
    assert isinstance(result.exception, ConfigError)
    assert f"{run / name} must be a file, not" in str(result.exception)


def test_texts_of_a_run_cannot_steer_the_terminal(run: Path) -> None:
    monitor = JSONLMonitor(run / "stats.jsonl")
    monitor.put_scalar("a\x1b]0;title\x07\x9b2J\r", 0.5, 300)
    monitor.close()
    lines = (run / "ledger.jsonl").read_text().splitlines()
    end = {**json.loads(lines[-1]), "event": "end", "ending": ["\x1b[2Jdone"]}
    (run / "ledger.jsonl").write_text("\n".join([*lines, json.dumps(end)]) + "\n")
    for command in ("show", "ls", "compare", "plot"):
        result = CliRunner().invoke(app, ["runs", command, str(run)])
        assert result.exit_code == 0 and result.stdout, command
        assert not {"\x1b", "\x07", "\x9b", "\r"} & {*result.stdout}, command


def test_errors_cannot_steer_the_terminal(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["towerpack", "runs", "show", f"{tmp_path}/\x1b[31m"])
    with pytest.raises(SystemExit):
        main()
    assert (
        "/\\x1b[31m is not a run directory" in (told := capsys.readouterr().err)
        and "\x1b" not in told
    )


def test_a_run_that_has_just_begun(tmp_path: Path) -> None:
    with RunDir(tmp_path) as directory:
        directory.record_start(seed=5)
    code, text = show(tmp_path)
    assert code == 0
    assert "No values yet" in text


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Two runs of different seeds and lengths."""
    for name, seed, steps in (("a", 1, 20), ("b", 2, 40)):
        with RunDir(tmp_path / name) as directory:
            directory.record_start(seed=seed, config={"model": f"<M at 0x{seed}f>", "xla": False})
            directory.record_settings({"model": "M", "optimizer.momentum": seed / 2})
            monitors = Monitors([JSONLMonitor(directory.stats)])
            for step in range(10, steps + 1, 10):
                monitors.set_step(step, step // 10)
                monitors.put_scalar("cost", seed / step)
                monitors.put_scalar("val/error", float("nan") if step == 10 else 0.5)
                monitors.put_scalar("time/save", 3)
                monitors.put_scalar(f"of_{name}", 1 if seed == 2 else float("nan"))
            monitors.close()
    return tmp_path


def runs(*arguments: Any) -> str:
    result = CliRunner().invoke(app, ["runs", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_ls(two: Path) -> None:
    rows = [line.split() for line in runs("ls", two).splitlines()]
    [(a, b)] = [[row for row in rows if row and row[0] in (str(two / "a"), str(two / "b"))]]
    assert ["run", "state", "step", "epoch", "cost", "val/error", "began"] in rows
    assert a[-6:-2] == ["20", "2", "0.05", "0.5"]
    assert b[-6:-4] == ["40", "4"]
    with pytest.raises(ConfigError, match="contains no runs"):
        runs("ls", two / "a" / "nothing")


def test_ls_leaves_out_what_a_narrow_terminal_has_no_room_for(
    two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(two)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "45")
    lines = Text.from_ansi(runs("ls", ".")).plain.splitlines()
    assert all(len(line) <= 45 for line in lines)
    assert ["run", "state", "step", "epoch", "cost"] in [line.split() for line in lines]
    assert "No room for: val/error, began" in "\n".join(lines)


def test_compare(two: Path) -> None:
    text = runs("compare", two / "a", two / "b")
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}
    assert rows["seed"] == ["1", "2"] and rows["optimizer.momentum"] == ["0.5", "1.0"]
    assert rows["cost"] == ["0.05", "0.05", "to", "0.1", "0.05", "0.05", "to", "0.2"]
    assert "model" not in rows and "xla" not in rows
    assert "val/error" not in runs("compare", two / "a", two / "b", "--match", "^cost")


def test_compare_shows_what_the_recipes_say(two: Path) -> None:
    for name, network in (("a", "lenet"), ("b", "resnet20")):
        text = f"data: {{size: [8, 8], path: x}}\nmodel: {{network: {network}}}\n"
        (two / name / "recipe.yaml").write_text(text + f"optimizer: {{name: of-{name}}}\n")
    text = runs("compare", two / "a", two / "b")
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}
    assert rows["model.network"] == ["lenet", "resnet20"]
    assert rows["optimizer.name"] == ["of-a", "of-b"]
    assert "data.size" not in rows and "data.path" not in rows  # which are the same


@pytest.mark.parametrize("name", ["val/$\\frac$", "val/$a$ $"])
def test_names_are_drawn_neither_as_formulas_nor_by_latex(
    two: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A `matplotlibrc` in the working directory may set this, and LaTeX can write files.
    monkeypatch.setitem(matplotlib.rcParams, "text.usetex", True)
    line = {"step": 9, "epoch": 9, "time": 9.0, "scalars": {name: 1.0}}
    with open(two / "a" / "stats.jsonl", "a") as stats:
        stats.write(json.dumps(line) + "\n")
    runs("plot", two / "a", "--match=[$]", "-o", two / "curves.png")
    assert (two / "curves.png").stat().st_size
    assert pixels_of(draw_confusion(np.eye(2), [name, "b"])).size


def test_plot(two: Path) -> None:
    text = runs("plot", two / "a", two / "b")
    assert "val/error" in text and "time/save" not in text
    lines = text[: text.rindex("val/error")].splitlines()
    drawn = [line for line in lines if any(0x2800 < ord(c) < 0x2900 for c in line)]
    assert len(drawn) == 12
    assert "0.2" in drawn[0] and "0.05" in drawn[-1]
    path = two / "curves.png"
    runs("plot", two / "a", two / "b", "-o", path)
    assert path.read_bytes().startswith(b"\x89PNG")
    path = two / "curves.svg"
    text = runs("plot", two / "a", two / "b", "--match=.", "-o", path)
    assert "of_a: skipped 2 values that are not finite" in text
    # A colour for each run: in three pictures and the legend, and where one alone has the number.
    lines = [f"stroke: {colour}; stroke-width: 1.5" for colour in ("#1f77b4", "#ff7f0e")]
    assert [path.read_text().count(line) for line in lines] == [4, 5]
    for arguments, message in (
        (["--match", "of_a"], "All values of of_a are NaN"),
        (["--match", "cosst"], "Did you mean 'cost'"),
        (["--match", "("], "is not a regular expression"),
        (["-o", two / "curves.doc"], "curves.png"),
    ):
        with pytest.raises(ConfigError, match=message):
            runs("plot", two / "a", *arguments)
