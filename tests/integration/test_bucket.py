"""Runs in a bucket: killed during uploads, they continue elsewhere to the same weights."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from s3_server import s3_server
from scaling import scaled
from towerpack._core.remote_path import RemotePath
from towerpack.checkpoint import list_checkpoints, load_checkpoint
from warm_python import warm_python

PROGRAM = Path(__file__).with_name("bucket_program.py")
KILLS = scaled(20)


@pytest.fixture(scope="module", autouse=True)
def _server() -> Iterator[None]:
    with s3_server("bucket"):
        yield


def start(run: str, output: Path) -> subprocess.Popen[str]:
    command = [*warm_python(), str(PROGRAM), run, str(output)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str], output: Path) -> dict[str, np.ndarray]:
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    with np.load(output) as saved:
        return dict(saved)


def manifests(url: str) -> list[str]:
    return [name for name in RemotePath(url).files() if name.endswith("/manifest.json")]


@pytest.mark.timeout(1200)
def test_killed_runs_continue_on_other_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = finish(start(str(tmp_path / "run"), tmp_path / "a.npz"), tmp_path / "a.npz")
    rng = random.Random(34)
    continued = 0
    for number in range(KILLS):
        url, output = f"s3://bucket/run-{number}", tmp_path / f"{number}.npz"
        monkeypatch.setenv("TOWERPACK_RUN_CACHE", str(tmp_path / f"{number}-first"))
        process = start(url, output)
        # Uploads go on while the training does, and at its end.
        wanted = rng.randint(1, 4)
        while process.poll() is None and len(manifests(url)) < wanted:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.2))
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        rows = list_checkpoints(url)
        assert [row.problem for row in rows if not row.valid] == []
        continued += bool(rows) and process.returncode == -signal.SIGKILL
        monkeypatch.setenv("TOWERPACK_RUN_CACHE", str(tmp_path / f"{number}-second"))
        ours = finish(start(url, output), output)
        assert ours.keys() == undisturbed.keys()
        assert not [n for n in ours if ours[n].tobytes() != undisturbed[n].tobytes()]
        # A kill after the last upload, before the removal of an older checkpoint, leaves one more.
        assert 1 <= len([row for row in list_checkpoints(url) if row.tag is None]) <= 4
        assert load_checkpoint(url).step == 180
    assert continued >= KILLS // 2
