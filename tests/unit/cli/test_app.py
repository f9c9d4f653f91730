from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
from typer.testing import CliRunner

import towerpack
from towerpack.checkpoint import CheckpointStore
from towerpack.cli import app


def test_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"towerpack {towerpack.__version__}\n")


def test_help_and_an_unknown_command() -> None:
    for arguments in ([], ["--help"]):
        assert "--version" in CliRunner().invoke(app, arguments).output
    result = CliRunner().invoke(app, ["frobnicate"])
    assert result.exit_code == 2
    assert "frobnicate" in result.output


def test_module_runs_as_a_program_and_loads_no_framework(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(3))
    with CheckpointStore(tmp_path / "checkpoints") as store:
        store.save(7, {"model": {"fc/kernel": np.ones((2, 3))}})
    program = """
import runpy, sys
for arguments in (["--version"], ["data", "inspect", "x.npy"], ["ckpt", "show", "."]):
    sys.argv[1:] = arguments
    try:
        runpy.run_module("towerpack", run_name="__main__")
    except SystemExit as end:
        assert not end.code
print({"tensorflow", "keras"} & sys.modules.keys())
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.startswith(f"towerpack {towerpack.__version__}\n")
    assert "NumpyData(x.npy)" in done.stdout and "fc/kernel" in done.stdout
    assert done.stdout.endswith("set()\n")
