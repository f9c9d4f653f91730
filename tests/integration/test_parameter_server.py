"""Several processes that do not wait for one another, and what happens when one is lost."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from processes import free_port, wait_until
from scaling import only_in_full
from small_training import config
from towerpack import ConfigError, PeerError
from towerpack.checkpoint import load_checkpoint
from towerpack.training import ParameterServerTrainer
from towerpack.training.state.ledger import read_ledger
from warm_python import warm_python

PROGRAM = Path(__file__).with_name("cluster_program.py")


class Cluster:
    """A chief, a parameter server and workers."""

    def __init__(self, where: Path, *arguments: object, workers: int = 2) -> None:
        self._where = where
        self._command = [*warm_python(), str(PROGRAM), str(where / "run"), *map(str, arguments)]
        ports = [free_port() for _ in range(2 + workers)]
        jobs = {"chief": ports[:1], "ps": ports[1:2], "worker": ports[2:]}
        self.addresses = {job: [f"127.0.0.1:{p}" for p in of] for job, of in jobs.items()}
        self._known = 0
        self.processes = {
            (job, i): self.start(job, i) for job, of in jobs.items() for i in range(len(of))
        }

    def start(self, job: str, index: int) -> subprocess.Popen[bytes]:
        task = {"cluster": self.addresses, "task": {"type": job, "index": index}}
        environment = {**os.environ, "TF_CONFIG": json.dumps(task)}
        with (self._where / f"{job}{index}.txt").open("ab") as log:
            return subprocess.Popen(
                self._command, env=environment, stdout=log, stderr=subprocess.STDOUT
            )

    def log(self, job: str = "chief", index: int = 0) -> str:
        return (self._where / f"{job}{index}.txt").read_text()

    def step(self) -> int:
        return max([int(n) for n in re.findall(r"^step (\d+)", self.log(), re.M)], default=0)

    def wait_for_step(self, step: int) -> None:
        chief = self.processes["chief", 0]
        assert wait_until(lambda: self.step() >= step or chief.poll() is not None, 100), self.log()
        assert self.step() >= step, self.log()

    def wait(self, job: str = "chief", index: int = 0, seconds: float = 30) -> int:
        process = self.processes[job, index]
        assert wait_until(lambda: process.poll() is not None, seconds), self.log(job, index)
        return process.returncode

    def kill(self, job: str, index: int) -> None:
        self.processes[job, index].kill()
        self.wait(job, index)


@contextlib.contextmanager
def cluster(where: Path, *arguments: object, workers: int = 2) -> Iterator[Cluster]:
    where.mkdir(exist_ok=True)
    running = Cluster(where, *arguments, workers=workers)
    try:
        yield running
    finally:
        for process in running.processes.values():
            process.kill()
            process.wait()


def test_a_worker_that_is_killed_is_done_without_and_taken_back(tmp_path: Path) -> None:
    with cluster(tmp_path, 4000, 30) as running:
        running.wait_for_step(70)
        running.kill("worker", 1)
        running.wait_for_step(running.step() + 60)
        running.processes["worker", 1] = running.start("worker", 1)
        assert wait_until(lambda: running.log("worker", 1).count("This is") == 2, 60)
        # With none of them there, TensorFlow cannot take one back.
        assert wait_until(lambda: "has been recovered" in running.log(), 60), running.log()
        # From here on the second one is alone.
        running.kill("worker", 0)
        running.wait_for_step(max(250, running.step() + 60))
        reached = running.step()
        running.processes["chief", 0].send_signal(signal.SIGTERM)
        assert running.wait() == 143, running.log()
        assert [running.wait(*key) for key in running.processes] == [143, 0, -9, 0]
    saved = load_checkpoint(tmp_path / "run")
    assert saved.step >= reached >= 250 and f"Saved at step {saved.step} " in running.log()
    # Keras alone would lose counts. What was applied twice counts twice here.
    assert saved.group("optimizer")["iteration"] >= saved.step
    # What was scheduled once, after step 30, stays.
    rates = re.findall(r"^step (\d+) rate (\S+)$", running.log(), re.M)
    assert all(rate == ("0.020" if int(step) >= 30 else "0.050") for step, rate in rates)


def test_a_run_without_a_worker_that_was_killed_ends(tmp_path: Path) -> None:
    with cluster(tmp_path, 600, 30) as running:
        running.wait_for_step(20)
        running.kill("worker", 1)
        assert running.wait(seconds=100) == 0, running.log()
        assert " at 600" in running.log()
        assert running.wait("worker") == running.wait("ps") == 0


@only_in_full  # one of tests/integration/test_workers.py hangs, too
def test_a_worker_that_hangs_ends_the_run_which_goes_on(tmp_path: Path) -> None:
    with cluster(tmp_path, 4000, 4) as running:
        # Late enough for both workers to have a share: one without is not missed.
        running.wait_for_step(200)
        running.processes["worker", 0].send_signal(signal.SIGTSTP)
        began = time.monotonic()
        assert running.wait(seconds=30) == 1
        assert time.monotonic() - began < 12
        where = running.addresses["worker"][0]
        assert f"PeerError: worker 0 ({where}) has not answered for 4 s" in running.log()
        running.processes["worker", 0].send_signal(signal.SIGCONT)
        assert [running.wait(*key) for key in running.processes] == [1, 0, 0, 0]
    saved = load_checkpoint(tmp_path / "run").step
    assert saved >= 200 and f"Saved at step {saved}, before the failure" in running.log()
    with cluster(tmp_path, saved + 30, 30, workers=1) as running:
        assert running.wait(seconds=100) == 0, running.log()
        (cost,) = re.findall(rf"^cost (\S+) at {saved + 30}$", running.log(), re.M)
        assert float(cost) < 2.0


def test_a_killed_server_is_restored_and_the_chief_ends_without_its_workers(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with cluster(tmp_path, 300, 60, 20) as running:
        running.wait_for_step(50)
        running.kill("ps", 0)
        running.processes["ps", 0] = running.start("ps", 0)
        assert wait_until(lambda: "starts its program again" in running.log(), 20), running.log()
        (run / "wait").touch()
        assert wait_until(lambda: not (run / "wait").exists(), 150), running.log()
        # The run is complete. Now its workers hang, or die.
        running.processes["worker", 0].send_signal(signal.SIGTSTP)
        running.kill("worker", 1)
        (run / "go").touch()
        assert running.wait(seconds=20) == 0, running.log()
        assert running.log("worker", 0).count("This is") == 1  # it has waited for the chief
    saved = load_checkpoint(run)
    assert saved.step == saved.group("optimizer")["iteration"] == 300
    first, second = read_ledger(run / "ledger.jsonl")
    assert (first.pid, second.restart) == (second.pid, "1")
    assert 40 <= second.from_step <= first.to_step < second.to_step == 300
    (cost,) = re.findall(r"^cost (\S+) at 300$", running.log(), re.M)
    assert float(cost) < 1.0


def test_a_server_that_is_killed_before_a_checkpoint_ends_the_run(tmp_path: Path) -> None:
    with cluster(tmp_path, 4000, 30, workers=1) as running:
        running.wait_for_step(10)
        running.kill("ps", 0)
        assert running.wait(seconds=10) == 1
        assert f"PeerError: ps 0 ({running.addresses['ps'][0]}) has died" in running.log()
        assert running.wait("worker") == 0


def test_a_process_that_does_not_come_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = {"chief": ["127.0.0.1:1"], "ps": ["127.0.0.1:2"], "worker": ["127.0.0.1:3"]}
    task = {"cluster": jobs, "task": {"type": "chief", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(task))
    trainer = ParameterServerTrainer(config(tmp_path), peer_timeout=0.3)
    with pytest.raises(PeerError, match=r"worker 0 \(127.0.0.1:3\) and ps 0 .* did not start"):
        trainer.train()
    for wrong in ({"deterministic": True}, {"xla": True}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            ParameterServerTrainer(config(tmp_path, **wrong))
    monkeypatch.delenv("TF_CONFIG")
    with pytest.raises(ConfigError, match="needs a cluster"):
        ParameterServerTrainer(config(tmp_path))
