"""The benchmark runs, and both of its contenders do the same work. No times are asserted."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "dataflow_arrays.py"


@pytest.fixture(scope="module")
def benchmark_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dataflow_arrays", SCRIPT)
    if spec is None or spec.loader is None:
        raise ImportError(SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_runs(benchmark_module: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark_module.compare(num_images=600, rounds=1) > 0
    assert set(benchmark_module.small_batches(count=50, rounds=1)) == {32, 128}
    assert "ratio" in capsys.readouterr().out


def test_both_do_the_same(benchmark_module: ModuleType) -> None:
    labels = np.arange(600)
    images = np.zeros((600, 32, 32, 3), np.uint8)
    images[:, :, :16] = 1
    images[:, 0, 0, 0] = labels % 256
    for batches in (
        benchmark_module.flow(images, labels).iterate(seed=1),
        benchmark_module.by_hand(images, labels, 1),
    ):
        found = list(batches)
        assert [len(x) for x, _ in found] == [128] * 4
        seen = np.concatenate([y for _, y in found])
        assert len(set(seen.tolist())) == 512
        flipped = np.concatenate([x[:, 5, 31, 0] for x, _ in found])
        assert 200 < flipped.sum() < 312
        assert not np.array_equal(seen, np.sort(seen))
