"""What steps do on GPUs, as far as it shows without one."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from scaling import SCALE
from warm_python import warm_python

SUPPORT = Path(__file__).parents[2] / "support"
FAST = ["mlp", "staged", "replicas", "lstm", "resnet20", "resnet20-xla"]
LAUNCHES = {"resnet20": 500, "resnet20-xla": 20}
# The loss scale has a condition of its own.
WAITS = {"float16": 2}


@pytest.fixture(scope="module")
def reports() -> list[dict[str, Any]]:
    names = [] if SCALE == 1 else FAST
    command = [*warm_python(), str(SUPPORT / "gpu_audit.py"), *names]
    environment = {**os.environ, "PYTHONPATH": f"{SUPPORT}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"case"')]


def test_the_host_waits_at_most_once_per_step(reports: list[dict[str, Any]]) -> None:
    waits = {r["case"]: r["step"] for r in reports if len(r["step"]) > WAITS.get(r["case"], 1)}
    assert waits == {}


def test_the_host_waits_for_no_iteration_of_an_inner_loop(reports: list[dict[str, Any]]) -> None:
    assert {r["case"]: r["iteration"] for r in reports if r["iteration"]} == {}


def test_everything_has_a_kernel_for_gpus(reports: list[dict[str, Any]]) -> None:
    assert {r["case"]: r["without_kernel"] for r in reports if r["without_kernel"]} == {}


def test_everything_has_a_deterministic_kernel(reports: list[dict[str, Any]]) -> None:
    assert {r["case"]: r["random_order"] for r in reports if r["random_order"]} == {}


def test_few_kernels_are_launched(reports: list[dict[str, Any]]) -> None:
    launches = {r["case"]: r["launches"] for r in reports if r["case"] in LAUNCHES}
    assert launches and all(n <= LAUNCHES[case] for case, n in launches.items()), launches


def test_replicas_average_gradients_by_collectives(tmp_path: Path) -> None:
    """GPUs do so, where CPUs add on one device."""
    command = [*warm_python(), str(Path(__file__).with_name("ring_program.py")), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert "COLLECTIVE [False, True, False, True]" in done.stdout, f"{done.stdout}\n{done.stderr}"
