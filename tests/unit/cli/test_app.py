from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

import towerpack
from towerpack.cli import app


def test_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"towerpack {towerpack.__version__}\n")


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_lists_the_options(arguments: list[str]) -> None:
    assert "--version" in CliRunner().invoke(app, arguments).output


def test_unknown_command_fails() -> None:
    result = CliRunner().invoke(app, ["frobnicate"])
    assert result.exit_code == 2
    assert "frobnicate" in result.output


def test_module_runs_as_a_program() -> None:
    command = [sys.executable, "-m", "towerpack", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"towerpack {towerpack.__version__}\n"
