from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from towerpack.cli import app

PROGRAM = """
import time
from towerpack.dataflow import BatchData, DataFromList, MapData

def slowly(dp):
    time.sleep(0.003)
    return dp

def train():
    return BatchData(MapData(DataFromList([(i,) for i in range(40)]), slowly), 4)
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    (tmp_path / "program_for_profile.py").write_text(PROGRAM)
    return f"{tmp_path}/program_for_profile.py:train"


def test_profile(program: str) -> None:
    result = CliRunner().invoke(app, ["data", "profile", program, "--seconds", "0.2"])
    assert result.exit_code == 0, result.output
    assert "bottleneck  MapData(slowly) waits" in result.output
    assert all(len(line) <= 100 for line in result.output.splitlines())


def test_json_and_a_step(program: str) -> None:
    arguments = ["data", "profile", program, "--seconds", "0.3", "--step-ms", "80", "--json"]
    result = CliRunner().invoke(app, arguments)
    report = json.loads(result.stdout)
    assert report["consuming"] > 0.6
    assert [stage["name"] for stage in report["stages"]] == [
        "DataFromList(40)",
        "MapData(slowly)",
        "BatchData(4)",
    ]
    assert report["verdict"]["bottleneck"].startswith("the loop that uses the datapoints")
