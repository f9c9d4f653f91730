"""The search for steps that stand out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from towerpack import ConfigError
from towerpack.callbacks.monitors import JSONLMonitor
from towerpack.training import Spike, spikes


def run_of(path: Path, costs: np.ndarray) -> Path:
    costs.astype("<f4").tofile(path / "step_costs.f32")
    return path


@pytest.mark.parametrize("window", [3, 11, 101, 999])
@pytest.mark.parametrize("length", [1, 5, 300])
def test_records_are_those_of_the_definition(tmp_path: Path, window: int, length: int) -> None:
    rng = np.random.default_rng(length)
    costs = rng.gamma(2, size=length).astype(np.float32)
    costs[rng.random(length) < 0.1] = np.nan  # steps that did not run
    costs[length // 2] = 50
    known = np.flatnonzero(~np.isnan(costs))
    expected = []
    for i, index in enumerate(known):
        size = min(window, len(known))
        start = min(i - i % size, len(known) - size)
        near = np.sort(costs[known[start : start + size]].astype(np.float64))
        median = near[size // 2]
        scale = 1.4826 * np.sort(np.abs(near - median))[size // 2]
        z = (costs[index] - median) / scale if scale else 0.0
        expected.append(Spike(int(index) + 1, float(costs[index]), median, z))
    found = spikes(run_of(tmp_path, costs), top=length, window=window)
    assert [abs(s.z) for s in found] == sorted((abs(s.z) for s in found), reverse=True)
    for ours, theirs in zip(sorted(found), expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)


@pytest.mark.parametrize("base", ["noise", "constant", "falling"])
def test_planted_spikes_come_first(tmp_path: Path, base: str) -> None:
    n = 50_000
    noise = np.random.default_rng(0).normal(size=n)
    costs = {"noise": noise, "constant": np.zeros(n), "falling": noise + 1e6 / np.arange(9, n + 9)}
    planted = {1, 7000, 7001, 33_333, n}
    values = costs[base]
    values[np.array(sorted(planted)) - 1] += 2e5
    if base != "constant":
        values[99] = np.inf
        planted.add(100)
    found = spikes(run_of(tmp_path, values), top=len(planted))
    assert {s.step for s in found} == planted


def test_numbers_of_the_monitors(tmp_path: Path) -> None:
    monitor = JSONLMonitor(tmp_path / "stats.jsonl")
    for step in range(10, 1000, 10):
        monitor.put_scalar("grad_norm", float("nan") if step == 50 else step % 7, step)
        if step == 500:
            monitor.put_scalar("grad_norm", -99.0, step)
    monitor.close()
    first = spikes(tmp_path, number="grad_norm")[0]
    assert first[:2] == (500, -99) and first.z < -10
    with pytest.raises(ConfigError, match="has no 'gradnorm'"):
        spikes(tmp_path, number="gradnorm")


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no costs of single steps"):
        spikes(tmp_path)
    with pytest.raises(ConfigError, match="no costs of single steps"):
        spikes(run_of(tmp_path, np.full(9, np.nan)))
    with pytest.raises(ConfigError, match="has no 'cost'"):
        spikes(tmp_path, number="cost")
    with pytest.raises(ConfigError, match="top must be"):
        spikes(tmp_path, top=0)
