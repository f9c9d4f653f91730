from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from small_host import Note, SmallHost
from towerpack import CallbackError, ConfigError, DataFlowError, LayerError, SpecError
from towerpack.callbacks import (
    Callback,
    ClassificationError,
    DataParallelInferenceRunner,
    Inferencer,
    InferenceRunner,
    MinSaver,
    PeriodicTrigger,
    ScalarStats,
)
from towerpack.dataflow import DataFlow
from towerpack.nn import expose
from towerpack.tower import TowerFunction

X = np.arange(10, dtype=np.float32)
LABEL = np.array([0, 0, 0, 0, 1, 1, 1, 1, 1, 0], np.int64)


class Model:
    """Says 1 from a threshold on: a variable, so that training can change it."""

    def __init__(self) -> None:
        self.threshold = tf.Variable(4.5)

    def __call__(self, x: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
        said = tf.cast(x > self.threshold, tf.int64)
        expose("x_mean", tf.reduce_mean(x))
        expose("incorrect", tf.not_equal(said, label))
        return tf.reduce_mean(tf.cast(tf.not_equal(said, label), tf.float32))


SPECS = [tf.TensorSpec([None], tf.float32, "x"), tf.TensorSpec([None], tf.int64, "label")]


def host_for(tmp_path: Path, *callbacks: Callback, **kwargs: Any) -> SmallHost:
    model = Model()
    host = SmallHost(tmp_path, callbacks, tower=TowerFunction(model, SPECS), **kwargs)
    host.model = model  # type: ignore[attr-defined]
    return host


def batches(size: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(X[i : i + size], LABEL[i : i + size]) for i in range(0, len(X), size)]


@pytest.mark.parametrize("size", [1, 3, 4, 10])
def test_results_do_not_depend_on_the_batches(tmp_path: Path, size: int) -> None:
    runner = InferenceRunner(
        batches(size), [ScalarStats(["cost", "x_mean"]), ClassificationError()]
    )
    host = host_for(tmp_path, runner, max_epoch=2).run()
    assert host.monitors.names() == ["val/cost", "val/x_mean", "val/error"]
    assert host.monitors.history("val/error") == [(4, 0.2), (8, 0.2)]
    assert host.monitors.latest("val/cost") == pytest.approx(0.2)
    assert host.monitors.latest("val/x_mean") == pytest.approx(4.5)
    assert host.polls >= 2 * len(batches(size))


def test_it_sees_the_current_weights(tmp_path: Path) -> None:
    host = host_for(tmp_path, InferenceRunner(batches(4), ClassificationError())).start()
    runner = host.callbacks.callbacks[0]
    runner.trigger()
    host.model.threshold.assign(3.5)  # type: ignore[attr-defined]
    host.global_step = 1
    runner.trigger()
    assert host.monitors.history("val/error") == [(0, 0.2), (1, 0.1)]


def test_only_what_is_needed_must_be_there(tmp_path: Path) -> None:
    by_name = [{"x": X, "name": ["whatever"] * 10}]
    host = host_for(tmp_path, InferenceRunner(by_name, ScalarStats("x_mean")), max_epoch=1).run()
    assert host.monitors.latest("val/x_mean") == 4.5
    host = host_for(tmp_path, InferenceRunner(by_name, ClassificationError()))
    with pytest.raises(SpecError, match="'label'"):
        host.run()
    with pytest.raises(SpecError, match="Datapoint 0 must have one component"):
        host_for(tmp_path, InferenceRunner([(X,)], ScalarStats("x_mean"))).run()


class Short(DataFlow):
    """Three batches, whatever its length says."""

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Iterator[Any]:
        return iter(batches(4))


@pytest.mark.parametrize("only", [0, 1])
def test_data_that_are_fewer_than_they_say_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, only: int
) -> None:
    runner = InferenceRunner(Short(), ClassificationError())
    host = host_for(tmp_path, runner, max_epoch=2)
    host.fast_dev_run = only
    host.run()
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == (0 if only else 1)
    assert only or "ended after 3 datapoints, but its len() is 5" in told[0]


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        ((X, LABEL, X), r"Datapoint 1 .*(?s:.)*got +tuple of 3"),
        (
            (X, LABEL.astype(np.float32)),
            r"Datapoint 1: component 1 \('label'\) has the wrong dtype",
        ),
        ((X[:, None], LABEL), r"Datapoint 1: component 0 \('x'\) has the wrong shape"),
        ((np.float32(1), LABEL), r"Datapoint 1: component 0 \('x'\) has the wrong shape"),
        ((X[:3], LABEL), "'label' of datapoint 1 must have as many rows as the first component"),
        ({"x": X}, "Datapoint 1 must have the component 'label'"),
        ({"x": X, "label": LABEL[:2]}, "'label' of datapoint 1 must have as many rows"),
    ],
)
def test_a_bad_datapoint_is_named(tmp_path: Path, bad: Any, complaint: str) -> None:
    runner = InferenceRunner([(X, LABEL), bad], ClassificationError())
    with pytest.raises(SpecError, match=complaint):
        host_for(tmp_path, runner).run()


@pytest.mark.parametrize("flow", [[], [(X[:0], LABEL[:0])]])
def test_nothing_to_evaluate_is_an_error(tmp_path: Path, flow: Any) -> None:
    host = host_for(tmp_path, InferenceRunner(flow, ScalarStats("cost")))
    with pytest.raises(
        DataFlowError, match=r"InferenceRunner\('val'\) needs at least one datapoint"
    ):
        host.run()


def test_an_empty_batch_does_not_spoil_a_mean(tmp_path: Path) -> None:
    flow = [(X, LABEL), (X[:0], LABEL[:0])]
    host = host_for(tmp_path, InferenceRunner(flow, ScalarStats("cost")), max_epoch=1).run()
    assert host.monitors.latest("val/cost") == pytest.approx(0.2)


class Stages:
    """A flow whose data depend on seed and epoch, as a shuffled one's do."""

    def __init__(self) -> None:
        self.passes: list[tuple[int, int]] = []

    def iterate(self, *, seed: int, epoch: int) -> Iterator[Any]:
        self.passes.append((seed, epoch))
        return iter(batches(4))

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("iterate() gives the same data each time")


def test_every_evaluation_sees_the_same_data(tmp_path: Path) -> None:
    val, other = Stages(), Stages()
    runners = [
        InferenceRunner(val, ScalarStats("cost")),
        InferenceRunner(other, ScalarStats("cost"), prefix="train"),
    ]
    host_for(tmp_path, *runners, max_epoch=2).run()
    assert val.passes == [val.passes[0]] * 2
    assert val.passes[0][1] == 0
    assert other.passes[0] != val.passes[0]
    again = Stages()
    host_for(tmp_path, InferenceRunner(again, ScalarStats("cost")), max_epoch=1).run()
    assert again.passes[0] == val.passes[0]


def test_what_the_flow_raises_is_raised(tmp_path: Path) -> None:
    class Broken:
        def __iter__(self) -> Iterator[Any]:
            yield X, LABEL
            raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        host_for(tmp_path, InferenceRunner(Broken(), ScalarStats("cost"))).run()


def test_an_interrupt_leaves_the_evaluation(tmp_path: Path) -> None:
    class Endless:
        def __iter__(self) -> Iterator[Any]:
            while True:
                yield X, LABEL

    host = host_for(tmp_path, InferenceRunner(Endless(), ScalarStats("cost")))
    host.interrupt = SystemExit(143)
    with pytest.raises(SystemExit):
        host.run()


def test_two_runners_need_two_prefixes(tmp_path: Path) -> None:
    def runner(prefix: str) -> InferenceRunner:
        return InferenceRunner(batches(4), ScalarStats("cost"), prefix=prefix)

    host = host_for(tmp_path, runner("val"), runner("train"), max_epoch=1).run()
    assert host.monitors.names() == ["val/cost", "train/cost"]
    with pytest.raises(CallbackError, match="both produce 'val/cost'"):
        host_for(tmp_path, runner("val"), runner("val")).setup()
    twice = [ScalarStats("cost"), ClassificationError(name="cost")]
    with pytest.raises(CallbackError, match="both produce 'val/cost'"):
        host_for(tmp_path, InferenceRunner(batches(4), twice)).setup()


def test_needs_are_met_by_it(tmp_path: Path) -> None:
    runner = InferenceRunner(batches(4), ClassificationError())
    host = host_for(tmp_path, PeriodicTrigger(runner, every_k_epochs=1), MinSaver("val/error"))
    assert host.run().saves == [(4, {"keep": None, "best": "val/error"})]


def test_a_wrong_output_is_found_before_training(tmp_path: Path) -> None:
    note = Note()
    host = host_for(tmp_path, note, InferenceRunner(batches(4), ClassificationError("incorrekt")))
    with pytest.raises(LayerError, match="Did you mean 'incorrect'"):
        host.run()
    assert note.log == [("before_train", 0)]


def test_arguments_are_checked() -> None:
    with pytest.raises(ConfigError, match="iterated repeatedly"):
        InferenceRunner((b for b in batches(4)), ScalarStats("cost"))
    with pytest.raises(ConfigError, match="can be iterated repeatedly, got a int"):
        InferenceRunner(3, ScalarStats("cost"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"needs instances of Inferencer, got \[\]"):
        InferenceRunner(batches(4), [])
    with pytest.raises(ConfigError, match=r"needs instances of Inferencer, got .*ScalarStats"):
        InferenceRunner(batches(4), [ScalarStats])  # type: ignore[list-item]


def test_an_inferencer_must_keep_its_word(tmp_path: Path) -> None:
    class Liar(Inferencer):
        def outputs(self) -> list[str]:
            return ["cost"]

        def names(self) -> list[str]:
            return ["truth"]

        def update(self, outputs: Any, batch_size: int) -> None:
            pass

        def finish(self) -> dict[str, float]:
            return {"lie": 1.0}

    with pytest.raises(CallbackError, match=r"(?s)a value for each name.*\['lie'\].*\['truth'\]"):
        host_for(tmp_path, InferenceRunner(batches(4), Liar())).run()


def test_several_inferencers_share_one_pass(tmp_path: Path) -> None:
    flow = Stages()
    inferencers = [ScalarStats("cost"), ScalarStats("cost", prefix="again"), ClassificationError()]
    host_for(tmp_path, InferenceRunner(flow, inferencers), max_epoch=1).run()
    assert len(flow.passes) == 1


def test_a_name_of_a_tower_is_no_prefix() -> None:
    for runner in (
        lambda name: InferenceRunner(batches(4), [ScalarStats("cost")], name),
        lambda name: DataParallelInferenceRunner(batches(4), [ScalarStats("cost")], [0], name),
    ):
        for name in ("Tower2", "InferenceTower"):
            with pytest.raises(ConfigError, match="a tower's name"):
                runner(name)
