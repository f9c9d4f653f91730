"""MLflow and Weights & Biases, the real packages, on stores in files."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from towerpack import ConfigError
from towerpack.callbacks.monitors import (
    JSONLMonitor,
    MLflowMonitor,
    Monitor,
    Monitors,
    WandbMonitor,
    read_stats,
)

PICTURE = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of the machine, and MLflow's store in files, which it wants to be asked for."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for name in ("WANDB_API_KEY", "WANDB_MODE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)


def put(monitor: Monitor, steps: range, settings: dict[str, Any]) -> None:
    """What a start of a training puts."""
    monitors = Monitors([monitor])
    monitors.put_settings(settings)
    for step in steps:
        monitors.set_step(step, 1)
        monitors.put_scalar("val/error", 1 / step)
        monitors.put_scalar("odd [name]", math.nan)
        monitors.put_histogram("weights", [1.0, 2.0, math.inf])
    monitors.put_image("val/confusion", PICTURE)
    monitors.put_image("grey", PICTURE[..., :1])
    monitors.end_epoch()
    monitors.close()


@pytest.mark.usefixtures("quiet")
def test_mlflow_holds_both_starts_in_one_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import mlflow

    uri = f"file:{tmp_path}/mlruns"
    for steps, rate in ((range(1, 1010), 0.1), (range(1000, 1013), 0.2)):
        monitor = MLflowMonitor(tmp_path / "run", experiment="test", tracking_uri=uri)
        monitor.resume(steps[0] - 1)
        put(monitor, steps, {"rate": rate, "seed": 1})
    assert "earlier values of: rate" in caplog.text
    client: Any = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("test")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "run" and run.info.status == "FINISHED"
    assert run.data.params == {"rate": "0.1", "seed": "1"}
    found = [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "val/error")]
    assert sorted(found) == [(step, 1 / step) for step in range(1, 1013)]
    assert len(client.get_metric_history(run.info.run_id, "odd _name_")) == 1012
    pictures = [item.path for item in client.list_artifacts(run.info.run_id, "images")]
    assert sum(path.endswith(".png") for path in pictures) == 4


def records(path: Path) -> Iterator[Any]:
    """Those of a run of wandb, whose files are logs in LevelDB's format after 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            record: Any = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


def rows(run_dir: Path) -> tuple[set[str], dict[str, str], list[dict[str, Any]]]:
    """Ids, configuration and values of all starts of a run."""
    import wandb

    wandb.teardown()  # As at the end of a process: until then its own process may be writing.
    ids, config, values = set(), {}, []
    for path in sorted(run_dir.glob("wandb/offline-run-*/*.wandb")):
        for record in records(path):
            for update in record.run.config.update:
                config[update.key] = update.value_json
            for update in record.config.update:
                config[update.key] = update.value_json
            items = {(i.key or "/".join(i.nested_key)): i.value_json for i in record.history.item}
            if items:
                values.append({name: json.loads(text) for name, text in items.items()})
            ids |= {record.run.run_id} - {""}
    return ids, config, values


@pytest.mark.usefixtures("quiet")
def test_wandb_holds_both_starts_in_one_run(tmp_path: Path) -> None:
    for steps, rate in ((range(1, 4), 0.1), (range(4, 6), 0.2)):
        put(WandbMonitor(tmp_path, project="test", mode="offline"), steps, {"rate": rate})
    ids, config, found = rows(tmp_path)
    assert ids == {(tmp_path / "wandb-id").read_text()}
    assert json.loads(config["rate"]) == 0.2
    assert [row["global_step"] for row in found] == [1, 2, 3, 4, 5]
    assert [row["val/error"] for row in found] == [1 / step for step in range(1, 6)]
    assert sum(found[0]["weights/values"]) == 2
    assert found[2]["val/confusion/width"] == 5
    assert len(list(tmp_path.rglob("*.png"))) == 4


@pytest.mark.usefixtures("quiet")
def test_without_a_server_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing listens on port 9. The run of wandb becomes an offline one."""
    import wandb

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    nowhere = "http://127.0.0.1:9"
    settings = wandb.Settings(
        base_url=nowhere, api_key="0" * 40, init_timeout=1, console="off", silent=True
    )
    monitors = Monitors(
        [
            MLflowMonitor(tmp_path, tracking_uri=nowhere),
            WandbMonitor(tmp_path, settings=settings),
            JSONLMonitor(tmp_path / "stats.jsonl"),
        ]
    )
    monitors.put_settings({"rate": 0.1})
    for step in (1, 2):
        monitors.set_step(step, 1)
        monitors.put_scalar("cost", 1.0)
        monitors.end_epoch()
    monitors.close()
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert [record.scalars for record in read_stats(tmp_path / "stats.jsonl")] == [
        {"cost": 1.0}
    ] * 2
    assert sum("MLflowMonitor" in text and "Training goes on" in text for text in warnings) == 1
    assert sum("`wandb sync" in text for text in warnings) == 1
    assert [row["cost"] for row in rows(tmp_path)[2]] == [1.0, 1.0]


@pytest.mark.usefixtures("quiet")
def test_a_store_that_mlflow_refuses(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="MLflow cannot open the store"):
        MLflowMonitor(tmp_path, tracking_uri="nonsense://x")
