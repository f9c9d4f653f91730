"""A program that is changed between two starts of a run is told so, in one table."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from scaling import sample
from small_training import LINE, SPECS, Do, Model, X, Y, config, train
from towerpack import CheckpointMismatchError, FeedInput, MapError, StateError
from towerpack.callbacks import ModelSaver, ScheduledHyperParamSetter
from towerpack.dataflow import (
    BatchData,
    DataFromArrays,
    DataFromGenerator,
    MapData,
    PrefetchData,
    ShuffleData,
)
from towerpack.nn import FullyConnected, l2_regularizer, regularize_cost
from towerpack.training import SimpleTrainer
from warm_python import warm_python


def changed(text: str) -> dict[str, list[str]]:
    """Old, new and which is in effect, by the names of what a log says to have changed."""
    rows = [line.split() for line in text.partition("in effect\n")[2].splitlines()]
    return {row[0]: row[1:4] for row in rows if len(row) > 3 and row[3] == "new"}


def model(decay: float = 1e-4, activation: Any = tf.nn.relu) -> Any:
    def build(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        out = FullyConnected("out", activation(FullyConnected("hidden", x, 4)), 1)
        term = regularize_cost(".*/kernel", l2_regularizer(decay))
        return tf.reduce_mean(tf.square(out[:, 0] - y)) + term

    return SPECS, build, lambda: keras.optimizers.SGD(0.05)


def adam(**kwargs: Any) -> dict[str, Any]:
    return {"optimizer": keras.optimizers.Adam(**{"learning_rate": 0.05, **kwargs})}


def data(x: np.ndarray, batch: int = 8) -> dict[str, Any]:
    return {"dataflow": BatchData(DataFromArrays(x, Y), batch)}


def mapped(factor: float, workers: int = 2) -> dict[str, Any]:
    flow = MapData(DataFromArrays(X, Y), lambda point: (point[0] * factor, point[1]))
    return {"dataflow": PrefetchData(BatchData(flow, 8), num_proc=workers)}


def generated(factor: float) -> dict[str, Any]:
    def rows() -> Any:
        yield from ([x * factor, y] for x, y in zip(X, Y, strict=True))

    return {"dataflow": BatchData(DataFromGenerator(rows), 8)}


def documented(text: str) -> dict[str, Any]:
    """Data through a function whose docstring is `text`."""
    made: dict[str, Any] = {}
    exec(f"def same(point):\n    {text!r}\n    return point", made)
    return {"dataflow": BatchData(MapData(DataFromArrays(X, Y), made["same"]), 8)}


def table(*points: tuple[int, float]) -> dict[str, Any]:
    return {"extra_callbacks": [ScheduledHyperParamSetter("learning_rate", points)]}


def decayed(rate: float, kind: type[Model] = Model) -> dict[str, Any]:
    step = tf.compat.v1.train.get_or_create_global_step
    compat = tf.compat.v1.train

    def make() -> Any:
        return compat.GradientDescentOptimizer(compat.exponential_decay(0.02, step(), 5, rate))

    return {"model": kind(make)}


LONG = table(*((i, 0.03 / (i + 1)) for i in range(100)))
SCHEDULE = "callback ScheduledHyperParamSetter('learning_rate')#0"
DROPPED, DECAY = "drop/stateless_dropout/GreaterEqual/y", "regularize_cost/mul/x"
decay = keras.optimizers.schedules.ExponentialDecay
CASES = [
    ({}, {"steps_per_epoch": 5}, {"steps_per_epoch": ["6", "5"]}),
    ({}, {"precision": "bfloat16"}, {"precision": ["float32", "bfloat16"]}),
    ({}, {"seed": 6}, {"seed": ["5", "6"]}),
    (adam(), adam(beta_1=0.5), {"optimizer.beta_1": ["0.9", "0.5"]}),
    (adam(), {"optimizer": keras.optimizers.AdamW(0.05)}, {"optimizer": ["Adam", "AdamW"]}),
    (
        {"optimizer": keras.optimizers.SGD(decay(0.1, 10, 0.5))},
        {"optimizer": keras.optimizers.SGD(decay(0.1, 10, 0.2))},
        {"optimizer.learning_rate.config.decay_rate": ["0.5", "0.2"]},
    ),
    ({}, {"model": Model(rate=0.5)}, {f"model.{DROPPED}": ["0.25", "0.5"]}),
    ({"model": model()}, {"model": model(1e-3)}, {f"model.{DECAY}": ["0.0001", "0.001"]}),
    ({"model": model()}, {"model": model(activation=tf.tanh)}, {"model.Relu": ["operations", "1"]}),
    (
        {"model": model(activation=lambda x: tf.nn.leaky_relu(x, 0.2))},
        {"model": model(activation=lambda x: tf.nn.leaky_relu(x, 0.3))},
        {"model.LeakyRelu(alpha=0.30000001192092896)": ["-", "1"]},
    ),
    (mapped(2.0), mapped(3.0), {"data.functions": None}),
    (generated(2.0), generated(3.0), {"data.functions": None}),
    (decayed(0.5), decayed(0.9), {"optimizer.learning_rate": None}),
    (LONG, table((0, 0.02)), {SCHEDULE: ["0:", "0.03,"]}),
    (table((0, 0.03)), {"extra_callbacks": []}, {SCHEDULE: ["0:", "0.03"]}),
    (data(X), data(X[::-1].copy()), {"data.content": None}),
]  # fmt: skip


@pytest.mark.parametrize(("first", "then", "rows"), sample(CASES, at_least=2))
def test_what_was_changed_is_told_before_the_first_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first: Any, then: Any, rows: Any
) -> None:
    train(tmp_path, [ModelSaver()], **first)
    assert changed(caplog.text) == {}
    trainer = SimpleTrainer(config(tmp_path, [ModelSaver()], **then))
    trainer.train()
    assert trainer.was_complete or "steps_per_epoch" in then or "dataflow" in then
    told = caplog.text.partition("in effect\n")[2]
    assert max(len(line) for line in told.splitlines()) < 250
    for name, values in rows.items():
        [line] = [
            line.strip() for line in told.splitlines() if f"{line.strip()} ".startswith(f"{name} ")
        ]
        assert values is None or line.removeprefix(name).split()[:2] == values


@pytest.mark.parametrize(
    "then", sample([{"optimizer": keras.optimizers.RMSprop()}, {"precision": "float16"}])
)
def test_what_the_checkpoint_does_not_fit_is_told_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, then: Any
) -> None:
    train(tmp_path, [ModelSaver()])
    with pytest.raises(CheckpointMismatchError):
        train(tmp_path, [ModelSaver()], **then)
    assert next(iter(then)) in changed(caplog.text)


class Holder(Model):
    """Keras layers on the model, whose names Keras counts over the process."""

    def __init__(self, make: Any) -> None:
        super().__init__(make)
        layers = [keras.layers.Dense(4), keras.layers.Dropout(0.2), keras.layers.Dense(3)]
        self.part = keras.Sequential(layers)

    def build_graph(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return super().build_graph(self.part(x), y)


def test_nothing_is_told_where_nothing_was_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def start(workers: int) -> None:
        everything = {**mapped(2.0, workers), **decayed(0.5, Holder)}
        train(tmp_path, [ModelSaver()], **everything)

    start(1)
    start(3)
    assert "in effect" not in caplog.text


def test_another_docstring_is_no_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(tmp_path, [ModelSaver()], **documented("As it is."))
    train(tmp_path, [ModelSaver()], **documented("A point as it is."))
    assert "in effect" not in caplog.text


PROGRAM = Path(__file__).with_name("settings_program.py")


def test_settings_of_every_kind_are_told_once_they_are_changed_and_not_before(
    tmp_path: Path,
) -> None:
    def start(python: list[str], epochs: int, number: int) -> str:
        command = [*python, str(PROGRAM), str(tmp_path / "run"), str(epochs), str(number)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=250)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    first = start(warm_python(), 1, 1)
    assert "cannot compare: generator in callback Own#1.rows." in first
    assert "in effect" not in start([sys.executable], 2, 1)  # Hashes strings by another seed.
    told = start(warm_python(), 3, 2).partition("in effect\n")[2].splitlines()
    rate, value = "('learning_rate')#0", "('val/cost')#0"
    assert {line.split()[0 if "callback" not in line else 1] for line in told[:34]} >= {
        *("data.content", "data.functions", "ModelSaver#0.keep"),
        *("InferenceRunner('val')#0.dataflow", f"MinSaver{value}", f"MaxSaver{value}"),
        *(f"EarlyStopping{value}.patience", f"HyperParamSetterWithFunc{rate}.func"),
        *(f"StatMonitorParamSetter{rate}.value_func", "MaxSaver('cost')#0.pred"),
        *("CallbackFactory#0.trigger", "Own#0.options", "Own#0.kinds", "Own#0.function"),
        *("optimizer.func", "optimizer.optimizer.processors", "model.GatherV2/params"),
        *("model.None_Lookup/LookupTableFindV2/table_handle", "model.Const", "model.cond/Const"),
        *(f"Own#1.{name}" for name in ("generator", "slots", "layer", "own")),
        *(f"Own#1.{name}" for name in ("loss", "metric", "draws", "reads")),
        "variable",
    }


def test_a_line_that_is_read_in_another_way_is_another_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for epochs, interp in enumerate((None, "linear"), 1):
        setter = ScheduledHyperParamSetter("learning_rate", [(0, 0.03), (9, 0.01)], interp)
        train(tmp_path, [ModelSaver(), setter], model=LINE, max_epoch=epochs)
        assert ("in effect" in caplog.text) == (epochs > 1)


def test_the_order_of_operands_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def build(x: tf.Tensor, y: tf.Tensor, swapped: bool) -> tf.Tensor:
        out = FullyConnected("fc", x, 1)[:, 0]
        error = tf.exp(y - out) if swapped else tf.exp(out - y)
        return tf.reduce_mean(error) * 0.01

    for epochs, swapped in enumerate((False, False, True), 1):
        tower = functools.partial(build, swapped=swapped)
        train(tmp_path, [ModelSaver()], model=(SPECS, tower, LINE[2]), max_epoch=epochs)
        assert ("model.operands" in caplog.text) == swapped == ("in effect" in caplog.text)


def test_constants_of_every_dtype_are_compared(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kinds = [tf.int8, tf.uint8, tf.int16, tf.int32, tf.uint32, tf.int64, tf.uint64]
    kinds += [tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.bool]

    def build(number: int) -> Any:
        def tower(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            scalars = [tf.constant(number, kind, name=f"scalar_{kind.name}") for kind in kinds[:-1]]
            scalars.append(tf.constant(number == 2, name="scalar_bool"))
            vector = tf.constant([7, number, 7], tf.int32, name="vector")
            total = tf.add_n([tf.cast(c, tf.float32) for c in scalars]) + tf.cast(
                vector[1], y.dtype
            )
            return LINE[1](x, y) + 1e-6 * total

        return SPECS, tower, LINE[2]

    for epochs, number in enumerate((1, 1, 2), 1):
        train(tmp_path, [ModelSaver()], model=build(number), max_epoch=epochs)
        assert ("in effect" in caplog.text) == (number == 2)
    names = {line.split()[0] for line in caplog.text.partition("in effect\n")[2].splitlines()}
    assert names >= {f"model.scalar_{kind.name}" for kind in kinds} | {"model.vector"}


def test_weights_of_classes_are_those_that_the_program_gives_now(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def run(epochs: int, *values: float) -> Any:
        weights = tf.Variable(values, trainable=False, name="weights")
        scale = keras.Variable([values[1]], trainable=False, name="scale")
        table = tf.Variable(tf.ones([2, 2]) * values[0], trainable=False, name="table")

        def build(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            out = FullyConnected("fc", x, 1)[:, 0] * table[0, 0]
            rows = scale * tf.gather(weights, tf.cast(y > 0, tf.int32))
            return tf.reduce_mean(tf.square(out - y) * rows)

        halve = Do("trigger", lambda _: weights.assign(weights / 2.0))
        model = (SPECS, build, LINE[2])
        train(tmp_path, [halve, ModelSaver()], model=model, max_epoch=epochs)
        return [*weights.numpy().tolist(), float(table[0, 0]), float(scale[0])]

    assert run(1, 0.5, 1.0) == [0.25, 0.5, 0.5, 1.0]
    assert run(2, 0.5, 1.0) == [0.125, 0.25, 0.5, 1.0]  # What a callback has set since stays.
    assert "in effect" not in caplog.text
    assert run(3, 0.75, 2.0) == [0.375, 1.0, 0.5, 2.0]
    rows = [line.split() for line in caplog.text.partition("in effect\n")[2].splitlines()]
    assert ["variable", "weights", "0.5,", "1", "0.75,", "2", "new"] in rows
    assert [row[-1] for row in rows if row[1:3] == ["variable", "table"]] == ["old"]


def test_a_schedule_that_is_taken_out_leaves_what_it_has_set(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path, [ModelSaver()], model=LINE, max_epoch=1, **table((0, 0.03)))
    trainer = train(tmp_path, [ModelSaver()], model=LINE, extra_callbacks=[])
    assert "values that it has set" in caplog.text
    assert rate_of(trainer) == pytest.approx(0.03)


def test_a_rate_may_become_a_schedule(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for epochs, rate in enumerate((0.1, decay(0.1, 10, 0.5), 0.02), 1):
        sgd = keras.optimizers.SGD(rate)
        trainer = train(tmp_path, [ModelSaver()], model=LINE, optimizer=sgd, max_epoch=epochs)
        assert (epochs > 1) == ("optimizer.learning_rate" in caplog.text)
    assert rate_of(trainer) == pytest.approx(0.02)


def test_other_data_are_told_how_to_go_on(tmp_path: Path) -> None:
    train(tmp_path, [ModelSaver()], model=LINE, max_epoch=1)
    with pytest.raises(StateError) as caught:
        train(tmp_path, [ModelSaver()], model=LINE, **data(X, 4))
    assert "init=" in str(caught.value.fix)


class Failing:
    """Fails after so many rows, as a broken file does."""

    after: int | None = None

    @classmethod
    def read(cls, row: Any) -> Any:
        if cls.after is not None:
            cls.after -= 1
            if cls.after < 0:
                raise OSError("a broken file")
        return row


def rows(num: int) -> dict[str, Any]:
    flow = BatchData(MapData(ShuffleData(DataFromArrays(X[:num], Y[:num])), Failing.read), 8)
    return {"dataflow": FeedInput(flow), "steps_per_epoch": num // 8, "model": LINE}


def test_repaired_data_are_read_from_the_next_epoch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows that are removed or added stop a run in the middle of an epoch only."""
    train(tmp_path, [ModelSaver()], max_epoch=1, **rows(48))
    trainer = train(tmp_path, [ModelSaver()], max_epoch=2, **rows(41))
    assert trainer.complete and trainer.global_step == 6 + 5
    assert "with other rows" in caplog.text
    assert "DataFromArrays(48)" in caplog.text and "DataFromArrays(41)" in caplog.text

    Failing.after = 2 * 8
    with pytest.raises(MapError, match="broken file"):
        train(tmp_path, [ModelSaver()], max_epoch=3, **rows(41))
    Failing.after = None
    with pytest.raises(StateError, match="until epoch 3 has ended") as caught:
        train(tmp_path, [ModelSaver()], max_epoch=4, **rows(33))
    fix = str(caught.value.fix)
    middle = next(Path(word.strip(",")) for word in fix.split() if "step-" in word)
    shutil.rmtree(middle)
    trainer = train(tmp_path, [ModelSaver()], max_epoch=3, **rows(33))
    assert trainer.complete and trainer.global_step == 6 + 5 + 4


def rate_of(trainer: SimpleTrainer) -> float:
    return trainer.monitors.latest("learning_rate")


def test_a_rate_that_the_program_gives_anew_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def run(rate: float, epochs: int, *callbacks: Any) -> SimpleTrainer:
        return train(
            tmp_path, [ModelSaver(), *callbacks], max_epoch=epochs, model=LINE,
            optimizer=keras.optimizers.SGD(rate),
        )  # fmt: skip

    def by_hand(trainer: SimpleTrainer) -> None:
        trainer.hyper_param("learning_rate").set(0.03)

    class ByHand(ModelSaver):
        def trigger(self) -> None:
            by_hand(self.trainer)

    run(0.05, 1, ByHand())
    assert rate_of(run(0.05, 2)) == pytest.approx(0.03)  # what was set by hand since
    assert changed(caplog.text) == {}
    assert rate_of(run(0.01, 3)) == pytest.approx(0.01)
    assert changed(caplog.text) == {"learning_rate": ["0.05", "0.01", "new"]}
    # A schedule of the program's stands above the rate that its optimizer was made with.
    schedule = [(1, 0.5), (9, 0.25)]
    assert rate_of(run(0.02, 4, ScheduledHyperParamSetter("learning_rate", schedule))) == 0.5
