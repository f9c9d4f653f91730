"""The benchmark runs, and Towerpack loads what a loop by hand loads. No times are asserted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scaling import only_in_full

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


PARTS = ["photos", "mapped", "tiny", "holding", "memory", "lmdb", "pss"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@only_in_full
@pytest.mark.parametrize("part", PARTS)
def test_runs(part: str, data: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "data_loading.py"), "--quick", "--without-peers"]
    command += ["--rounds", "1", "--only", part, "--data", str(data)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert "## " in done.stdout
    if part not in ("lmdb", "pss"):
        assert "| **Towerpack** |" in done.stdout
