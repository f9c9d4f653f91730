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


def outcome(
    client: Any, cell: str, shown: list[dict[str, Any]] | None = None, seconds: float = 120
) -> tuple[str, str]:
    """Wait for the end of a cell by its id; return its status and what it printed.

    `shown` receives the contents of the messages that display something.
    """
    printed, deadline = [], time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            message = client.get_iopub_msg(timeout=1)
        except queue.Empty:
            continue
        if message["parent_header"].get("msg_id") != cell:
            continue
        content = message["content"]
        if shown is not None and "data" in content:
            shown.append(content)
        printed.append(content.get("text", "") + content.get("ename", ""))
        if content.get("execution_state") == "idle":
            reply = client.get_shell_msg(timeout=10)
            while reply["parent_header"]["msg_id"] != cell:
                reply = client.get_shell_msg(timeout=10)
            return reply["content"]["status"], "".join(printed)
    raise TimeoutError("".join(printed))


@pytest.mark.slow
def test_an_interrupt_saves_and_the_next_cell_continues(kernel: Any, tmp_path: Path) -> None:
    manager, client = kernel
    status, printed = outcome(client, client.execute(SETUP))
    assert status == "ok", printed
    cell = client.execute(TRAIN.format(epochs=1000))
    checkpoints = tmp_path / "run" / "checkpoints"
    deadline = time.monotonic() + 60
    while not list(checkpoints.glob("step-*")):
        assert time.monotonic() < deadline, outcome(client, cell)
        time.sleep(0.05)
    manager.interrupt_kernel()
    status, printed = outcome(client, cell)
    assert (status, printed.count("KeyboardInterrupt")) == ("error", 1), printed
    newest = max(int(path.name.partition("-")[2]) for path in checkpoints.glob("step-*"))
    cell = client.execute(TRAIN.format(epochs=newest // 6 + 2))
    status, printed = outcome(client, cell)
    assert status == "ok" and f"ended at {6 * (newest // 6 + 2)}" in printed, printed
    assert f"step {newest}" in printed  # where it continued


DISPLAYS = """
import numpy as np
from towerpack.dataflow.images import image_grid
trainer = train(
    Path("run"), [Slow()], model=LINE, max_epoch=40, monitors=None, extra_callbacks=None
)
"""


@pytest.mark.slow
def test_a_run_shows_one_table_and_one_bar(kernel: Any) -> None:
    _, client = kernel
    messages: list[dict[str, Any]] = []
    status, printed = outcome(client, client.execute(SETUP + DISPLAYS), messages)
    assert status == "ok", printed
    places = {m["transient"]["display_id"]: m["data"]["text/html"] for m in messages}
    assert len(places) == 2, printed  # however many epochs there are
    table = next(text for text in places.values() if "<table>" in text)
    assert table.count("<tr>") == 31 and ">cost<" in table and ">40<" in table
    assert "" in places.values()  # the bar has gone
    assert any("Epoch 40/40" in m["data"]["text/html"].replace("</span>", "") for m in messages)
    assert len(printed.splitlines()) < 20, printed


@pytest.mark.slow
def test_results_show_themselves(kernel: Any) -> None:
    _, client = kernel
    setup = client.execute(SETUP + DISPLAYS.partition("trainer")[0])
    assert outcome(client, setup)[0] == "ok"
    for cell, kind in {
        "image_grid([np.zeros([8, 8, 3], np.uint8)] * 3)": "image/png",
        "from towerpack.describe import model_summary\nmodel_summary(LINE)": "text/html",
        "from towerpack.callbacks.monitors import Monitors\nm = Monitors()\n"
        "m.put_scalar('a', 1.5)\nm": "text/html",
    }.items():
        shown: list[dict[str, Any]] = []
        status, printed = outcome(client, client.execute(cell), shown)
        assert status == "ok" and kind in shown[-1]["data"], printed
