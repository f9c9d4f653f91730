"""Training in a notebook: an interrupt saves the run, and the kernel lives."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import start_new_kernel

SUPPORT = Path(__file__).parents[1] / "support"
SETUP = f"""
import sys; sys.path.insert(0, {str(SUPPORT)!r})
import time
from pathlib import Path
from small_training import LINE, train
from towerpack.callbacks import Callback, ModelSaver

class Slow(Callback):
    def after_step(self, outputs):
        time.sleep(0.02)
"""
TRAIN = """
trainer = train(Path("run"), [Slow(), ModelSaver()], model=LINE, max_epoch={epochs})
print("ended at", trainer.global_step)
"""


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Any]:
    manager, client = start_new_kernel(cwd=str(tmp_path))
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def outcome(client: Any, seconds: float = 120) -> tuple[str, str]:
    """Wait for the end of the cell that runs; return its status and what it printed."""
    printed, deadline = [], time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            message = client.get_iopub_msg(timeout=1)
        except queue.Empty:
            continue
        content = message["content"]
        printed.append(content.get("text", "") + content.get("ename", ""))
        if content.get("execution_state") == "idle":
            return client.get_shell_msg(timeout=10)["content"]["status"], "".join(printed)
    raise TimeoutError("".join(printed))


@pytest.mark.slow
def test_an_interrupt_saves_and_the_next_cell_continues(kernel: Any, tmp_path: Path) -> None:
    manager, client = kernel
    client.execute(SETUP)
    status, printed = outcome(client)
    assert status == "ok", printed
    client.execute(TRAIN.format(epochs=1000))
    checkpoints = tmp_path / "run" / "checkpoints"
    deadline = time.monotonic() + 60
    while not list(checkpoints.glob("step-*")):
        assert time.monotonic() < deadline, outcome(client)
        time.sleep(0.05)
    manager.interrupt_kernel()
    status, printed = outcome(client)
    assert (status, printed.count("KeyboardInterrupt")) == ("error", 1), printed
    newest = max(int(path.name.partition("-")[2]) for path in checkpoints.glob("step-*"))
    client.execute(TRAIN.format(epochs=newest // 6 + 2))
    status, printed = outcome(client)
    assert status == "ok" and f"ended at {6 * (newest // 6 + 2)}" in printed, printed
    assert f"step {newest}" in printed  # where it continued
