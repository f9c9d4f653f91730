"""What a training tells its monitors besides numbers; a monitor that fails while it goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from small_training import train
from towerpack.callbacks.monitors import Monitor, TensorBoardMonitor


class Down(Monitor):
    def end_epoch(self) -> None:
        raise ConnectionError("refused")


def test_graph_and_settings_reach_tensorboard(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    hparams = pytest.importorskip("tensorboard.plugins.hparams.metadata")
    trainer = train(tmp_path / "run", monitors=[TensorBoardMonitor(tmp_path / "events"), Down()])
    assert trainer.complete
    assert caplog.text.count("Down failed (ConnectionError: refused). Training goes on") == 1
    found = accumulator.EventAccumulator(str(tmp_path / "events"))
    found.Reload()
    assert any("fc0" in node.name or node.op == "MatMul" for node in found.Graph().node)
    content = found.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    given = hparams.parse_session_start_info_plugin_data(content).hparams
    assert given["seed"].number_value == 5
    assert given["learning_rate"].number_value == pytest.approx(0.05)
