"""Jobs on a local Ray: restarts, signals, reports, logs, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scaling import only_in_full
from towerpack import ConfigError
from towerpack.checkpoint import load_checkpoint

pytest.importorskip("ray.train")
EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_launch.py"
# A run without TensorFlow: the second worker dies once, then both wait for SIGTERM.
PROGRAM = """
import json, os, pathlib, signal, sys, time
run = pathlib.Path("run")
task = json.loads(os.environ["TF_CONFIG"])
rank, size = task["task"]["index"], len(task["cluster"]["worker"])
print("start", os.environ["TOWERPACK_RESTART"], "of", size, flush=True)
if rank == 1 and os.environ["TOWERPACK_RESTART"] == "0":
    os.kill(os.getpid(), signal.SIGKILL)
if rank == 0:
    (run / "checkpoints/step-00000007").mkdir(parents=True, exist_ok=True)
    record = {"step": 7, "epoch": 1, "scalars": {"cost": 0.25}}
    (run / "stats.jsonl").write_text(json.dumps(record) + chr(10))
    pathlib.Path(os.environ["TOWERPACK_RUN_FILE"]).write_text(str(run.absolute()))
def save(number, frame):
    print("saved", flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
(run / f"ready-{rank}-{os.environ['TOWERPACK_RESTART']}").touch()
time.sleep(1000)
"""
JOB = """
import sys, ray
from towerpack import PeerError
from towerpack.cluster.ray import train
ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
status = train(["program.py"], workers=2, storage="jobs", max_restarts=1)
try:
    train(["fails.py"], workers=1, storage="failed", max_restarts=1)
except PeerError as error:
    print("ERROR", error)
sys.exit(status)
"""


@pytest.mark.timeout(900)  # Ray's start takes minutes on a machine under load.
def test_a_job_restarts_reports_and_saves_at_sigterm(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "fails.py").write_text("print('start', flush=True)\nraise OSError('no disk')\n")
    with (tmp_path / "output").open("w") as output:
        job = subprocess.Popen(
            [sys.executable, "-c", JOB],
            cwd=tmp_path,
            stdout=output,
            stderr=output,
            env={**os.environ, "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2"},
        )
    try:
        wait_for(job, tmp_path, "run/ready-[01]-1", 2)
        wait_for(job, tmp_path, "jobs/job-*/checkpoint_*/checkpoint.json", 1)
        job.send_signal(signal.SIGTERM)
        assert job.wait(400) == 143, (tmp_path / "output").read_text()
    finally:
        job.kill()
        job.wait()
    error = (tmp_path / "output").read_text().rpartition("ERROR")[2]
    assert "failed more than 1 times" in error and "OSError: no disk" in error, error
    assert (tmp_path / "failed/rank-0.log").read_text().count("] start\n") == 2
    (report,) = tmp_path.glob("jobs/job-*/checkpoint_manager_snapshot.json")
    assert '"cost":0.25' in report.read_text().replace(" ", "")
    (pointer,) = tmp_path.glob("jobs/job-*/checkpoint_*/checkpoint.json")
    assert json.loads(pointer.read_text())["path"].endswith("run/checkpoints/step-00000007")
    for rank in range(2):
        log = (tmp_path / f"jobs/rank-{rank}.log").read_text()
        lines = [f"[worker {rank}] start {restart} of 2" for restart in (0, 1)]
        assert [line for line in log.splitlines() if "start" in line] == lines
        assert log.endswith(f"[worker {rank}] saved\n")


def wait_for(job: subprocess.Popen[bytes], folder: Path, pattern: str, count: int) -> None:
    deadline = time.monotonic() + 400
    while len(list(folder.glob(pattern))) < count:
        assert job.poll() is None, (folder / "output").read_text()
        assert time.monotonic() < deadline, (folder / "output").read_text()
        time.sleep(0.1)


def test_wrong_arguments_are_refused_before_ray_starts(tmp_path: Path) -> None:
    from towerpack.cluster.ray import train

    for program, workers, words in (
        (["no.py"], 1, "existing file"),
        ([__file__], (3, 2), r"\(smallest, largest\)"),
        ([__file__], 0, "from 1"),
    ):
        with pytest.raises(ConfigError, match=words):
            train(program, workers=workers, storage=tmp_path)


def test_storage_that_is_not_shared_is_refused(tmp_path: Path) -> None:
    from towerpack.cluster._ray_worker import check_shared

    check_shared(tmp_path, tmp_path)
    for missing in ("storage", "working directory"):
        paths = [tmp_path / "absent" if missing == name else tmp_path for name in PATHS]
        with pytest.raises(ConfigError, match=rf"The {missing} of the job is not visible"):
            check_shared(*paths)


PATHS = ("storage", "working directory")


@only_in_full
@pytest.mark.slow
def test_the_example_trains_under_ray(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, EXAMPLE, tmp_path / "run"], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    kernel = load_checkpoint(tmp_path / "run").model["line/kernel"]
    assert kernel[:, 0] == pytest.approx([1.0, -2.0, 0.5], abs=0.01)
