"""The example for Ray Train, where Ray is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from towerpack.checkpoint import load_checkpoint

EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_launch.py"

pytestmark = pytest.mark.slow


def test_it_trains_under_ray(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    done = subprocess.run([sys.executable, EXAMPLE, tmp_path / "run"], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    kernel = load_checkpoint(tmp_path / "run").model["line/kernel"]
    assert kernel[:, 0] == pytest.approx([1.0, -2.0, 0.5], abs=0.01)
