"""The batch of any past step, read again, is the batch that the step consumed, byte for byte."""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import replay_program as program
from processes import free_port
from scaling import scaled
from towerpack.apps import Runner, find_recipe
from towerpack.training.replay.audit import rows_read
from towerpack.training.replay.batch import Replay
from warm_python import warm_python

STEPS = scaled(50, at_least=5)
KILLS = scaled(5, at_least=1)
ALONE = ["photographs", "mixture", "filter", "buckets", "texts", "replicas", "split"]


def start(case: str, directory: Path, workers: int = 2, **more: str) -> subprocess.Popen[str]:
    command = [*warm_python(), str(Path(program.__file__)), case, str(directory), str(workers)]
    environment = {**os.environ, **more}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def finish(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        _, errors = process.communicate(timeout=250)
        assert process.returncode == 0, errors


def assert_same(replay: Replay, record: Path, *, ids: bool = False) -> None:
    """Compare random steps with what a callback has recorded."""
    steps = random.Random(1).sample(range(1, replay.history.last + 1), STEPS)
    for step in steps:
        first = replay.history.segment_of(step).start
        files = [record / f"{step}-{worker}.npz" for worker in range(first.workers)]
        recorded = [np.load(file) for file in files]
        number = first.replicas * first.workers
        batches = [replay.batch(step, replica) for replica in range(number)]
        for name in recorded[0].files:
            ours = np.concatenate([batch.arrays[name] for batch in batches])
            theirs = np.concatenate([arrays[name] for arrays in recorded])
            assert ours.dtype == theirs.dtype
            assert ours.shape == theirs.shape
            assert ours.tobytes() == theirs.tobytes(), (step, name)
        if ids:
            rows = [origin.index for batch in batches for origin in batch.origins]
            expected = np.concatenate([arrays["id"] for arrays in recorded]) % 1000
            assert rows == expected.tolist()


def assert_counted(replay: Replay, record: Path) -> None:
    """Compare the audit with the rows in all recorded steps."""
    recorded = Counter[int]()
    for file in record.iterdir():
        recorded.update(np.load(file)["id"].tolist())
    counted = Counter[int]()
    for number, read in enumerate(rows_read(replay)[1].values()):
        counted.update({1000 * number + i: n for i, n in enumerate(read.tolist()) if n})
    assert counted == recorded


@pytest.mark.parametrize("case", ALONE)
def test_one_process(tmp_path: Path, case: str) -> None:
    finish(start(case, tmp_path))
    replay = Replay(tmp_path / "run", program.flow_of(case, tmp_path, 1))
    has_ids = case in ("mixture", "filter", "replicas", "split")
    assert_same(replay, tmp_path / "record", ids=has_ids)
    if has_ids:
        assert_counted(replay, tmp_path / "record")
    if case == "photographs":
        names = [origin.name for origin in replay.batch(1).origins]
        assert all(Path(str(name)).is_file() for name in names)
        # The configuration itself says the same.
        again = Replay(program.config_of(case, tmp_path)).batch(1)
        assert [origin.name for origin in again.origins] == names


@pytest.mark.parametrize("case", ["workers", "workers_split"])
def test_two_processes(tmp_path: Path, case: str) -> None:
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    clusters: list[Any] = [
        {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        for index in range(2)
    ]
    finish(
        *(
            start(case, tmp_path, TF_CONFIG=json.dumps(cluster), WORKER=str(index))
            for index, cluster in enumerate(clusters)
        )
    )
    replay = Replay(tmp_path / "run", program.flow_of(case, tmp_path, 1))
    assert_same(replay, tmp_path / "record", ids=True)
    assert_counted(replay, tmp_path / "record")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_application_that_is_killed(tmp_path: Path) -> None:
    record, steps = tmp_path / "record", 0
    for kill in range(KILLS):
        process = start("digits", tmp_path, workers=kill % 3)
        steps += 152 // (KILLS + 1)
        deadline = time.monotonic() + 120
        while not (record / f"{steps}-0.npz").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.kill()
        process.communicate(timeout=60)
    finish(start("digits", tmp_path, workers=2))
    runner = Runner.from_recipe(find_recipe(tmp_path / "run"), tmp_path / "run")
    replay = Replay(runner.train_config())
    assert replay.history.last == 152
    assert len(replay.history.segments) >= 2
    assert_same(replay, record)
