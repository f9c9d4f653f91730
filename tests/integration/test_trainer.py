"""Trainers: hooks, many steps per call, ends, resuming, optimizers, sources."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from own_threads import threads
from processes import stopwatch, wait_until
from scaling import only_in_full, sample
from small_training import (
    LINE,
    SPECS,
    Do,
    Model,
    PacedBy,
    Recorded,
    X,
    Y,
    assert_same,
    config,
    flow,
    train,
)
from towerpack import ConfigError, LayerError, NumericsError, StepError
from towerpack.callbacks import (
    Callback,
    CheckNumerics,
    InferenceRunner,
    MinSaver,
    ModelSaver,
    PeriodicTrigger,
    ScalarStats,
    ScheduledHyperParamSetter,
)
from towerpack.callbacks.monitors import JSONLMonitor, Monitor, read_stats
from towerpack.checkpoint import list_checkpoints, load_checkpoint
from towerpack.dataflow import BatchData, DataFlow, DataFromArrays, DataFromGenerator, ShuffleData
from towerpack.inputs import (
    DummyConstantInput,
    FeedInput,
    QueueInput,
    StagingInput,
    TensorInput,
    TFDatasetInput,
)
from towerpack.nn import (
    FullyConnected,
    expose,
    get_current_tower_context,
    l2_regularizer,
    regularize_cost,
    summary,
)
from towerpack.training import ObjAttrParam, SimpleTrainer, StopTraining, TrainConfig


@pytest.fixture
def paced(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Fixes the number of steps that one call runs."""

    def pace(steps: int) -> None:
        monkeypatch.setattr("towerpack.training.loop.loop.Pace", PacedBy)
        monkeypatch.setattr(PacedBy, "fixed", steps)

    return pace


@pytest.fixture(autouse=True, scope="module")
def nothing_to_collect() -> None:
    """Frees whole networks of tests before: else a thread of ours might, for half a minute."""
    gc.collect()


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert wait_until(lambda: not threads(), 60), threads()


# ---------------------------------------------------------------------- hooks


def hooks_of(first_step: int, last_step: int, epoch: int, call: int) -> list[tuple[str, int, int]]:
    """The hooks of an epoch whose calls run `call` steps."""
    found: list[tuple[str, int, int]] = [("before_epoch", epoch, first_step)]
    for start in range(first_step, last_step, call):
        end = min(start + call, last_step)
        for step in range(start, end):
            found.append(("before_step", epoch, step))
            found += [("after_step", epoch, step + 1), ("trigger_step", epoch, step + 1)]
        found.append(("after_call", epoch, end))
    return [*found, ("after_epoch", epoch, last_step), ("trigger", epoch, last_step)]


@pytest.mark.parametrize("steps", [1, 4])
def test_hooks_fire_in_their_order_and_callbacks_in_that_of_the_list(
    paced: Any, tmp_path: Path, steps: int
) -> None:
    paced(steps)
    log: list[tuple[str, str, int, int]] = []
    pair = [Recorded(), Recorded()]
    for name, recorded in zip("ab", pair, strict=True):
        recorded.on = lambda hook, name=name, own=recorded: log.append(  # type: ignore[method-assign]
            (name, hook, own.trainer.epoch, own.trainer.global_step)
        )
    train(tmp_path, pair, model=LINE)
    expected = [("before_train", 0, 0), *hooks_of(0, 6, 1, steps), *hooks_of(6, 12, 2, steps)]
    expected.append(("after_train", 2, 12))
    assert log == [(name, *entry) for entry in expected for name in "ab"]


def test_one_that_acts_between_steps_forces_single_steps(paced: Any, tmp_path: Path) -> None:
    class Acts(Recorded):
        acts_between_steps = True

    paced(4)
    acts = Acts()
    train(tmp_path, [acts], model=LINE, max_epoch=1)
    assert [hook for hook, _, _ in acts.log].count("after_call") == 6


def test_a_call_ends_where_a_callback_must_act(paced: Any, tmp_path: Path) -> None:
    class Stops(Recorded):
        def next_stop(self, step: int) -> int | None:
            return next((s for s in (2, 3, 7) if s > step), None)

    paced(100)
    stops = Stops()
    train(tmp_path, [stops], model=LINE)
    calls = [step for hook, _, step in stops.log if hook == "after_call"]
    assert calls == [2, 3, 6, 7, 12]


def test_nothing_depends_on_how_many_steps_a_call_runs(paced: Any, tmp_path: Path) -> None:
    def run(steps: int) -> tuple[SimpleTrainer, Recorded]:
        paced(steps)
        recorded = Recorded("cost", "out", "fc0/output", "large", "drop/output")
        ragged = {"dataflow": flow(20, remainder=True), "steps_per_epoch": 5}
        return train(tmp_path / str(steps), [recorded], **ragged), recorded

    single, ones = run(1)
    assert [len(step["out"]) for step in ones.outputs] == [20, 20, 8, 20, 20, 8, 20, 20, 8, 20]
    shapes = {value["large"].shape for value in ones.outputs}
    assert len(shapes) > 2, "the size of 'large' should depend on the data"
    trainer, many = run(4)
    for one, other in zip(ones.outputs, many.outputs, strict=True):
        assert {k: v.shape for k, v in one.items()} == {k: v.shape for k, v in other.items()}
        assert_same(one, other)
    assert_same(trainer.get_weights(), single.get_weights())
    for name in ("cost", "mean", "last", "learning_rate"):
        assert trainer.monitors.history(name) == single.monitors.history(name)


def test_an_output_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LayerError, match="'fc0/outputt'") as caught:
        train(tmp_path, [Recorded("fc0/outputt")])
    assert "fc0/output" in str(caught.value.fix)


# ---------------------------------------------------------------------- numbers


def test_numbers_of_an_epoch_are_exact(paced: Any, tmp_path: Path) -> None:
    paced(4)
    recorded = Recorded("cost", "out")
    trainer = train(tmp_path, [recorded])
    costs = [float(step["cost"]) for step in recorded.outputs]
    assert trainer.monitors.history("cost") == [(6, sum(costs[:6]) / 6), (12, sum(costs[6:]) / 6)]
    total = weight = 0.0
    for cost in costs:
        total, weight = 0.9 * total + (1 - 0.9) * cost, 0.9 * weight + (1 - 0.9)
    assert trainer.monitors.latest("mean") == pytest.approx(total / weight, rel=1e-12)
    worst = np.max((recorded.outputs[-1]["out"] - Y[-8:]) ** 2)
    assert trainer.monitors.latest("last") == pytest.approx(float(worst), rel=1e-6)


class Pictures(Monitor):
    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []
        self.values: list[np.ndarray] = []

    def put_image(self, name: str, image: np.ndarray, step: int) -> None:
        self.seen.append((name, step))

    def put_histogram(self, name: str, values: np.ndarray, step: int) -> None:
        self.seen.append((name, step))
        self.values.append(values)


def drawing(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    out = tf.squeeze(FullyConnected("fc", x, 1), -1)
    expose("out", out)
    summary.histogram("spread", out)
    summary.image("picture", tf.reshape(tf.sigmoid(x), [-1, 3, 1, 1]), max_images=2)
    return tf.reduce_mean(tf.square(out - y))


def test_pictures_only_at_the_end_of_an_epoch(paced: Any, tmp_path: Path) -> None:
    paced(4)
    pictures, recorded = Pictures(), Recorded("out")
    model = (SPECS, drawing, lambda: keras.optimizers.SGD(0.1))
    train(tmp_path, [recorded], model=model, monitors=[pictures])
    assert pictures.seen == [
        (name, step) for step in (6, 12) for name in ("spread", "picture/0", "picture/1")
    ]
    np.testing.assert_array_equal(pictures.values[0], recorded.outputs[5]["out"])
    calls = [step for hook, _, step in recorded.log if hook == "after_call"]
    assert calls == [4, 5, 6, 10, 11, 12]


def test_the_scheduled_rate_is_used(paced: Any, tmp_path: Path) -> None:
    paced(4)
    schedule = ScheduledHyperParamSetter("learning_rate", [(0, 0.125), (3, 0.0)], step_based=True)
    model = Model(lambda: keras.optimizers.SGD(1.0))
    weights: list[dict[str, np.ndarray]] = []
    keep = [
        Do(hook, lambda self: weights.append(self.trainer.get_weights()))
        for hook in ("before_train", "after_call")
    ]
    train(tmp_path, [schedule, *keep], model=model, max_epoch=1)
    # A call ends at step 3; with a rate of 0 nothing changes after it.
    before, third, last = weights
    assert_same(last, third)
    assert not np.array_equal(before["fc1/kernel"], last["fc1/kernel"])


# ---------------------------------------------------------------------- ends


def test_the_end_of_the_data_ends_normally(tmp_path: Path) -> None:
    def run() -> SimpleTrainer:
        return train(
            tmp_path,
            [PeriodicTrigger(ModelSaver(), every_k_steps=2)],
            model=LINE,
            data=QueueInput(flow(), infinite=False),
            steps_per_epoch=4,
            max_epoch=9,
        )

    first = run()
    assert (first.global_step, first.epoch, first.local_step) == (6, 2, 2)
    assert not first.complete
    assert load_checkpoint(tmp_path).step == 6
    again = run()
    assert again.global_step == 6
    assert_same(again.get_weights(), first.get_weights())


@pytest.mark.parametrize(
    ("saver", "every", "end"),
    [
        (ModelSaver(), {"every_k_steps": 5}, "the data's"),
        (ModelSaver(), {"every_k_epochs": 4}, "a failure's"),
        (MinSaver("val/none"), {"every_k_steps": 1000}, "the last epoch's"),
        (MinSaver("val/none"), {"every_k_steps": 1000}, "a callback's"),
    ],
)
def test_the_end_is_saved_though_no_save_was_due(
    paced: Any, tmp_path: Path, saver: Callback, every: dict[str, Any], end: str
) -> None:
    paced(4)
    kwargs: dict[str, Any] = {"model": LINE, "steps_per_epoch": 6}
    if end == "the data's":
        kwargs["data"] = QueueInput(flow(), infinite=False)
    best = Do("trigger", lambda self: None)
    best.produces = lambda: ["val/none"]  # type: ignore[method-assign]
    callbacks = [best, PeriodicTrigger(saver, **every)]
    if end == "a callback's":
        callbacks.append(Do("after_step", stop, 3))
    if end == "a failure's":
        callbacks.append(Do("after_call", fail, 4))
    with pytest.raises(KeyError) if end == "a failure's" else contextlib.nullcontext():
        train(tmp_path, callbacks, **kwargs)
    steps = {"the data's": [5, 6], "the last epoch's": [12]}.get(end, [4])
    assert [row.step for row in list_checkpoints(tmp_path)] == steps


def fail(callback: Callback) -> None:
    raise KeyError("on purpose")


def stop(callback: Callback) -> None:
    raise StopTraining("enough")


def ask_to_stop(callback: Callback) -> None:
    callback.trainer.request_stop()


ENDS = [("before_train", 0, 0), ("before_epoch", 6, 6), ("after_step", 2, 4),
        ("trigger_step", 2, 4), ("after_call", 4, 4), ("after_epoch", 6, 6),
        ("trigger", 6, 6)]  # fmt: skip


@pytest.mark.parametrize(
    ("how", "hook", "at", "end"),
    sample([(how, *end) for how in (stop, ask_to_stop) for end in ENDS], at_least=5),
)
def test_a_callback_ends_training(
    paced: Any, tmp_path: Path, how: Any, hook: str, at: int, end: int
) -> None:
    paced(4)
    recorded = Recorded()
    trainer = train(tmp_path, [Do(hook, how, at), recorded, ModelSaver()], model=LINE)
    assert trainer.global_step == end
    assert int(trainer._run.opened.step_variable.numpy()) == end
    assert not trainer.complete
    assert recorded.log[-1][0] == "after_train"
    # The others have seen every step that was made.
    assert [step for hook, _, step in recorded.log if hook == "after_step"] == [*range(1, end + 1)]
    if end == 6:
        assert ("trigger", 1, 6) in recorded.log
        assert load_checkpoint(tmp_path).step == 6


HOOKS = ["before_train", "before_epoch", "before_step", "after_step", "trigger_step", "after_call",
         "after_epoch", "trigger", "after_train"]  # fmt: skip


@pytest.mark.parametrize("hook", sample(["setup", *HOOKS], at_least=5))
def test_an_exception_in_any_hook_goes_up_once(tmp_path: Path, hook: str) -> None:
    class Fails(Do):
        def setup(self, trainer: Any) -> None:
            self.on("setup")

        def _run(self, hook: str) -> None:
            if hook == self._hook:
                fail(self)

    recorded = Recorded()
    with pytest.raises(KeyError, match="on purpose") as caught:
        train(tmp_path, [Fails(hook, fail), recorded], model=LINE)
    assert caught.value.__context__ is None
    assert threads() == []
    if hook != "setup":
        assert recorded.log[-1][0] == "after_train"
    if hook in ("setup", "trigger"):  # Nothing is locked.
        train(tmp_path, model=LINE, max_epoch=1)


def test_what_ended_the_training_goes_up_before_what_failed_after_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail_again(callback: Callback) -> None:
        raise OSError("the second")

    recorded = Recorded()
    callbacks = [Do("after_step", fail), Do("after_train", fail_again), recorded]
    with pytest.raises(KeyError, match="on purpose"):
        train(tmp_path, callbacks, model=LINE)
    assert "the second" in caplog.text
    assert recorded.log[-1][0] == "after_train"


def test_control_c(tmp_path: Path) -> None:
    def press(callback: Callback) -> None:
        raise KeyboardInterrupt

    recorded = Recorded()
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, [Do("trigger_step", press, 3), recorded], model=LINE)
    assert recorded.log[-1][0] == "after_train"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> SimpleTrainer:
    return train(tmp_path_factory.mktemp("undisturbed"), max_epoch=3)


@pytest.mark.parametrize("hook", sample(["after_call", "trigger", "after_epoch"]))
def test_a_failure_between_steps_costs_no_step(
    undisturbed: SimpleTrainer, paced: Any, tmp_path: Path, hook: str
) -> None:
    paced(2)
    at = {"after_call": 10}.get(hook, 12)
    with pytest.raises(KeyError):
        train(tmp_path, [Do(hook, fail, at), ModelSaver(keep=1)], max_epoch=3)
    # The one before is still there, whatever `keep` says: the fault may lie before the failure.
    assert [row.step for row in list_checkpoints(tmp_path)] == [6, at]
    parts = train(tmp_path, [ModelSaver()], max_epoch=3)
    assert_same(parts.get_weights(), undisturbed.get_weights())
    assert parts.monitors.latest("mean") == undisturbed.monitors.latest("mean")


# ---------------------------------------------------------------------- resuming


def assert_resumes(tmp_path: Path, **kwargs: Any) -> SimpleTrainer:
    """A run that ends at a step and is started again ends as one that was not disturbed."""
    make = kwargs.pop("model", Model)
    whole = train(tmp_path / "whole", [ModelSaver()], model=make(), **kwargs)
    ends = Do("trigger_step", stop, 7)
    ends.next_stop = lambda step: 7 if step < 7 else None  # type: ignore[method-assign]
    train(tmp_path / "parts", [ModelSaver(), ends], model=make(), **kwargs)
    assert load_checkpoint(tmp_path / "parts").step == 7
    parts = train(tmp_path / "parts", [ModelSaver()], model=make(), **kwargs)
    assert_same(parts.get_weights(), whole.get_weights())
    one, other = (load_checkpoint(tmp_path / name).optimizer for name in ("whole", "parts"))
    assert_same(
        {n: np.asarray(a) for n, a in other.items()}, {n: np.asarray(a) for n, a in one.items()}
    )
    return parts


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
    with pytest.raises(ConfigError, match="not an optimizer") as caught:
        train(tmp_path / "b", optimizer=keras.optimizers.SGD)
    assert "call the class" in str(caught.value)
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
    with pytest.raises(ConfigError, match=r"before train\(\)"):
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


def slots(trainer: SimpleTrainer) -> dict[str, tf.Variable]:
    return trainer._run.assembled.setup.optimizers["optimizer"].variables()


class Counts(Callback):
    def __init__(self) -> None:
        self.count = 0

    def after_step(self, outputs: Any) -> None:
        self.count += 1

    def state(self) -> Any:
        return {"count": self.count}

    def restore(self, state: Any) -> None:
        self.count = state["count"]


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


# ---------------------------------------------------------------------- failed steps, lost files


@pytest.mark.parametrize(("source", "at"), [(FeedInput, 0), (QueueInput, 3), (QueueInput, 5)])
def test_a_step_that_tensorflow_fails_is_named_and_its_batch_kept(
    paced: Any, tmp_path: Path, source: Any, at: int
) -> None:
    paced(3)
    labels = np.zeros(48, np.int64)
    labels[8 * at + 2] = 12
    batches = BatchData(ShuffleData(DataFromArrays(X, labels)), 8)
    at = [12 in batch[1] for batch in batches.iterate(seed=5, epoch=0)].index(True)

    def build(x: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
        logits = FullyConnected("fc", x, 10)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(label, logits))

    model = ([SPECS[0], tf.TensorSpec([None], tf.int64, "label")], build, keras.optimizers.SGD)
    with pytest.raises(StepError, match=rf"Step {at + 1} failed") as caught:
        train(tmp_path, [ModelSaver()], model=model, data=source(batches))
    assert str(caught.value.got).startswith("Received a label value of 12 which is outside")
    assert str(tmp_path) in str(caught.value.fix)
    assert f"build ({__file__}" in str(caught.value)
    wanted = list(batches.iterate(seed=5, epoch=0))[at]
    np.testing.assert_array_equal(kept_batch(tmp_path)["label"], wanted[1])


def test_an_evaluation_that_tensorflow_fails_keeps_its_batch(tmp_path: Path) -> None:
    labels = np.arange(8)

    def build(x: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
        logits = FullyConnected("fc", x, 5)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(label % 5, logits))

    def evaluated(x: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
        if get_current_tower_context().is_training:
            return build(x, label)
        tf.debugging.assert_less(label, tf.constant(5, tf.int64))
        return build(x, tf.where(label < 5, label, tf.cast(tf.strings.to_number("x"), tf.int64)))

    specs = [SPECS[0], tf.TensorSpec([None], tf.int64, "label")]
    batches = BatchData(DataFromArrays(X[:8], labels), 8)
    runner = InferenceRunner(batches, ScalarStats("cost"))
    with pytest.raises(StepError, match="evaluation at step 1 ") as caught:
        train(tmp_path, [runner], model=(specs, evaluated, keras.optimizers.SGD), dataflow=batches)
    assert "failed-evaluation-00000001.npz" in str(caught.value.fix)
    np.testing.assert_array_equal(kept_batch(tmp_path, "evaluation")["label"], labels)


def kept_batch(run_dir: Path, what: str = "step") -> dict[str, np.ndarray]:
    [path] = run_dir.glob(f"failed-{what}-*.npz")
    with np.load(path) as kept:
        return dict(kept)


def test_weights_that_became_nan_unseen_end_no_run_well(tmp_path: Path) -> None:
    x = X.copy()
    x[3] = np.nan

    def build(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(tf.nn.relu(FullyConnected("fc", x, 1)))

    model = (SPECS, build, lambda: keras.optimizers.SGD(0.1))
    trainer = SimpleTrainer(config(tmp_path, model=model, dataflow=flow(x=x)))
    with pytest.raises(NumericsError, match="NaN"):
        trainer.train()
    assert not trainer.complete


def test_weights_that_became_nan_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def poisoned(callback: Callback) -> None:
        callback.trainer.tower.store.named_variables()["fc1/bias"].assign([np.nan])

    poison = Do("trigger", poisoned, 6)
    with pytest.raises(NumericsError, match="NaN"):
        train(tmp_path, [poison, ModelSaver()], extra_callbacks=[CheckNumerics()])
    assert "Traceback" not in caplog.text


def test_checkpoints_that_are_deleted_while_the_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def delete(callback: Callback) -> None:
        callback.trainer._saves.store.wait()
        shutil.rmtree(tmp_path / "checkpoints")

    train(tmp_path, [ModelSaver(), Do("before_epoch", delete, at=6)], model=LINE, max_epoch=2)
    assert [row.step for row in list_checkpoints(tmp_path)] == [12]
    assert "deleted during the run" in caplog.text


def test_a_run_that_begins_anew_though_it_got_somewhere_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path, [ModelSaver()], model=LINE, monitors=None)
    assert "begins at step 0" not in caplog.text
    shutil.rmtree(tmp_path / "checkpoints")
    train(tmp_path, [ModelSaver()], model=LINE, monitors=None)
    assert "came to step 12" in caplog.text
    assert "begins at step 0" in caplog.text


# ---------------------------------------------------------------------- SIGTERM


def terminate(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


class TerminatesInEvaluation(DataFlow):
    """Sends SIGTERM with its second batch, then is slow."""

    def __iter__(self) -> Iterator[Any]:
        yield X[:8], Y[:8]
        terminate()
        for _ in range(100):
            time.sleep(0.05)
            yield X[:8], Y[:8]


class Slow(DataFlow):
    """Terminates the process, then gives nothing for a long time."""

    def __init__(self, at: int, gone: threading.Event) -> None:
        self._at, self._gone = at, gone

    def __iter__(self) -> Iterator[Any]:
        for i in range(6):
            if i == self._at:
                terminate()
                self._gone.wait(60)
            yield X[8 * i : 8 * i + 8], Y[8 * i : 8 * i + 8]


def ended(tmp_path: Path, callbacks: Sequence[Callback], **kwargs: Any) -> int:
    """Trains until SIGTERM, which must take effect at once; gives the step that was saved."""
    with stopwatch() as watch, pytest.raises(SystemExit) as caught:
        train(tmp_path, callbacks, max_epoch=3, **kwargs)
    assert caught.value.code == 143
    assert watch.seconds < 20
    return load_checkpoint(tmp_path).step


@only_in_full  # test_callbacks_training.py and test_signals.py end runs there, too
@pytest.mark.parametrize("every", [{"every_k_steps": 4}, {"every_k_epochs": 1}])
def test_sigterm_in_an_evaluation(
    undisturbed: SimpleTrainer, paced: Any, tmp_path: Path, every: dict[str, int]
) -> None:
    paced(3)
    evaluation = InferenceRunner(TerminatesInEvaluation(), ScalarStats("cost"))
    counts = Counts()
    step = ended(tmp_path, [counts, PeriodicTrigger(evaluation, **every)])
    assert step == (6 if "every_k_epochs" in every else 4)
    counts = Counts()
    better = InferenceRunner(flow(), ScalarStats("cost"))
    parts = train(tmp_path, [counts, PeriodicTrigger(better, **every)], max_epoch=3)
    assert_same(parts.get_weights(), undisturbed.get_weights())
    assert parts.monitors.history("val/cost")[0][0] == step
    assert counts.count == 18


@pytest.mark.parametrize(("source", "at"), [(FeedInput, 0), (QueueInput, 4)])
def test_sigterm_while_data_are_waited_for(
    undisturbed: SimpleTrainer, tmp_path: Path, source: Any, at: int
) -> None:
    gone = threading.Event()
    if source is FeedInput:
        gone.set()  # Its flow runs in this thread, where only the flow itself could be interrupted.
    release = Do("after_train", lambda _: gone.set())
    assert ended(tmp_path, [release], data=source(Slow(at, gone)), steps_per_epoch=6) <= at + 1
    parts = train(tmp_path, data=source(Slow(-1, gone)), steps_per_epoch=6, max_epoch=3)
    assert_same(parts.get_weights(), undisturbed.get_weights())


def test_sigterm_while_the_model_is_built(tmp_path: Path) -> None:
    built: list[str] = []

    def build(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        built.append("began")
        terminate()
        for _ in range(100):
            time.sleep(0.05)
        built.append("ended")
        return tf.reduce_mean(FullyConnected("fc", x, 1))

    with pytest.raises(SystemExit) as caught:
        train(tmp_path, model=(SPECS, build, lambda: keras.optimizers.SGD(0.1)))
    assert caught.value.code == 143
    assert built == ["began"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_sigterm_in_every_hook_of_a_run(
    undisturbed: SimpleTrainer, paced: Any, tmp_path: Path
) -> None:
    def interrupted(callback: Callback) -> None:
        terminate()
        callback.trainer.check_interrupt()

    paced(2)
    # The step in whose hook the signal comes, and the one that is saved.
    ends = [("before_train", 0, 0), ("after_step", 1, 2), ("after_call", 4, 4),
            ("after_epoch", 6, 6), ("before_epoch", 6, 6), ("before_step", 7, 8),
            ("trigger_step", 9, 10), ("trigger", 12, 12), ("after_train", 18, 18)]  # fmt: skip
    for hook, at, saved in [*sample(ends[:-1], at_least=4), ends[-1]]:
        # Not QueueInput, whose thread may be behind: then a call has fewer steps.
        data = FeedInput(flow())
        callbacks = [Do(hook, interrupted, at), Counts(), ModelSaver()]
        assert ended(tmp_path, callbacks, data=data) == saved, hook
    counts = Counts()
    parts = train(tmp_path, [counts, ModelSaver()], max_epoch=3)
    assert_same(parts.get_weights(), undisturbed.get_weights())
    assert counts.count == 18
    assert parts.monitors.names() == []


@pytest.mark.parametrize("place", [0, 2])
def test_sigterm_between_two_callbacks_at_the_end_of_an_epoch(
    undisturbed: SimpleTrainer, paced: Any, tmp_path: Path, place: int
) -> None:
    """Those that follow do not act; all of them act once the run is continued."""
    paced(2)
    acted: list[tuple[int, int]] = []

    def triggers(interrupt: bool) -> list[Callback]:
        def act(number: int) -> Callable[[Callback], None]:
            def trigger(callback: Callback) -> None:
                acted.append((number, callback.trainer.global_step))
                if interrupt and number == place and callback.trainer.global_step == 12:
                    terminate()  # and nobody asks: the loop does, before the next callback

            return trigger

        return [Do("trigger", act(number)) for number in range(4)]

    assert ended(tmp_path, [*triggers(True), ModelSaver()]) == 12
    assert acted == [(n, 6) for n in range(4)] + [(n, 12) for n in range(place + 1)]
    acted.clear()
    parts = train(tmp_path, [*triggers(False), ModelSaver()], max_epoch=3)
    assert acted == [(n, step) for step in (12, 18) for n in range(4)]
    assert_same(parts.get_weights(), undisturbed.get_weights())


def test_a_parameter_that_is_changed_before_an_interrupted_trigger_is_changed_once(
    tmp_path: Path,
) -> None:
    class Weighted(Model):
        def __init__(self) -> None:
            super().__init__()
            self.weight = tf.Variable(1.0, trainable=False)

        def build_graph(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            return super().build_graph(x, y) * self.weight

    class Halve(Callback):
        def trigger(self) -> None:
            param = self.trainer.hyper_param("weight")
            param.set(param.get() / 2)

    def interrupted(callback: Callback) -> None:
        terminate()
        callback.trainer.check_interrupt()

    ended(tmp_path, [Halve(), Do("trigger", interrupted, 6)], model=Weighted())
    parts = train(tmp_path, [Halve(), ModelSaver()], model=Weighted(), max_epoch=3)
    assert parts.hyper_param("weight").get() == 0.125


# ---------------------------------------------------------------------- models


def test_plain_functions(undisturbed: SimpleTrainer, tmp_path: Path) -> None:
    model = Model()
    trainer = train(tmp_path, model=(model.inputs, model.build_graph, model.optimizer), max_epoch=3)
    assert_same(trainer.get_weights(), undisturbed.get_weights())


class KerasOnly(Model):
    def __init__(self) -> None:
        super().__init__()
        self.net = keras.Sequential([keras.Input([3]), keras.layers.Dense(4, "relu"),
                                     keras.layers.BatchNormalization(), keras.layers.Dropout(0.2),
                                     keras.layers.Dense(1)])  # fmt: skip

    def build_graph(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(tf.square(tf.squeeze(self.net(x), -1) - y))


def test_a_model_of_keras_parts_resumes(tmp_path: Path) -> None:
    trainer = assert_resumes(tmp_path, model=KerasOnly)
    assert "net/dense/kernel" in trainer.get_weights()
    assert sum("seed" in name for name in trainer.get_weights()) == 1  # of its one Dropout


def test_frozen_layers_stay(tmp_path: Path) -> None:
    model = KerasOnly()
    model.net.layers[0].trainable = False
    before = model.net.layers[0].kernel.numpy()
    trainer = train(tmp_path, model=model)
    np.testing.assert_array_equal(trainer.get_weights()["net/dense/kernel"], before)
    assert not any("dense/" in name for name in slots(trainer))


def test_variables_that_the_cost_does_not_reach(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def build(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        FullyConnected("aside", x, 2)
        return tf.reduce_mean(tf.square(tf.squeeze(FullyConnected("fc", x, 1), -1) - y))

    def stopped(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(tf.stop_gradient(FullyConnected("fc", x, 1)))

    train(tmp_path, model=(SPECS, build, lambda: keras.optimizers.SGD(0.1)), max_epoch=1)
    assert "does not depend on aside/kernel" in caplog.text
    assert "is not part of the cost" not in caplog.text
    with pytest.raises(LayerError, match="depends on no trainable variable"):
        train(tmp_path / "b", model=(SPECS, stopped, lambda: keras.optimizers.SGD(0.1)))


def test_a_regularizer_that_is_not_added(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def build(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        out = tf.squeeze(FullyConnected("fc", x, 1), -1)
        regularize_cost("fc/kernel", l2_regularizer(0.1))
        return tf.reduce_mean(tf.square(out - y))

    train(tmp_path, model=(SPECS, build, lambda: keras.optimizers.SGD(0.1)), max_epoch=1)
    assert "was computed but is not part of the cost" in caplog.text


def test_hyper_parameters(tmp_path: Path) -> None:
    def look(callback: Callback) -> None:
        host = callback.trainer
        assert host.hyper_param_names() == ["learning_rate"]
        with pytest.raises(ConfigError, match="no hyper-parameter 'learning_rat'") as caught:
            host.hyper_param("learning_rat")
        assert "learning_rate" in str(caught.value.fix)
        with pytest.raises(ConfigError, match="such as momentum, are constants"):
            host.hyper_param("momentum")
        host.hyper_param("learning_rate").set(0.5)
        assert host.hyper_param("learning_rate").get() == 0.5

    def early(callback: Callback) -> None:
        with pytest.raises(ConfigError, match="before_train"):
            callback.trainer.hyper_param("learning_rate")

    class Early(Callback):
        def setup(self, trainer: Any) -> None:
            early(self)

    train(tmp_path, [Early(), Do("before_train", look)], model=LINE, max_epoch=1)
    param = ObjAttrParam(type("Thing", (), {"rate": 1.0})(), "rate")
    param.set(2.0)
    assert param.get() == 2.0
    with pytest.raises(ConfigError, match="no attribute 'size'"):
        ObjAttrParam(object(), "size")


def test_float16_resumes(tmp_path: Path) -> None:
    trainer = assert_resumes(tmp_path, precision="float16")
    assert {a.dtype.name for a in trainer.get_weights().values()} == {"float32"}
    assert sum("dynamic_scale" in name for name in slots(trainer)) == 1


def test_precision_and_compilation(tmp_path: Path) -> None:
    # Without dropout: XLA draws other masks.
    def weights(name: str, **kwargs: Any) -> dict[str, np.ndarray]:
        model = Model(lambda: keras.optimizers.SGD(0.02), rate=0.0)
        return train(tmp_path / name, model=model, **kwargs).get_weights()

    exact = weights("exact")
    for name, tolerance, kwargs in [("xla", 1e-5, {"xla": True}),
                                    ("bfloat16", 0.05, {"precision": "bfloat16"})]:  # fmt: skip
        found = weights(name, **kwargs)
        assert {a.dtype.name for a in found.values()} == {"float32"}
        for key, value in exact.items():
            np.testing.assert_allclose(found[key], value, atol=tolerance)
        assert (name == "bfloat16") == (
            not np.allclose(found["fc0/kernel"], exact["fc0/kernel"], atol=1e-5)
        )


def test_float16_survives_an_overflow_of_the_scaled_gradients(tmp_path: Path) -> None:
    def make() -> Any:
        return keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.05), initial_scale=2.0**40
        )

    trainer = train(tmp_path, model=Model(make), precision="float16", max_epoch=6)
    scale = [v for n, v in slots(trainer).items() if "scale" in n]
    assert float(scale[0].numpy()) < 2.0**40
    assert all(np.isfinite(a).all() for a in trainer.get_weights().values())


def test_draws_that_cannot_be_resumed_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Noisy(Model):
        def build_graph(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            return super().build_graph(x + tf.random.normal(tf.shape(x)), y)

    train(tmp_path, model=Noisy(), max_epoch=1)
    assert "RandomStandardNormal" in caplog.text
    assert "step_seed" in caplog.text
    caplog.clear()
    train(tmp_path / "b", model=KerasOnly(), max_epoch=1)
    assert "step_seed" not in caplog.text


def test_inputs_of_any_rank_and_of_text(tmp_path: Path) -> None:
    specs = [tf.TensorSpec(None, tf.float32, "x"), tf.TensorSpec([None], tf.string, "text")]

    def build(x: tf.Tensor, text: tf.Tensor) -> tf.Tensor:
        length = tf.cast(tf.strings.length(text), tf.float32)
        expose("text", text)
        return tf.reduce_mean(
            tf.squeeze(FullyConnected("fc", tf.reshape(x, [-1, 3]), 1), -1) * length
        )

    words = np.array([b"a", "ä".encode(), b"abc\0"] * 16, object)
    recorded = Recorded("text")
    flow = BatchData(DataFromArrays(X, words), 8)
    train(
        tmp_path, [recorded], dataflow=flow, model=(specs, build, lambda: keras.optimizers.SGD(0.1))
    )
    assert recorded.outputs[0]["text"].tolist() == words[:8].tolist()


def test_the_length_of_an_epoch(tmp_path: Path) -> None:
    endless = DataFromGenerator(lambda: iter([(X[:8], Y[:8])]))
    with pytest.raises(ConfigError, match="How long is an epoch"):
        config_of = TrainConfig(model=Model(), dataflow=endless)
        SimpleTrainer(config_of)
    with pytest.raises(ConfigError, match="not make a single step"):
        SimpleTrainer(TrainConfig(model=Model(), dataflow=flow(100)))


class WithEvaluationState(Model):
    """Makes a variable that only evaluation has."""

    def build_graph(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        cost = super().build_graph(x, y)
        if not get_current_tower_context().is_training:
            shift = tf.Variable(tf.constant(1.0), trainable=False, name="shift")
            expose("shifted", cost + shift)
        return cost


def test_a_variable_that_only_evaluation_has_does_not_stop_a_resume(tmp_path: Path) -> None:
    def callbacks() -> list[Callback]:
        return [ModelSaver(), InferenceRunner(flow(), [ScalarStats("shifted")])]

    first = train(tmp_path, callbacks(), model=WithEvaluationState(), max_epoch=1)
    assert "shift" in first.get_weights()
    assert train(tmp_path, callbacks(), model=WithEvaluationState(), max_epoch=2).complete
