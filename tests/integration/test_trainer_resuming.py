"""Resuming: optimizers, sources, histories, run directories, seeds."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from scaling import sample
from small_training import (
    LINE,
    SPECS,
    Counts,
    Do,
    Model,
    Recorded,
    X,
    Y,
    assert_resumes,
    assert_same,
    config,
    fail,
    flow,
    stop,
    train,
)
from towerpack import ConfigError
from towerpack.callbacks import (
    Callback,
    InferenceRunner,
    ModelSaver,
    PeriodicTrigger,
    ScalarStats,
    ScheduledHyperParamSetter,
)
from towerpack.callbacks.monitors import JSONLMonitor, read_stats
from towerpack.checkpoint import load_checkpoint
from towerpack.dataflow import BatchData, DataFromArrays, ShuffleData
from towerpack.inputs import (
    DummyConstantInput,
    FeedInput,
    QueueInput,
    StagingInput,
    TensorInput,
    TFDatasetInput,
)
from towerpack.training import SimpleTrainer

pytestmark = pytest.mark.usefixtures("nothing_to_collect", "no_thread_is_left")


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "adamw": lambda: keras.optimizers.AdamW(0.05, weight_decay=0.1),
    "schedule": lambda: keras.optimizers.Adam(
        keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)
    ),
    "clipnorm": lambda: keras.optimizers.SGD(0.05, clipnorm=0.1),
    "global clipnorm": lambda: keras.optimizers.RMSprop(0.01, global_clipnorm=0.1, centered=True),
    "ema": lambda: keras.optimizers.SGD(0.05, use_ema=True, ema_overwrite_frequency=3),
    "accumulation": lambda: keras.optimizers.SGD(0.05, gradient_accumulation_steps=2),
    "v1 adam": lambda: tf.compat.v1.train.AdamOptimizer(0.05),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01)),
    "v1 momentum": lambda: tf.compat.v1.train.MomentumOptimizer(0.05, 0.9),
    "v1 sgd": lambda: tf.compat.v1.train.GradientDescentOptimizer(0.05),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sample(list(OPTIMIZERS), at_least=2))
def test_optimizers_resume(tmp_path: Path, name: str) -> None:
    trainer = assert_resumes(tmp_path, model=lambda: Model(OPTIMIZERS[name]))
    if name != "schedule":
        assert trainer.hyper_param_names() == ["learning_rate"]


def test_an_optimizer_can_be_given_to_the_config(tmp_path: Path) -> None:
    used = keras.optimizers.SGD(0.0625)
    trainer = train(tmp_path, optimizer=used, model=(SPECS, Model().build_graph))
    assert trainer.hyper_param("learning_rate").get() == 0.0625
    with pytest.raises(ConfigError, match="must be an optimizer object") as caught:
        train(tmp_path / "b", optimizer=keras.optimizers.SGD)
    assert "create an instance" in str(caught.value)
    with pytest.raises(ConfigError, match="has been used"):
        train(tmp_path / "c", optimizer=used)


SOURCES: dict[str, Callable[[], Any]] = {
    "feed": lambda: FeedInput(BatchData(ShuffleData(DataFromArrays(X, Y)), 8)),
    "queue": lambda: QueueInput(BatchData(ShuffleData(DataFromArrays(X, Y)), 8), 3),
    "tensor": lambda: TensorInput(
        lambda step: [
            tf.random.stateless_normal([8, 3], tf.stack([7, step])),
            tf.random.stateless_normal([8], tf.stack([8, step])),
        ],
        6,
    ),
    "dataset": lambda: TFDatasetInput(
        tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(20, seed=1).batch(8)
    ),
    "dummy": lambda: DummyConstantInput([[8, 3], [8]]),
    "staged": lambda: StagingInput(SOURCES["dataset"](), 2, "CPU:0"),
}


@pytest.mark.parametrize("name", sample(list(SOURCES)))
def test_sources_resume(tmp_path: Path, name: str) -> None:
    whole = train(tmp_path / "a", [ModelSaver()], data=SOURCES[name](), steps_per_epoch=6)
    ended = [Do("trigger_step", stop, 2), PeriodicTrigger(ModelSaver(), every_k_steps=2)]
    train(tmp_path / "b", ended, data=SOURCES[name](), steps_per_epoch=6)
    parts = train(tmp_path / "b", [ModelSaver()], data=SOURCES[name](), steps_per_epoch=6)
    assert parts.global_step == 12
    assert_same(parts.get_weights(), whole.get_weights())


def test_history_after_a_resume_is_that_of_an_undisturbed_run(paced: Any, tmp_path: Path) -> None:
    def run(name: str, *callbacks: Callback) -> SimpleTrainer:
        directory = tmp_path / name
        runner = InferenceRunner(flow(10, remainder=True), ScalarStats("cost"))
        return train(
            directory,
            [runner, PeriodicTrigger(ModelSaver(), every_k_steps=2), *callbacks],
            monitors=[JSONLMonitor(directory / "stats.jsonl")],
            max_epoch=3,
        )

    paced(3)
    whole = run("whole")
    for step in (7, 12):
        with pytest.raises(KeyError):
            run("parts", Do("trigger_step", fail, step))
    parts = run("parts")
    for name in ("cost", "mean", "last", "val/cost", "learning_rate"):
        assert parts.monitors.history(name) == whole.monitors.history(name), name
    assert_same(parts.get_weights(), whole.get_weights())


def test_resume_never_auto_and_path(tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = train(run, [ModelSaver()], model=LINE)
    assert train(run, [ModelSaver()], model=LINE, resume="auto").was_complete
    never = train(run, [ModelSaver()], model=LINE, resume="never", max_epoch=1)
    assert (never.run_dir, never.global_step) == (tmp_path / "run-2", 6)
    by_path = train(tmp_path / "other", model=LINE, resume=run / "checkpoints" / "step-00000006")
    assert by_path.global_step == 12
    assert_same(by_path.get_weights(), first.get_weights())
    by_run = train(tmp_path / "more", model=LINE, resume=str(run), max_epoch=3)
    assert (by_run.global_step, by_run.was_complete) == (18, False)
    with pytest.raises(Exception, match="nowhere does not exist"):
        train(tmp_path / "none", model=LINE, resume=tmp_path / "nowhere")


def test_resuming_opens_only_the_newest_checkpoint(tmp_path: Path) -> None:
    train(tmp_path, [ModelSaver(max_to_keep=4)], model=LINE, max_epoch=4)
    opened: list[str] = []
    recording = True

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if recording and event == "open" and isinstance(args[0], str | Path):
            opened.append(str(args[0]))

    sys.addaudithook(hook)  # it cannot be removed
    seen = list[str]()
    before = Do("before_train", lambda _: seen.extend(opened))
    train(tmp_path, [ModelSaver(max_to_keep=4), before], model=LINE, max_epoch=5)
    recording = False
    found = {part for path in seen for part in Path(path).parts if part.startswith("step-")}
    assert found == {"step-00000024"}


def test_a_fresh_start_in_the_same_directory_puts_the_old_aside(tmp_path: Path) -> None:
    train(tmp_path, [ModelSaver()], model=LINE)
    train(tmp_path, [ModelSaver()], model=LINE, resume="never", on_existing="resume", max_epoch=1)
    assert load_checkpoint(tmp_path).step == 6
    assert len(list((tmp_path / "checkpoints").glob("abandoned-*"))) == 2
    history = train(tmp_path, model=LINE, resume="auto", max_epoch=1).monitors
    assert history.names() == []


def test_on_existing(tmp_path: Path) -> None:
    train(tmp_path / "run", [ModelSaver()], model=LINE, max_epoch=1)
    with pytest.raises(ConfigError, match="exists already"):
        train(tmp_path / "run", model=LINE, on_existing="error")
    new = train(tmp_path / "run", model=LINE, on_existing="new", max_epoch=1)
    assert (new.run_dir.name, new.global_step) == ("run-2", 6)
    saved = tmp_path / "run" / "checkpoints"
    for source in ("init", "resume"):
        with pytest.raises(ConfigError, match="would delete"):
            train(tmp_path / "run", model=LINE, on_existing="delete", **{source: saved})
    assert load_checkpoint(tmp_path / "run").step == 6
    train(tmp_path / "run", model=LINE, on_existing="delete", max_epoch=1)
    assert not (saved / "step-00000006").exists()


def test_a_drawn_seed_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = train(tmp_path, [ModelSaver()], model=LINE, seed=None, max_epoch=1)
    again = train(tmp_path, [ModelSaver()], model=LINE, seed=None)
    assert again.seed == first.seed == load_checkpoint(tmp_path).state["seed"]
    train(tmp_path, model=LINE, seed=first.seed + 1, max_epoch=3)
    [row] = [line.split() for line in caplog.text.splitlines() if line.startswith("  seed")]
    assert row[1:3] == [str(first.seed), str(first.seed + 1)]


def test_a_seed_is_drawn_once_even_if_nothing_was_saved(tmp_path: Path) -> None:
    seeds = {train(tmp_path, model=LINE, seed=None, max_epoch=1).seed for _ in range(2)}
    assert len(seeds) == 1


def test_two_at_once_in_one_directory(tmp_path: Path) -> None:
    def second(callback: Callback) -> None:
        with pytest.raises(ConfigError, match="is in use"):
            train(tmp_path, model=LINE)

    train(tmp_path, [Do("trigger", second)], model=LINE, max_epoch=1)


def test_a_trainer_is_for_one_training(tmp_path: Path) -> None:
    trainer = SimpleTrainer(config(tmp_path, model=LINE))
    with pytest.raises(ConfigError, match=r"available only after"):
        trainer.get_weights()
    trainer.train()
    with pytest.raises(ConfigError, match="has been used"):
        trainer.train()


def test_what_the_run_was_is_written_down(tmp_path: Path) -> None:
    for epochs in (1, 2):
        train(tmp_path, [ModelSaver()], model=LINE, max_epoch=epochs)
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["seed"] == 5
    assert [start["resumed_at"] for start in record["starts"]] == [None, 6]
    assert record["starts"][0]["versions"]["tensorflow"] == tf.__version__
    assert record["config"]["max_epoch"] == 2
    assert "ModelSaver" in str(record["config"]["callbacks"])
    assert (tmp_path / "log.txt").read_text().count("Complete: ") == 2


def test_callbacks_keep_their_state_by_name_and_others_may_come_and_go(tmp_path: Path) -> None:
    kept, back = Counts(), Counts()
    starts = [[Counts()], [Recorded(), kept], [], [back]]
    for epoch, callbacks in enumerate(starts, 1):
        train(tmp_path, [*callbacks, ModelSaver()], model=LINE, max_epoch=epoch)
    assert (kept.count, back.count) == (12, 6)


@pytest.mark.parametrize("hook", sample(["after_epoch", "trigger"]))
def test_numbers_after_a_kill_at_the_end_of_an_epoch(paced: Any, tmp_path: Path, hook: str) -> None:
    """A save by steps falls on the epoch's last one; the process is killed among its triggers."""
    paced(4)

    def run(name: str, *more: Callback) -> SimpleTrainer:
        schedule = ScheduledHyperParamSetter("learning_rate", [(1, 0.02), (2, 0.01)])
        saver = PeriodicTrigger(ModelSaver(), every_k_steps=6)
        stats = JSONLMonitor(tmp_path / name / "stats.jsonl")
        return train(tmp_path / name, [saver, schedule, *more], monitors=[stats], max_epoch=3)

    def copy(callback: Callback) -> None:
        callback.trainer.monitors.flush()
        callback.trainer._saves.store.wait()
        shutil.copytree(tmp_path / "undisturbed", tmp_path / "killed")

    undisturbed = run("undisturbed", Do(hook, copy, at=6))
    assert load_checkpoint(tmp_path / "killed").step == 6
    killed = run("killed")
    assert_same(killed.get_weights(), undisturbed.get_weights())
    for name in ("learning_rate", "cost", "mean"):
        assert killed.monitors.history(name) == undisturbed.monitors.history(name)
    records = read_stats(tmp_path / "killed" / "stats.jsonl")
    assert [record.step for record in records] == [6, 12, 18]
    assert [record.scalars["learning_rate"] for record in records] == pytest.approx(
        [0.05, 0.02, 0.01]
    )


def test_a_program_may_change_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    leave = Do("before_epoch", lambda self: os.chdir(tmp_path / "elsewhere"))
    monitors = [JSONLMonitor(tmp_path / "stats.jsonl")]
    train(Path("run"), [leave, ModelSaver()], model=LINE, monitors=monitors)
    assert os.listdir("../elsewhere") == []
    assert load_checkpoint(tmp_path / "run").step == 12
