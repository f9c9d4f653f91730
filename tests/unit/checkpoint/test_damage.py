"""What is damaged is passed over with the reason, and never believed."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling import only_in_full
from towerpack import CheckpointError
from towerpack.checkpoint import CheckpointStore, list_checkpoints, load_checkpoint

FILES = ["manifest.json", "model.safetensors", "optimizer.safetensors", "state.json"]


def arrays(step: int) -> dict[str, dict[str, np.ndarray]]:
    return {
        "model": {"kernel": np.full((4, 3), step, np.float32)},
        "optimizer": {"iterations": np.array(step, np.int64)},
    }


@pytest.fixture(scope="module")
def shared_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints, of step 1 and 2."""
    directory = tmp_path_factory.mktemp("run")
    with CheckpointStore(directory / "checkpoints") as store:
        for step in (1, 2):
            store.save(step, arrays(step), {"step": step})
    return directory


@pytest.fixture
def run(shared_run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(shared_run, tmp_path / "run")


def assert_passed_over(run: Path, name: str) -> str:
    """The newest is passed over, the one before is loaded; returns the reason."""
    found = load_checkpoint(run)
    assert (found.step, found.state) == (1, {"step": 1})
    (row,) = [row for row in list_checkpoints(run) if not row.valid]
    assert row.step == 2
    assert row.problem is not None
    assert name in row.problem
    with pytest.raises(CheckpointError, match="is not a valid checkpoint"):
        load_checkpoint(row.path)
    return row.problem


def newest(run: Path) -> Path:
    return run / "checkpoints" / "step-00000002"


def test_a_missing_file(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    (newest(run) / "state.json").unlink()
    assert assert_passed_over(run, "state.json") == "state.json is missing"
    assert "step-00000002" in caplog.text and "state.json is missing" in caplog.text


def truncated(share: float) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, int(share * path.stat().st_size))


def lengthened(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def linked(path: Path) -> None:
    path.symlink_to(path.rename(path.parents[2] / "elsewhere"))


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def made_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (Path.unlink, "is missing"),
        *[(truncated(share), "") for share in (0, 0.5, 0.999)],
        (lengthened, ""),
        (linked, "cannot be read"),
        (piped, "is not a plain file"),
        (made_a_directory, "is not a plain file"),
    ],
)
def test_a_damaged_file(run: Path, name: str, damage: Callable[[Path], Any], reason: str) -> None:
    damage(newest(run) / name)
    assert reason in assert_passed_over(run, name)


@given(data=st.data())
def test_any_flipped_bit(shared_run: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(FILES))
    path = newest(shared_run) / name
    content = path.read_bytes()
    where = data.draw(st.integers(0, len(content) - 1))
    bit = data.draw(st.integers(0, 7))
    damaged = bytearray(content)
    damaged[where] ^= 1 << bit
    try:
        path.write_bytes(damaged)
        assert_passed_over(shared_run, name)
    finally:
        path.write_bytes(content)


def forge(run: Path, **changes: Any) -> None:
    """Rewrite the manifest with a right checksum, as somebody who knows the format could."""
    path = newest(run) / "manifest.json"
    tree = json.loads(path.read_text())
    del tree["checksum"]
    for key, value in changes.items():
        tree[key] = value(tree[key]) if callable(value) else value
    body = json.dumps(tree, sort_keys=True)
    tree["checksum"] = hashlib.sha256(body.encode()).hexdigest()
    path.write_text(json.dumps(tree, indent=1) + "\n")


def test_the_forger_can_forge(run: Path) -> None:
    forge(run, info={"by": "hand"})
    assert load_checkpoint(run).manifest.info == {"by": "hand"}


RECORD = {"nbytes": 1, "sha256": "0" * 64}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"files": lambda f: {**f, "../../x": RECORD}}, "'../../x', which no checkpoint has"),
        ({"files": lambda f: {**f, "a\0.safetensors": RECORD}}, "which no checkpoint has"),
        ({"files": lambda f: {**f, "more.safetensors": RECORD}}, "more.safetensors is missing"),
        ({"files": lambda f: {**f, "state.json": {**RECORD, "nbytes": 2**62}}}, "instead of"),
        ({"files": lambda f: {**f, "state.json": {**RECORD, "nbytes": -1}}}, "instead of -1"),
        ({"files": lambda f: {**f, "state.json": {**RECORD, "nbytes": None}}}, "lacks or misuses"),
        ({"files": lambda f: {**f, "state.json": 3}}, "lacks or misuses"),
        ({"files": {}}, "does not list state.json"),
        ({"step": "two"}, "lacks or misuses"),
        ({"saved_at": None}, "lacks or misuses"),
        ({"fingerprint": "0"}, "do not match the manifest"),
        ({"version": 2}, "of version 2; this Towerpack reads 'towerpack-checkpoint' of version 1"),
        ({"format": "zip"}, "has the format 'zip'"),
    ],
)
def test_a_forged_manifest(run: Path, changes: dict[str, Any], reason: str) -> None:
    forge(run, **changes)
    assert_passed_over(run, reason)


def test_a_manifest_of_another_step(run: Path) -> None:
    forge(run, step=3)
    assert load_checkpoint(run).step == 1
    assert list_checkpoints(run)[1].problem == "its manifest is for step 3"
    # By itself it may have any name: people copy and rename.
    assert load_checkpoint(newest(run)).step == 3


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"3", b"\xff", b"[" * 100_000, b"{" + b" " * (1 << 21)]
)
def test_a_manifest_that_is_something_else(run: Path, text: bytes) -> None:
    (newest(run) / "manifest.json").write_bytes(text)
    assert_passed_over(run, "manifest.json")


def of_shape(shape: list[int]) -> bytes:
    """A tensor without values, whose shape NumPy has no array for."""
    header = json.dumps({"x": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    return struct.pack("<Q", len(header)) + header


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 7,
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 2) + b"{}" + b"trailing",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 62) + b'{"x":{"dtype":"F32","shape":[9],"data_offsets":[0,36000000]}} ',
        struct.pack("<Q", 58) + b'{"x":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]}}0000',
        of_shape([0, 1 << 62]),
        of_shape([0, 1 << 63, 1 << 63]),
        of_shape([0] + [1] * 99),
        b"\x80\x04pickle",
    ],
)
def test_tensors_that_are_something_else(run: Path, content: bytes) -> None:
    (newest(run) / "model.safetensors").write_bytes(content)
    record = {"nbytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    forge(run, files=lambda files: {**files, "model.safetensors": record})
    reason = assert_passed_over(run, "")
    assert "model.safetensors" in reason or "dtype F8_E4M3" in reason


def test_a_state_that_is_something_else(run: Path) -> None:
    content = b'{"$pickle": "gASVAAAA"}'
    (newest(run) / "state.json").write_bytes(content)
    record = {"nbytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    forge(run, files=lambda files: {**files, "state.json": record})
    assert load_checkpoint(run).step == 1


def test_nothing_valid_lists_what_was_found(run: Path) -> None:
    for step in (1, 2):
        (run / "checkpoints" / f"step-0000000{step}" / "state.json").unlink()
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(run)
    assert "step-00000002: state.json is missing" in str(caught.value)
    assert "step-00000001: state.json is missing" in str(caught.value)


@pytest.mark.parametrize("tag", [None, "best"])
def test_nothing_at_all(tmp_path: Path, tag: str | None) -> None:
    with CheckpointStore(tmp_path / "checkpoints"):
        pass
    with pytest.raises(CheckpointError, match="no checkpoint"):
        load_checkpoint(tmp_path, tag=tag)


def test_an_unknown_tag_names_the_known(run: Path) -> None:
    with CheckpointStore(run / "checkpoints") as store:
        store.keep_as(1, "best-error")
    with pytest.raises(CheckpointError, match="existing tags: best-error"):
        load_checkpoint(run, tag="best-cost")


def test_not_a_run(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    for path, got in [
        ("absent", "does not exist"),
        (".", "no checkpoints"),
        ("notes.txt", "not a dir"),
    ]:
        with pytest.raises(CheckpointError, match=got):
            load_checkpoint(tmp_path / path)


def test_the_tagged_one_helps_out(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    with CheckpointStore(run / "checkpoints") as store:
        store.save(1, arrays(1), tag="best")
    for step in (1, 2):
        (run / "checkpoints" / f"step-0000000{step}" / "manifest.json").unlink()
    with caplog.at_level(logging.WARNING):
        assert load_checkpoint(run).tag == "best"
    assert caplog.text.count("Skipped checkpoint") == 2


def test_a_directory_that_cannot_be_written_to(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(CheckpointError, match="must be writable to save") as caught:
        CheckpointStore(blocker / "checkpoints")
    assert isinstance(caught.value.__cause__, OSError)


@contextlib.contextmanager
def not_root() -> Iterator[None]:
    """Root may write anywhere, so be somebody else for a moment."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def test_a_read_only_directory() -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o555)
        with not_root(), pytest.raises(CheckpointError, match="Permission denied"):
            CheckpointStore(Path(name) / "checkpoints")


def test_a_directory_that_becomes_read_only() -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with CheckpointStore(directory) as store:
            store.save(1, arrays(1), {"step": 1}, blocking=True)
            directory.chmod(0o555)
            with not_root(), pytest.raises(CheckpointError, match="step 2 was not saved"):
                store.save(2, arrays(2), blocking=True)
        assert load_checkpoint(directory).step == 1


FULL_DISK = """
    import resource, signal, sys
    import numpy as np
    from pathlib import Path
    from towerpack import CheckpointError
    from towerpack.checkpoint import CheckpointStore, load_checkpoint

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    directory = Path(sys.argv[1])
    store = CheckpointStore(directory, keep=1)
    store.save(1, {"model": {"x": np.zeros(10)}}, blocking=True)
    if sys.argv[2] == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    store.save(2, {"model": {"x": np.zeros(1_000_000)}})
    try:
        store.wait()
    except CheckpointError as error:
        print(type(error.__cause__).__name__, error.__cause__.errno)
        print(error)
    print(*sorted(e.name for e in directory.iterdir()), load_checkpoint(directory).step)
    store.save(3, {"model": {"x": np.zeros(10)}})
    store.close()
    print(*sorted(e.name for e in directory.iterdir()), load_checkpoint(directory).step)
"""


def fill_the_disk(directory: Path, how: str) -> None:
    program = textwrap.dedent(FULL_DISK)
    command = [sys.executable, "-c", program, str(directory), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    first, *message, then, last = done.stdout.splitlines()
    assert first == f"OSError {errno.EFBIG if how == 'limit' else errno.ENOSPC}"
    assert "The checkpoint of step 2 was not saved" in message[0]
    assert "MB to write" in "\n".join(message)
    assert then == ".lock step-00000001 1"
    assert last == ".lock step-00000003 3"


def test_a_file_that_grows_too_large(tmp_path: Path) -> None:
    fill_the_disk(tmp_path, "limit")


@only_in_full
@pytest.mark.skipif(sys.platform != "linux", reason="mounts a small disk")
def test_a_full_disk(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("may not mount a small disk here")
    try:
        fill_the_disk(tmp_path, "mount")
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
