"""Runs whose number of workers changes: every row once per epoch, and the same weights."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from processes import free_port
from scaling import sample, scaled
from towerpack.dataflow import BatchData, DataFlow, DataFromArrays, PrefetchData, ShuffleData
from towerpack.inputs import SplitInput
from towerpack.training.replay.batch import Replay
from towerpack.training.state.ledger import read_ledger
from warm_python import warm_python

PROGRAM = Path(__file__).with_name("elastic_program.py")
EVENTS = scaled(20, at_least=2)
ROWS, EPOCHS = 80, max(4, EVENTS)  # 4 steps per epoch, so that no start is the last one


def start(run: Path, kind: str, workers: int, life: int, pause: str) -> list[subprocess.Popen[str]]:
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(workers)]
    processes = []
    for index in range(workers):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        environment = {"TF_CONFIG": json.dumps(task), "LIFE": str(life), "PAUSE": pause}
        with (run.parent / f"log-{run.name}-{index}").open("a") as log:
            processes.append(
                subprocess.Popen(
                    [*warm_python(), str(PROGRAM), str(run), kind, str(EPOCHS)],
                    env={**os.environ, **environment},
                    stdout=log,
                    stderr=log,
                    text=True,
                )
            )
    return processes


def ended(processes: list[subprocess.Popen[str]], seconds: float = 200) -> list[int]:
    deadline = time.monotonic() + seconds
    try:
        return [process.wait(max(0.1, deadline - time.monotonic())) for process in processes]
    finally:
        for process in processes:
            process.kill()


def logs(run: Path) -> str:
    return "".join(path.read_text()[-5000:] for path in run.parent.glob(f"log-{run.name}-*"))


def newest_life(run: Path) -> int:
    return max((record["life"] for record in records(run)), default=-1)


def records(run: Path) -> list[dict]:
    lines = [line for path in run.glob("rows-*.jsonl") for line in path.read_text().splitlines()]
    return [{**r, "life": int(r["life"])} for r in map(json.loads, lines)]


def rows_of_steps(run: Path) -> dict[int, list[int]]:
    """Sorted rows of each step, as the last start that trained the step consumed them."""
    by_step: dict[int, list[dict]] = {}
    for record in records(run):
        by_step.setdefault(record["step"], []).append(record)
    return {
        step: sorted(
            row for r in rs if r["life"] == max(o["life"] for o in rs) for row in r["rows"]
        )
        for step, rs in by_step.items()
    }


def replayed(run: Path, kind: str, steps: list[int]) -> list[list[int]]:
    """Sorted rows of steps, read again from the data."""
    x = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)
    flow: DataFlow = ShuffleData(DataFromArrays(np.arange(ROWS), x))
    flow = BatchData(flow, 20 if kind == "split" else 10)
    flow = PrefetchData(flow, 1) if kind == "prefetched" else flow
    replay = Replay(run, SplitInput(flow) if kind == "split" else flow)
    parts = [range(replay.history.segment_of(step).start.workers) for step in steps]
    return [
        sorted(row for i in replicas for row in replay.batch(step, i).arrays["row"].tolist())
        for step, replicas in zip(steps, parts, strict=True)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", sample(["flow", "split", "prefetched"], at_least=2))
def test_kills_stops_and_returns_of_workers(kind: str, tmp_path: Path) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    for path in (whole, run):
        path.mkdir()
    assert ended(start(whole, kind, 2, 0, "0")) == [0, 0], logs(whole)
    choice = random.Random(sum(map(ord, kind)))
    number = 2  # The first start decides how many batches of a flow make a global batch.
    for life in range(EVENTS):
        processes = start(run, kind, number, life, "0.3")
        deadline = time.monotonic() + 200
        while newest_life(run) < life and all(p.poll() is None for p in processes):
            assert time.monotonic() < deadline, logs(run)
            time.sleep(0.05)
        time.sleep(choice.random())
        choice.choice(processes).send_signal(choice.choice([signal.SIGKILL, signal.SIGTERM]))
        codes = ended(processes, 60)
        assert set(codes) == {0} or 0 not in codes, (codes, logs(run))
        number = choice.choice([n for n in range(1, 5) if n != number])
    assert set(ended(start(run, kind, number, EVENTS, "0"))) == {0}, logs(run)
    consumed, expected = rows_of_steps(run), rows_of_steps(whole)
    assert consumed == expected
    for epoch in range(EPOCHS):
        steps = range(4 * epoch + 1, 4 * epoch + 5)
        assert sorted(row for s in steps for row in consumed[s]) == [*range(ROWS)]
    assert replayed(run, kind, [2, 6, 4 * EPOCHS]) == [consumed[s] for s in (2, 6, 4 * EPOCHS)]
    ends = [np.load(path / "end-0.npz") for path in (run, whole)]
    for name in ends[0].files:
        largest = np.abs(ends[1][name]).max()
        np.testing.assert_allclose(ends[0][name], ends[1][name], rtol=1e-5, atol=1e-5 * largest)
    lives = read_ledger(run / "ledger.jsonl")
    assert len(lives) == EVENTS + 1 and sum(life.lost_steps for life in lives) < 4 * EVENTS
