"""Runs in a bucket: complete or invisible, after each failure and each kill of an upload."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from towerpack import CheckpointError, ConfigError, RemoteFileError
from towerpack._core import remote_path
from towerpack._core.remote_path import RemotePath
from towerpack.checkpoint import CheckpointStore, list_checkpoints, load_checkpoint
from towerpack.checkpoint import remote_run as remote
from towerpack.checkpoint.remote_copies import local_files
from towerpack.checkpoint.remote_run import RunMirror

URL = "memory://bucket/run"
OPERATIONS = ("pipe_file", "put_file", "cp_file", "rm_file", "cat_file", "find")


class Killed(BaseException):
    """End of a process, for the thread that uploads."""


@pytest.fixture(autouse=True)
def _bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    other_machine(tmp_path / "first", monkeypatch)
    monkeypatch.setattr(remote, "PAUSE_S", 0.02)
    monkeypatch.setattr(remote, "DEADLINE_S", 0.01)
    monkeypatch.setattr(remote_path, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    yield
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


def other_machine(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOWERPACK_RUN_CACHE", str(disk))
    monkeypatch.setattr("platform.node", lambda: disk.name)


def failing(monkeypatch: pytest.MonkeyPatch, fails: Callable[[str, str], None]) -> None:
    """Call a function, which may raise, before each operation of the uploading thread."""
    for name in OPERATIONS:
        original = getattr(MemoryFileSystem, name)

        def wrapped(
            fs: Any, path: str, *args: Any, _name: str = name, _f: Any = original, **kw: Any
        ) -> Any:
            if threading.current_thread().name == "towerpack-upload":
                fails(_name, path)
            return _f(fs, path, *args, **kw)

        monkeypatch.setattr(MemoryFileSystem, name, wrapped)


def train(url: str, first: int, last: int, *, keep: int | None = 2, wait: bool = False) -> None:
    """Save steps as a trainer does. Fails if the run does not continue from the newest step."""
    with RunMirror(url) as mirror, CheckpointStore(mirror.path / "checkpoints") as store:
        store.keep = keep
        mirror.start(store, first - 1)
        for step in range(first, last + 1):
            (mirror.path / "run.json").write_text("{}")
            with (mirror.path / "stats.jsonl").open("a") as stats:
                stats.write(f"{step}\n")
            arrays = {"kernel": np.full(1000, step, np.float32)}
            store.save(step, {"model": arrays}, {"step": step}, blocking=True)
            if step % 3 == 0:
                store.keep_as(step, "best-error", blocking=True)
            while wait and step not in steps(url):
                time.sleep(0.005)


def steps(url: str) -> list[int]:
    return [row.step for row in list_checkpoints(url, checksums=False) if row.tag is None]


def assert_whole(url: str) -> int:
    """Return the newest step of a run, of which everything that is visible is valid."""
    assert [row.problem for row in list_checkpoints(url)] == [None] * len(list_checkpoints(url))
    checkpoint = load_checkpoint(url)
    assert checkpoint.state == {"step": checkpoint.step}
    assert (checkpoint.model["kernel"] == checkpoint.step).all()
    # What a checkpoint needs of other files was uploaded before it.
    stats = (local_files(url) / "stats.jsonl").read_text().splitlines()
    assert str(checkpoint.step) in stats
    return checkpoint.step


def test_upload_keep_and_continue_elsewhere(tmp_path: Path, monkeypatch: Any) -> None:
    train(URL, 1, 4, wait=True)
    assert steps(URL) == [3, 4] and assert_whole(URL) == 4
    assert load_checkpoint(URL, tag="best-error").step == 3
    other_machine(tmp_path / "second", monkeypatch)
    train(URL, 5, 7, wait=True)
    assert steps(URL) == [6, 7] and assert_whole(URL) == 7
    assert [row.step for row in list_checkpoints(URL) if row.tag] == [6]
    assert (local_files(URL) / "stats.jsonl").read_text().split() == list("1234567")
    assert load_checkpoint(f"{URL}/checkpoints/step-00000006").step == 6


@pytest.mark.parametrize("operation", range(34))
def test_killed_before_each_operation(operation: int, tmp_path: Path, monkeypatch: Any) -> None:
    train(URL, 1, 3, wait=True)
    left = [operation]

    def kill(name: str, path: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed

    with monkeypatch.context() as faults:
        failing(faults, kill)
        train(URL, 4, 5)
    other_machine(tmp_path / "second", monkeypatch)
    step = assert_whole(URL)
    assert step >= 3
    train(URL, step + 1, 8, wait=True)
    assert steps(URL) == [7, 8] and assert_whole(URL) == 8
    names = {name.split("/")[1] for name in RemotePath(URL).files() if "checkpoints/" in name}
    assert names == {"step-00000007", "step-00000008", "best-error-00000006"}


def test_failures_at_random(monkeypatch: Any) -> None:
    rng = random.Random(3)

    def fail(name: str, path: str) -> None:
        if rng.random() < 0.2:
            raise OSError("the network fails")

    failing(monkeypatch, fail)
    train(URL, 1, 30, keep=3)
    assert steps(URL) == [28, 29, 30] and assert_whole(URL) == 30


def test_outage(monkeypatch: Any, caplog: Any, tmp_path: Path) -> None:
    down = threading.Event()
    caplog.set_level("INFO")

    def fail(name: str, path: str) -> None:
        if down.is_set():
            raise OSError("the network is down")

    failing(monkeypatch, fail)
    with RunMirror(URL) as mirror, CheckpointStore(mirror.path / "checkpoints") as store:
        mirror.start(store, -1)
        down.set()
        started = time.monotonic()
        for step in range(5):
            store.save(step, {"model": {"kernel": np.full(9, step, np.float32)}}, {}, blocking=True)
        assert time.monotonic() - started < 5
        time.sleep(0.5)
        assert steps(URL) == []
        down.clear()
    assert steps(URL) == [0, 1, 2, 3, 4]
    assert [r.message[:14] for r in caplog.records if "Uploads" in r.message] == [
        "Uploads fail. ", "Uploads to mem"
    ]  # fmt: skip
    # An outage at the end: the limit, and what to do.
    monkeypatch.setenv("TOWERPACK_UPLOAD_SECONDS", "0.5")
    down.set()
    with pytest.raises(RemoteFileError, match="step-00000006") as error:
        train(URL, 5, 6)
    assert "run the same command again on this machine" in str(error.value)
    down.clear()
    train(URL, 7, 6)
    assert steps(URL)[-1] == 6


def test_one_writer_at_a_time(tmp_path: Path, monkeypatch: Any) -> None:
    with RunMirror(URL):
        with pytest.raises(ConfigError, match="by another process of this machine"):
            RunMirror(URL).__enter__()
    with RunMirror(URL):
        pass
    # Only a start whose training begins takes over a run.
    assert ".owner" not in RemotePath(URL).files()


def test_a_run_that_was_taken_over_ends(tmp_path: Path, monkeypatch: Any, caplog: Any) -> None:
    with pytest.raises(ConfigError, match="on second"), RunMirror(URL) as first:
        store = CheckpointStore(first.path / "checkpoints")
        other_machine(tmp_path / "second", monkeypatch)
        train(URL, 1, 2, wait=True)
        first.start(store, -1)
        store.save(9, {"model": {"kernel": np.zeros(2)}}, {}, blocking=True)
        with pytest.raises(ConfigError, match="on second"):
            while True:
                first.check()
                time.sleep(0.01)
        assert steps(URL) == [1, 2]
        store.close()
    # The first machine's course is not used again, and not lost.
    other_machine(tmp_path / "first", monkeypatch)
    train(URL, 3, 3, wait=True)
    assert steps(URL) == [2, 3]
    [aside] = (tmp_path / "first").glob("runs/*/run/run-stale-*")
    assert [row.step for row in list_checkpoints(aside)] == [9]
    assert "were not uploaded" in caplog.text


def test_rewound_new_and_deleted() -> None:
    train(URL, 1, 4, keep=None)
    with RunMirror(URL) as mirror, CheckpointStore(mirror.path / "checkpoints") as store:
        store.abandon_after(2)
        mirror.start(store, 2)
    assert steps(URL) == [1, 2]
    assert "checkpoints/abandoned-step-00000004/manifest.json" in RemotePath(URL).files()
    with RunMirror(URL, new=True) as mirror:
        assert mirror.url == f"{URL}-2"
    with RunMirror(URL) as mirror, CheckpointStore(mirror.path / "checkpoints") as store:
        store.abandon_after(-1)
        mirror.start(store, -1, delete=True)
    assert steps(URL) == []


def test_damage_in_the_bucket(tmp_path: Path, monkeypatch: Any, caplog: Any) -> None:
    train(URL, 1, 2, keep=None)
    file = RemotePath(f"{URL}/checkpoints/step-00000002/model.safetensors")
    file.write(file.read()[:-1] + b"!")
    assert [row.valid for row in list_checkpoints(URL)] == [True, False]
    assert load_checkpoint(URL).step == 1 and "Skipped checkpoint step-00000002" in caplog.text
    other_machine(tmp_path / "second", monkeypatch)
    with RunMirror(URL) as mirror:
        assert load_checkpoint(mirror.path).step == 1
    RemotePath(f"{URL}/checkpoints/step-00000001/state.json").remove()
    other_machine(tmp_path / "third", monkeypatch)
    with pytest.raises(CheckpointError, match="contains no valid checkpoint"):
        RunMirror(URL).__enter__()
    with pytest.raises(CheckpointError, match="contains no valid checkpoint tagged 'x'"):
        load_checkpoint(URL, tag="x")


def test_a_full_local_disk(monkeypatch: Any) -> None:
    train(URL, 1, 1)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(MemoryFileSystem, "get_file", full)
    with pytest.raises(ConfigError, match=r"cannot be written(.|\n)*set TOWERPACK_RUN_CACHE"):
        load_checkpoint(URL)


def test_a_wrong_clock(monkeypatch: Any) -> None:
    from botocore.exceptions import ClientError
    from s3fs.errors import translate_boto_error

    code = {"Code": "RequestTimeTooSkewed", "Message": "The times differ too much."}
    error = translate_boto_error(ClientError({"Error": code}, "GetObject"))

    def skewed(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(MemoryFileSystem, "find", skewed)
    with pytest.raises(ConfigError, match=r"differ too much(.|\n)*the clock of this machine"):
        RunMirror(URL).__enter__()


def test_hostile_names(tmp_path: Path) -> None:
    MemoryFileSystem.store.clear()
    for name in ("run.json", "../outside.txt", "..", "a/../../b", ".hidden"):
        fs = MemoryFileSystem()
        fs.store[f"/bucket/run/{name}"] = type("F", (), {})()
    files = {"run.json": 2, "../outside.txt": 2, "a/../../b": 2, ".hidden": 2, "export/../../x": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RemotePath, "files", lambda _: files)
        patch.setattr(RemotePath, "download", lambda _, local: Path(local).write_bytes(b"{}"))
        folder = local_files(URL, "export")
    assert sorted(p.name for p in folder.rglob("*")) == [".lock", "checkpoints", "run.json"]
