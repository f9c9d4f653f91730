from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from towerpack.checkpoint import CheckpointStore
from towerpack.cli import app


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two checkpoints, the older also kept as the best."""
    with CheckpointStore(tmp_path / "checkpoints", clock=lambda: 1e9) as store:
        for step in (1000, 2000):
            kernel = np.array([[1, 2], [3, math.nan]], np.float32)
            model = {"conv0/kernel": kernel, "conv0/[bias]": np.array([math.inf, 0.5])}
            slots = {"iterations": np.array(step), "empty": np.zeros((0, 3), np.uint8)}
            state = {"epoch": step // 1000, "data": {"position": 17}, "[x]": "text"}
            store.save(step, {"model": model, "optimizer": slots}, state)
        store.keep_as(1000, "best-val/error", info={"val/error": 0.07123456})
    return tmp_path


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def towerpack(*arguments: Any) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    return result.exit_code, result.stdout


def row(text: str, start: str) -> str:
    (found,) = [line for line in text.splitlines() if line.strip().startswith(start)]
    return " ".join(found.split())


def test_ls(run: Path) -> None:
    code, text = towerpack("ckpt", "ls", run)
    assert code == 0
    assert "best-val/error" in text
    assert "val/error 0.07123" in text
    assert row(text, "2,000").startswith("2,000")
    assert row(text, "2,000").endswith("whole")
    assert "2001-09-0" in text
    assert "A resume would go on from step 2,000." in text
    assert "--check does" in text


def test_ls_finds_flipped_bits_on_request(run: Path) -> None:
    flip(run / "checkpoints" / "step-00002000" / "model.safetensors")
    assert "damaged" not in towerpack("ckpt", "ls", run)[1]
    assert towerpack("ckpt", "ls", run, "--check", "--json")[0] == 1
    code, text = towerpack("ckpt", "ls", run / "checkpoints", "--check")
    assert code == 1
    assert "damaged: model.safetensors is damaged (its checksum does not fit)" in text
    assert "A resume would go on from step 1,000. 1 damaged." in text
    assert "--check does" not in text


def test_ls_of_whole_ones_with_check(run: Path) -> None:
    code, text = towerpack("ckpt", "ls", run, "--check")
    assert (code, text.count(" valid")) == (0, 3)


def test_ls_of_nothing_loadable(run: Path) -> None:
    for path in (run / "checkpoints").glob("*/manifest.json"):
        path.unlink()
    code, text = towerpack("ckpt", "ls", run)
    assert code == 0
    assert text.count("manifest.json is missing") == 3
    assert "There is nothing that could be loaded. 3 damaged." in text


def test_ls_of_a_run_that_has_not_saved(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    code, text = towerpack("ckpt", "ls", tmp_path)
    assert (code, text.endswith("yet.\n")) == (0, True)


def test_ls_for_programs(run: Path) -> None:
    _, text = towerpack("ckpt", "ls", run, "--json")
    rows = [json.loads(line) for line in text.splitlines()]
    assert [(r["step"], r["tag"], r["valid"]) for r in rows] == [
        (1000, "best-val/error", True),
        (1000, None, True),
        (2000, None, True),
    ]
    assert rows[0]["info"] == {"val/error": 0.07123456}


def test_show(run: Path) -> None:
    code, text = towerpack("ckpt", "show", run)
    assert code == 0
    assert "model: 2 tensors, 6 numbers" in text
    assert row(text, "conv0/kernel") == "conv0/kernel 2 × 2 float32 16 B 2 0.8165 1 3 1"
    assert row(text, "conv0/[bias]") == "conv0/[bias] 2 float64 16 B 0.5 0 0.5 0.5 1"
    assert row(text, "iterations") == "iterations scalar int64 8 B 2000 0 2000 2000"
    assert row(text, "empty") == "empty 0 × 3 uint8 0 B"
    assert row(text, "epoch") == "epoch int 2"
    assert row(text, "data") == "data dict {'position': 17}"
    assert row(text, "[x]") == "[x] str text"
    assert f"numpy {np.__version__}" in text


def test_show_one_and_a_tag(run: Path) -> None:
    assert "2,000" in towerpack("ckpt", "show", run / "checkpoints" / "step-00002000")[1]
    text = towerpack("ckpt", "show", run, "--tag", "best-val/error")[1]
    assert row(text, "kept as") == "kept as best-val/error"
    assert row(text, "noted") == "noted val/error 0.07123"


def test_show_some_tensors(run: Path) -> None:
    text = towerpack("ckpt", "show", run, "--match", "kern.l$")[1]
    assert "model: 1 tensors, 4 numbers (of 2 tensors)" in text
    assert "bias" not in text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["ls", "absent"], "CheckpointError: No checkpoints at"),
        (["show", "absent"], "got       nothing there"),
        (["show", ".", "--match", "("], "ConfigError: --match '('"),
    ],
)
def test_errors_are_told_without_a_traceback(
    tmp_path: Path, arguments: list[str], told: str
) -> None:
    command = [sys.executable, "-m", "towerpack", "ckpt", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert told in done.stderr
    assert "to fix" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_damaged_checkpoint_is_an_error(run: Path) -> None:
    flip(run / "checkpoints" / "step-00002000" / "state.json")
    path = run / "checkpoints" / "step-00002000"
    command = [sys.executable, "-m", "towerpack", "ckpt", "show", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "state.json is damaged" in done.stderr


def test_it_loads_no_framework(run: Path) -> None:
    program = f"""
import sys
from towerpack.cli import app
app(["ckpt", "show", {str(run)!r}], standalone_mode=False)
print({{"tensorflow", "keras"}} & sys.modules.keys())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.endswith("set()\n"), done.stderr
