"""Programs in the predecessor's style, as a user starts them, on digits in true file formats."""

from __future__ import annotations

import math
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from digit_files import write_digits
from scaling import sample
from towerpack.callbacks.monitors import read_stats
from towerpack.checkpoint import list_checkpoints
from warm_python import warm_python

PROGRAMS = Path(__file__).parents[2] / "examples" / "from_tensorpack"


@pytest.fixture(scope="module")
def all_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("digits")
    write_digits(root)
    return root


@pytest.fixture(scope="module")
def few_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("few-digits")
    write_digits(root, only=256)
    return root


def run(where: Path, data: Path, name: str, *arguments: str) -> dict[str, list[float]]:
    """What monitors were given, by name, after the program has ended well."""
    done = subprocess.run(
        [*warm_python(), str(PROGRAMS / f"{name}.py"), *arguments],
        cwd=where,
        env={**os.environ, "TOWERPACK_DATA": str(data)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (run_dir,) = (where / "runs").iterdir()
    checkpoints = list_checkpoints(run_dir)
    assert checkpoints and all(row.valid for row in checkpoints)
    numbers: dict[str, list[float]] = {}
    for record in read_stats(run_dir / "stats.jsonl"):
        for key, value in record.scalars.items():
            numbers.setdefault(key, []).append(value)
    assert numbers["cost"] and all(map(math.isfinite, numbers["cost"]))
    return numbers


@pytest.mark.slow
def test_mnist_reaches_what_it_should(tmp_path: Path, all_digits: Path) -> None:
    # Measured, 20 epochs: see docs/from-tensorpack.md. Here a part of them.
    numbers = run(tmp_path, all_digits, "mnist_convnet", "--epochs", "3")
    assert max(numbers["val/accuracy"]) >= 0.8
    assert numbers["train_error"][-1] < 0.4 < numbers["train_error"][0]
    assert {"regularize_loss", "total_cost", "param-summary/fc0/kernel-rms"} <= numbers.keys()
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert "best-val/accuracy" in [row.tag for row in list_checkpoints(run_dir)]


@pytest.mark.slow
def test_weights_that_are_given_to_the_finished_configuration(tmp_path: Path) -> None:
    given = tmp_path / "given.npz"
    np.savez(given, **{"linear/kernel": np.zeros([28 * 28 * 3, 1]), "linear/bias": np.zeros(1)})
    numbers = run(tmp_path, tmp_path, "boilerplate", "--epochs", "1", "--load", str(given))
    assert {"val/total_costs", "total_costs", "learning_rate"} <= numbers.keys()
    said = (tmp_path / "runs" / "boilerplate" / "log.txt").read_text()
    assert f"Initial weights from {given}" in said and "linear/kernel" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments", "reported"),
    sample(
        [
            ("mnist_tfslim", [], {"val/accuracy", "param-summary/conv0/weights-rms"}),
            ("mnist_tflayers", [], {"val/accuracy", "param-summary/conv0/kernel-rms"}),
            ("mnist_visualizations", [], {"val/accuracy", "val/cross_entropy_loss"}),
            ("cifar_convnet", [], {"val/accuracy", "val/cost", "learning_rate", "accuracy"}),
            ("svhn_digit_convnet", [], {"val/accuracy", "val/cost", "regularize_cost"}),
            ("cifar10_resnet", ["-n", "1"], {"val/error", "val/cost", "learning_rate", "wd_cost"}),
        ],
    ),
)
def test_the_others_run(
    name: str, arguments: list[str], reported: set[str], tmp_path: Path, few_digits: Path
) -> None:
    numbers = run(tmp_path, few_digits, name, *arguments, "--epochs", "1")
    assert reported <= numbers.keys()
    if name == "mnist_visualizations":
        events = b"".join(path.read_bytes() for path in (tmp_path / "runs").rglob("*tfevents*"))
        assert b"weights_conv0" in events and b"activations_conv3" in events
