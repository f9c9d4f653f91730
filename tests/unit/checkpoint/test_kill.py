"""SIGKILL at any moment: what is on disk is whole, and the next writer goes on."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from scaling import sample, scaled
from towerpack.checkpoint import CheckpointStore, list_checkpoints, load_checkpoint

# Saves, keeps as best, removes and replaces as fast as it can, from where it was killed.
PROGRAM = """
    import sys
    import numpy as np
    from pathlib import Path
    from towerpack import CheckpointError
    from towerpack.checkpoint import CheckpointStore, load_checkpoint

    directory = Path(sys.argv[1])
    with CheckpointStore(directory, keep=2) as store:
        try:
            step = load_checkpoint(directory).step
        except CheckpointError:
            step = 0
        print("ready", flush=True)
        while True:
            step += 1
            arrays = {"kernel": np.full(20_000, step, np.float32)}
            slots = {"iterations": np.array(step)}
            for _ in range(2):
                store.save(step, {"model": arrays, "optimizer": slots}, {"step": step})
                print(".", flush=True)
            if step % 2:
                store.keep_as(step, "best-error")
            else:
                store.save(step, {"model": arrays, "optimizer": slots}, {"step": step}, tag="last")
"""


def assert_whole(directory: Path, last: int) -> int:
    """Everything with a visible name is valid; returns the newest step."""
    rows = list_checkpoints(directory)
    assert [(row.path.name, row.problem) for row in rows if not row.valid] == []
    newest = last
    for tag in [None, *{row.tag for row in rows if row.tag}]:
        found = load_checkpoint(directory, tag=tag)
        assert found.state == {"step": found.step}
        assert found.optimizer["iterations"] == found.step
        np.testing.assert_array_equal(
            found.model["kernel"], np.full(20_000, found.step, np.float32)
        )
        if tag is None:
            newest = found.step
    assert newest >= last
    return newest


def test_killed_while_saving(tmp_path: Path) -> None:
    rng = random.Random(0)
    with CheckpointStore(tmp_path) as store:
        store.save(0, {"model": {"kernel": np.full(20_000, 0, np.float32)},
                       "optimizer": {"iterations": np.array(0)}}, {"step": 0})  # fmt: skip
    last, leftovers = 0, 0
    kills = scaled(200)
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path)]
    for _ in range(kills):
        child = subprocess.Popen(command, stdout=subprocess.PIPE)
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            # Counted in its own work, so that a busy machine makes no difference.
            started, dots = time.perf_counter(), rng.randint(1, 4)
            assert child.stdout.read(2 * dots) == b".\n" * dots
            time.sleep(rng.uniform(0, (time.perf_counter() - started) / dots))
        finally:
            child.send_signal(signal.SIGKILL)
            child.communicate()
        leftovers += len([e for e in tmp_path.iterdir() if e.name.startswith((".tmp", ".trash"))])
        last = assert_whole(tmp_path, last)
    # Or else the kills came at harmless moments and prove nothing.
    assert leftovers > kills / 10
    assert last > kills / 4
    with CheckpointStore(tmp_path):
        hidden = [e.name for e in tmp_path.iterdir() if e.name.startswith(".")]
    assert hidden == [".lock"]


STOPPED_REMOVAL = """
    import os, signal, sys
    import numpy as np
    from towerpack.checkpoint import CheckpointStore, _write

    def stop_half_way(path):
        names = sorted(os.listdir(path))
        os.unlink(path / names[int(sys.argv[2])])
        os.kill(os.getpid(), signal.SIGKILL)

    store = CheckpointStore(sys.argv[1], keep=1)
    arrays = {"model": {"x": np.zeros(3)}, "optimizer": {"y": np.zeros(3)}}
    store.save(1, arrays, blocking=True)
    real = _write.shutil.rmtree
    def remove(path, **options):
        doomed = path.name.startswith(".trash") and path.exists()
        stop_half_way(path) if doomed else real(path, **options)

    _write.shutil.rmtree = remove
    store.save(2, arrays, blocking=True)
"""


@pytest.mark.parametrize("file", sample(range(4)))
def test_killed_while_removing(tmp_path: Path, file: int) -> None:
    command = [sys.executable, "-c", textwrap.dedent(STOPPED_REMOVAL), str(tmp_path), str(file)]
    done = subprocess.run(command, capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert [row.path.name for row in list_checkpoints(tmp_path)] == ["step-00000002"]
    assert load_checkpoint(tmp_path).step == 2
    assert sum(entry.name.startswith(".trash") for entry in tmp_path.iterdir()) == 1
    with CheckpointStore(tmp_path):
        pass
    assert not any(entry.name.startswith(".trash") for entry in tmp_path.iterdir())
