"""Steps that cannot be read again say why; the commands show what is read."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from typer.testing import CliRunner

from small_training import LINE, SPECS, X, Y, config, train
from towerpack import ConfigError
from towerpack.callbacks import Callback, ModelSaver
from towerpack.cli import app
from towerpack.dataflow import (
    BatchData,
    DataFromArrays,
    DataFromGenerator,
    MapData,
    ShuffleData,
    WithoutRows,
)
from towerpack.inputs import (
    FeedInput,
    StagingInput,
    TensorInput,
    TFDatasetInput,
    remap_input_source,
)
from towerpack.training import AsyncMultiGPUTrainer, TrainConfig, batch_of_step
from towerpack.training.replay.audit import rows_read
from towerpack.training.replay.batch import Replay

PROGRAM = """
import numpy as np
from towerpack.dataflow import BatchData, DataFromArrays, MapData, ShuffleData

X, Y = np.load({x!r}), np.load({y!r})

def flow():
    return BatchData(ShuffleData(DataFromArrays(X, Y)), 8)

def other():
    return BatchData(DataFromArrays(X, Y), 8)
"""


def flow() -> BatchData:
    return BatchData(ShuffleData(DataFromArrays(X, Y)), 8)


def settings(run: Path, **changed: Any) -> TrainConfig:
    data = {} if "data" in changed else {"dataflow": flow()}
    return config(run, [ModelSaver(max_to_keep=9)], **{"model": LINE, **data, **changed})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 steps, then again from step 6 to step 12."""
    path = tmp_path_factory.mktemp("replay") / "run"
    train(path, [ModelSaver(max_to_keep=9)], model=LINE, dataflow=flow(), max_epoch=4)
    checkpoint = path / "checkpoints/step-00000006"
    train(
        path, [ModelSaver()], model=LINE, dataflow=flow(), resume=checkpoint, on_existing="resume"
    )
    return path


def test_the_final_course_counts(run: Path) -> None:
    for step in (1, 6, 7, 12):
        batch = batch_of_step(settings(run), step)
        rows = [origin.index for origin in batch.origins]
        assert batch.arrays["x"].tobytes() == X[rows].tobytes()
        assert batch.arrays["y"].tobytes() == Y[rows].tobytes()
        again = batch_of_step(run, step, data=flow())
        assert again.origins == batch.origins


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (0, "has not trained step 0"),
        (13, "abandoned"),
        (24, "abandoned"),
        (25, "has not trained step 25"),
    ],
)
def test_steps_outside_of_the_course(run: Path, step: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        batch_of_step(run, step, data=flow())


def test_other_bad_input(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="replica must be from 0 to 0"):
        batch_of_step(run, 1, 1, data=flow())
    with pytest.raises(ConfigError, match="are needed to read a step"):
        batch_of_step(run, 1)
    with pytest.raises(ConfigError, match="not a run directory"):
        batch_of_step(tmp_path, 1, data=flow())
    zeros = TensorInput(lambda: [tf.zeros([8, 3]), tf.zeros([8])])
    train(tmp_path, model=LINE, data=zeros, steps_per_epoch=2)
    with pytest.raises(ConfigError, match="TensorInput cannot read past steps"):
        batch_of_step(tmp_path, 1, data=zeros)


def test_changed_pipelines_are_refused_with_the_difference(run: Path) -> None:
    for changed, names in (
        (BatchData(ShuffleData(DataFromArrays(X, Y)), 4), ["data", "BatchData(8)", "BatchData(4)"]),
        (BatchData(ShuffleData(DataFromArrays(X + 1, Y)), 8), ["data.content"]),
        (MapData(flow(), lambda row: row), ["data.functions"]),
    ):
        with pytest.raises(ConfigError, match="not that of") as refused:
            batch_of_step(run, 1, data=changed)
        assert all(name in str(refused.value) for name in names)


def test_a_damaged_log_of_the_data(tmp_path: Path) -> None:
    train(tmp_path, model=LINE, dataflow=flow())
    expected = batch_of_step(tmp_path, 9, data=flow())
    log = tmp_path / "ledger.jsonl"
    lines = log.read_text().splitlines()
    event = next(tree for tree in map(json.loads, lines) if tree["event"] == "data")
    forged = {"seed": {}, "inputs": [["x", "no", [2]]], "workers": 10**9, "settings": 5, "no": 0}
    starts = [{**event["start"], name: value} for name, value in forged.items()]
    damaged = [json.dumps({**event, "start": start}) for start in [*starts, 7]]
    log.write_text("\n".join([*lines[:-1], *damaged, "[1", lines[-1], ""]))
    assert batch_of_step(tmp_path, 9, data=flow()).origins == expected.origins
    for text in (f"{lines[0]}\n", None):
        with pytest.raises(ConfigError, match="not a run directory with records"):
            log.unlink() if text is None else log.write_text(text)
            batch_of_step(settings(tmp_path), 9)


def test_generators_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def rows() -> Any:
        yield from zip(X, Y, strict=True)

    data = BatchData(DataFromGenerator(rows), 8)
    train(tmp_path, [ModelSaver()], model=LINE, dataflow=data, steps_per_epoch=5, max_epoch=3)
    with caplog.at_level(logging.WARNING):
        batch = batch_of_step(settings(tmp_path, dataflow=data), 14)
    assert list(batch.inexact) == ["DataFromGenerator(rows)"]
    assert "DataFromGenerator(rows)" in caplog.text
    assert batch.arrays["x"].tobytes() == X[8:16].tobytes()


def dataset() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(48, seed=3).batch(8)


@pytest.mark.parametrize(
    "make",
    [
        lambda: StagingInput(FeedInput(flow()), device="CPU:0"),
        lambda: remap_input_source(
            FeedInput(MapData(flow(), lambda row: (row[1], row[0]))), ["y", "x"]
        ),
        lambda: TFDatasetInput(dataset()),
        lambda: FeedInput(flow(), infinite=False),
    ],
)
def test_every_kind_of_source(tmp_path: Path, make: Any) -> None:
    recorded: list[np.ndarray] = []

    class Record(Callback):
        def setup(self, trainer: Any) -> None:
            self.fetch("x")

        def after_step(self, outputs: Any) -> None:
            recorded.append(outputs["x"])

    def build(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        from towerpack.nn import expose

        expose("x", tf.identity(x))
        return LINE[1](x, y)

    train(tmp_path, [Record()], model=(SPECS, build, LINE[2]), data=make(), steps_per_epoch=3)
    for step, x in enumerate(recorded, 1):
        batch = batch_of_step(settings(tmp_path, data=make()), step)
        assert batch.arrays["x"].tobytes() == x.tobytes()
        # The data in a tf.data.Dataset cannot be compared.
        assert bool(batch.inexact) == isinstance(make(), TFDatasetInput)


def test_passed_over_batches(tmp_path: Path) -> None:
    class Patient(Callback):
        def setup(self, trainer: Any) -> None:
            trainer.stop_on_nonfinite()

    x = X.copy()
    x[19] = np.nan
    data = BatchData(DataFromArrays(x, Y), 8)
    train(
        tmp_path, [Patient(), ModelSaver()], model=LINE, dataflow=data, extra_callbacks=[],
        steps_per_epoch=4, max_epoch=3,
    )  # fmt: skip
    read = [batch_of_step(tmp_path, step, data=data).origins[0].index for step in range(1, 13)]
    assert read == [0, 8, 24, 32, 40, 0, 8, 24, 32, 40, 0, 8]


def test_what_was_trained_is_counted(tmp_path: Path) -> None:
    """Skipped steps and batches that were passed over are not; other rows are another pipeline."""
    clean = BatchData(WithoutRows(ShuffleData(DataFromArrays(X, Y)), [5]), 8)
    shared: dict[str, Any] = {"model": LINE, "steps_per_epoch": 6}
    skips = [(2, 3), 9, (11, 20)]
    train(tmp_path, [ModelSaver()], dataflow=flow(), max_epoch=2, skip_steps=skips, **shared)
    train(tmp_path, [ModelSaver()], dataflow=clean, max_epoch=3, **shared)
    for pipeline, steps in ((flow(), (1, 4, 5, 6, 7, 8, 10)), (clean, range(13, 19))):
        replay = Replay(tmp_path, pipeline)
        expected = np.zeros(48, np.int64)
        for step in steps:
            np.add.at(expected, [origin.index for origin in replay.batch(step).origins], 1)
        count, counts = rows_read(replay)
        assert count == len(steps) and next(iter(counts.values())).tolist() == expected.tolist()
    with pytest.raises(ConfigError, match=r"in steps 1 to 12"):
        rows_read(Replay(tmp_path, BatchData(DataFromArrays(X, Y), 8)))


def test_asynchronous_steps_are_refused(tmp_path: Path) -> None:
    trainer = AsyncMultiGPUTrainer(settings(tmp_path), ["CPU:0"])
    trainer.train()
    with pytest.raises(ConfigError, match="batches in any order"):
        batch_of_step(tmp_path, 3, data=flow())
    assert {*np.concatenate([*rows_read(Replay(tmp_path, flow()))[1].values()])} == {2}


def command(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["runs", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_commands(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for name, array in (("x", X), ("y", Y)):
        np.save(tmp_path / f"{name}.npy", array)
    program = tmp_path / "steps.py"
    paths = {name: str(tmp_path / f"{name}.npy") for name in "xy"}
    program.write_text(PROGRAM.format(**paths))
    out = tmp_path / "rows.npz"
    given = ("--flow", f"{program}:flow")
    text = command("batch", run, "--step", 7, *given, "--out", out)
    batch = batch_of_step(run, 7, data=flow())
    assert [line.split()[-3] for line in text.splitlines() if "DataFromArrays" in line] == [
        str(origin.index) for origin in batch.origins
    ]
    assert np.load(out)["x"].tobytes() == batch.arrays["x"].tobytes()
    counted = command("data", run, *given)
    assert "12 of 12 steps trained" in counted
    cells = ["DataFromArrays(48)", "48", "96", "100.0%", "2", "2", "0"]
    assert cells in [line.split() for line in counted.splitlines()]
    with pytest.raises(ConfigError, match="not that of"):
        command("batch", run, "--step", 7, "--flow", f"{program}:other")
    with pytest.raises(ConfigError, match="program that made") as refused:
        command("batch", run, "--step", 7)
    assert "--flow" in str(refused.value)
    with pytest.raises(ConfigError, match="batch of images"):
        command("batch", run, "--step", 7, *given, "--grid", tmp_path / "a.png")
