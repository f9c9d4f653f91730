"""Several processes that train together, and what becomes of them when one does not go on."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
import pytest

from processes import free_port, stopwatch
from scaling import only_in_full, sample
from small_training import Model, train
from towerpack import StateError
from towerpack.training.state.ledger import read_ledger
from warm_python import warm_python

PROGRAM = Path(__file__).with_name("workers_program.py")


class Host(NamedTuple):
    """A network namespace with an address of its own."""

    name: str
    ip: str
    link: str


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    """Two hosts with a cable between them."""
    tag = f"tp{os.getpid()}"
    both = [Host(f"{tag}h{i}", f"10.77.0.{i + 1}", f"{tag}v{i}") for i in range(2)]
    try:
        for host in both:
            ip("netns", "add", host.name)
        ip("link", "add", both[0].link, "type", "veth", "peer", "name", both[1].link)
        for host in both:
            ip("link", "set", host.link, "netns", host.name)
            ip("-n", host.name, "addr", "add", f"{host.ip}/24", "dev", host.link)
            ip("-n", host.name, "link", "set", host.link, "up")
            ip("-n", host.name, "link", "set", "lo", "up")
        yield both
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespaces here: {error}")
    finally:
        for host in both:
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Workers:
    """Two processes of one run, their output in files; on two hosts, if these are given."""

    def __init__(
        self,
        case: str,
        where: Path,
        indices: tuple[int, ...] = (0, 1),
        hosts: Sequence[Host] = (),
    ) -> None:
        self.hosts = hosts
        ips = [host.ip for host in hosts] or ["127.0.0.1"] * 2
        self.addresses = [f"{ip}:{free_port()}" for ip in ips]
        where.mkdir(parents=True, exist_ok=True)
        self.logs = [where / f"{case}-{i}.log" for i in range(2)]
        self.processes = {i: self._start(i, case, where) for i in indices}

    def _start(self, index: int, case: str, where: Path) -> subprocess.Popen[str]:
        task = {"type": "worker", "index": index}
        cluster = {"cluster": {"worker": self.addresses}, "task": task}
        with self.logs[index].open("w") as log:
            return subprocess.Popen(
                [*self._python(index), str(PROGRAM), case, str(where / "run")],
                env={**os.environ, "TF_CONFIG": json.dumps(cluster)},
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            )

    def _python(self, index: int) -> list[str]:
        if not self.hosts:
            return warm_python()
        return ["ip", "netns", "exec", self.hosts[index].name, sys.executable]

    def said(self, index: int) -> str:
        return self.logs[index].read_text()

    def wait_for(self, words: str, index: int = 0) -> None:
        deadline = time.monotonic() + 200
        while words not in self.said(index):
            assert self.processes[index].poll() is None, self.said(index)
            assert time.monotonic() < deadline, self.said(index)
            time.sleep(0.02)

    def codes(self, seconds: float = 200) -> list[int]:
        """Exit codes; a process that outlives the time is an error."""
        deadline = time.monotonic() + seconds
        try:
            return [p.wait(max(0.1, deadline - time.monotonic())) for p in self.processes.values()]
        finally:
            for process in self.processes.values():
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workers, list[int], Path]:
    """Workers that trained well until one failed, their exit codes and directory."""
    where = tmp_path_factory.mktemp("together")
    workers = Workers("well", where)
    return workers, workers.codes(200), where / "run"


def test_together(together: tuple[Workers, list[int], Path]) -> None:
    workers, *_ = together
    passed = [workers.said(i).count("passed") for i in range(2)]
    assert passed == [9, 9], workers.said(0) + workers.said(1)


def test_the_log_says_which_part_of_the_data_a_worker_reads(
    together: tuple[Workers, list[int], Path],
) -> None:
    workers, *_ = together
    for i in range(2):
        name = f"worker {i} ({workers.addresses[i]})"
        assert f"{name} reads part {i + 1} of 2." in workers.said(i)
        assert f"{name} reads all of its data" in workers.said(i)


def test_another_number_of_workers_continues_at_the_end_of_an_epoch(
    together: tuple[Workers, list[int], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = shutil.copytree(together[2] / "is_one_large_batch" / "ours", tmp_path / "run")
    model = Model(lambda: keras.optimizers.SGD(0.05, momentum=0.9), rate=0.0)
    middle = run / "checkpoints" / "step-00000004"
    with pytest.raises(StateError, match=r"to the end of epoch 2 with 2 replicas[^|]*SplitInput"):
        train(tmp_path / "new", model=model, resume=str(middle), max_epoch=4)
    trainer = train(run, model=model, max_epoch=4)
    assert trainer.complete and trainer.global_step == 9 + 6
    assert "with 1 replicas instead of 2, so the data start" in caplog.text


def test_workers_that_differ_are_refused(tmp_path: Path) -> None:
    workers = Workers("differ", tmp_path)
    assert workers.codes(60) == [1, 1], workers.said(0) + workers.said(1)
    for i in range(2):
        assert (
            f"The settings of worker 1 ({workers.addresses[1]}) differ from those of worker 0"
            in workers.said(i)
        )
        for name in (
            "seed: 0 in worker 0, 1 in worker 1",
            "optimizer.momentum: 0.9 in worker 0, 0.5 in worker 1",
            "BatchData(4) in worker 0",
            "data.functions",
            "model.drop",
            "version of keras: 3.0 in worker 0, 3.1 in worker 1",
        ):
            assert name in workers.said(i), workers.said(i)
    assert not list((tmp_path / "run").rglob("step-*"))


def test_a_failure_of_one_ends_all(together: tuple[Workers, list[int], Path]) -> None:
    workers, codes, _ = together
    assert codes == [1, 1], workers.said(0) + workers.said(1)
    for i in range(2):
        assert "RuntimeError: no more" in workers.said(i)
    assert f"worker 1 ({workers.addresses[1]}) has failed" in workers.said(0)


def ends(run_dir: Path) -> dict[str, np.ndarray]:
    """The last weights, which both workers have."""
    first, second = (dict(np.load(run_dir / f"end-{i}.npz")) for i in range(2))
    assert all(np.array_equal(first[name], second[name]) for name in first)
    return first


@pytest.mark.timeout(900)
def test_preempted_and_killed_they_end_with_the_same_weights(
    together: tuple[Workers, list[int], Path], tmp_path: Path
) -> None:
    workers = Workers("long", tmp_path)
    workers.wait_for("epoch 3\n")
    workers.processes[1].send_signal(signal.SIGTERM)
    assert workers.codes(120) == [143, 143], workers.said(0) + workers.said(1)
    assert "Saved at step" in workers.said(0)
    blind = f"not visible to worker 1 ({workers.addresses[1]}). If the run is to continue"
    assert blind in workers.said(0)

    # Either is killed; the chief hangs, too.
    ends_of_one = [
        ("hangs", 0, signal.SIGTSTP, 8),
        ("long", 1, signal.SIGKILL, 13),
        ("long", 0, signal.SIGKILL, 18),
    ]
    for case, lost, number, epoch in sample(ends_of_one):
        workers = Workers(case, tmp_path)
        workers.wait_for(f"epoch {epoch}\n")
        workers.processes[lost].send_signal(number)
        began = time.monotonic()
        gone = workers.processes.pop(lost)
        try:
            assert workers.codes(60) == [1], workers.said(1 - lost)
        finally:
            gone.kill()
            gone.wait()
        assert time.monotonic() - began < (10 if number == signal.SIGKILL else 60)
        assert f"worker {lost} ({workers.addresses[lost]})" in workers.said(1 - lost)

    workers = Workers("long", tmp_path)
    assert workers.codes(300) == [0, 0], workers.said(0) + workers.said(1)
    after, undisturbed = ends(tmp_path / "run"), ends(together[2] / "long")
    assert not [n for n in after if after[n].tobytes() != undisturbed[n].tobytes()]


@only_in_full  # the launcher's part is in test_launch.py, the rest above
def test_a_killed_chief_is_replaced_by_the_launcher(tmp_path: Path) -> None:
    launch = ["-m", "towerpack", "launch", "--workers", "2", "--max-restarts", "1"]
    program = [str(PROGRAM), "chief_dies_once", str(tmp_path)]
    done = subprocess.run([sys.executable, *launch, "--", *program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, second = read_ledger(tmp_path / "ledger.jsonl")
    assert (first.ending, second.restart, second.to_step) == (None, "1", 15)
    assert 0 < second.from_step <= first.to_step


@only_in_full
@pytest.mark.timeout(400)
def test_two_hosts_and_a_cable_that_is_pulled(hosts: list[Host], tmp_path: Path) -> None:
    workers = Workers("long", tmp_path, hosts=hosts)
    workers.wait_for("epoch 5")
    ip("-n", hosts[1].name, "link", "set", hosts[1].link, "down")
    pulled = time.monotonic()
    assert workers.codes(120) == [1, 1], workers.said(0) + workers.said(1)
    assert time.monotonic() - pulled < 60
    for index, other in ((0, 1), (1, 0)):
        assert f"worker {other} ({workers.addresses[other]})" in workers.said(index)


@pytest.mark.parametrize(("index", "case"), [(1, "wrong_label_of_1"), (0, "failed_function_of_0")])
def test_an_error_inside_tensorflow_ends_all_and_is_named(
    index: int, case: str, tmp_path: Path
) -> None:
    workers = Workers(case, tmp_path)
    with stopwatch() as watch:
        workers.wait_for("failed inside TensorFlow", index)
        watch.seconds = 0
        assert workers.codes(60) == [1, 1], workers.said(0) + workers.said(1)
    assert watch.seconds < 15
    batches = list((tmp_path / "run").rglob("failed-step-*.npz"))
    assert len(batches) == 1
    step = int(batches[0].stem.rpartition("-")[2])
    text = f"Step {step} of worker {index} ({workers.addresses[index]}) failed inside TensorFlow"
    for i in range(2):
        assert text in workers.said(i) and str(batches[0]) in workers.said(i)
        assert re.search("got .*(value of|no label) 9", workers.said(i))
    assert f"PeerError: worker {index}" in workers.said(1 - index)
    with np.load(batches[0]) as batch:
        assert 9 in batch["y"]


def test_a_worker_that_cannot_build_the_model_ends_all(tmp_path: Path) -> None:
    workers = Workers("cannot_build", tmp_path)
    assert workers.codes(100) == [1, 1], workers.said(0) + workers.said(1)
    for i in range(2):
        assert "ValueError: no such network" in workers.said(i)
    assert f"PeerError: worker 1 ({workers.addresses[1]}) has failed" in workers.said(0)


@pytest.mark.parametrize(
    ("case", "message", "seconds"),
    [("dies_joining", "have not joined within 10 s", 20), ("dies_building", "does not answer", 12)],
)
def test_a_worker_that_dies_before_the_first_step_is_named(
    case: str, message: str, seconds: float, tmp_path: Path
) -> None:
    workers = Workers(case, tmp_path)
    assert workers.processes[1].wait(120) == -signal.SIGKILL, workers.said(1)
    with stopwatch() as watch:
        assert workers.codes(60) == [1, -signal.SIGKILL], workers.said(0)
    assert watch.seconds < seconds
    assert f"PeerError: worker 1 ({workers.addresses[1]}) {message}" in workers.said(0)


def test_sigterm_ends_a_worker_that_waits_for_another(tmp_path: Path) -> None:
    workers = Workers("waits", tmp_path)
    workers.wait_for("epoch 1\n", 0)
    workers.wait_for("epoch 1\n", 1)
    time.sleep(0.5)
    workers.processes[0].send_signal(signal.SIGTERM)
    with stopwatch() as watch:
        assert workers.processes[0].wait(60) == 143, workers.said(0)
    assert 9 < watch.seconds < 25  # until then the other one might have come
    assert "Saved at step 3" in workers.said(0)
    for process in workers.processes.values():
        process.kill()
        process.wait()


def test_sigterm_ends_a_worker_that_is_stuck(tmp_path: Path) -> None:
    workers = Workers("stuck", tmp_path)
    workers.wait_for("building", 0)
    time.sleep(0.5)
    workers.processes[0].send_signal(signal.SIGTERM)
    try:
        assert workers.processes[0].wait(30) == 143, workers.said(0)
    finally:
        for process in workers.processes.values():
            process.kill()
            process.wait()


def test_one_that_does_not_come_is_named(tmp_path: Path) -> None:
    workers = Workers("alone", tmp_path, (0,))
    assert workers.codes(120) == [1]
    assert f"worker 1 ({workers.addresses[1]})" in workers.said(0)
    assert "within 1 s" in workers.said(0)
