"""Names of statistics, parameters and summaries that are wrong: refused before the first step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from small_host import PutValues
from small_training import Model, Recorded, flow, train
from towerpack import CallbackError, ConfigError, LayerError, TowerpackError
from towerpack.callbacks import (
    BestSaver,
    Callback,
    EarlyStopping,
    HumanHyperParamSetter,
    HyperParamSetterWithFunc,
    InferenceRunner,
    PeriodicTrigger,
    ScalarStats,
    ScheduledHyperParamSetter,
    StatMonitorParamSetter,
)
from towerpack.nn import FullyConnected, summary


def evaluation() -> Callback:
    return InferenceRunner(flow(), ScalarStats("cost"))


def rule(param: str, stat: str = "val/cost") -> Callback:
    return StatMonitorParamSetter(param, stat, lambda lr: lr * 0.1, 0.0, 10)


BAD_PARAMS = {
    "table": ScheduledHyperParamSetter("learning_rte", [(11, 0.1)]),
    "table by steps": ScheduledHyperParamSetter("learning_rte", [(70, 0.1)], step_based=True),
    "line": ScheduledHyperParamSetter("learning_rte", [(7, 1), (9, 0)], "linear", step_based=True),
    "function": HyperParamSetterWithFunc("learning_rte", lambda epoch, old: None),
    "statistic": rule("learning_rte"),
    "by hand": HumanHyperParamSetter("learning_rte"),
    "seldom": PeriodicTrigger(rule("learning_rte"), every_k_epochs=2),
}


def assert_refused(tmp_path: Path, error: type[TowerpackError], text: str, *callbacks: Any) -> None:
    steps = Recorded()
    with pytest.raises(error, match=text):
        train(tmp_path, [steps, *callbacks])
    assert "before_epoch" not in [hook for hook, *_ in steps.log]


@pytest.mark.parametrize("kind", BAD_PARAMS)
def test_a_parameter_that_is_not_there(tmp_path: Path, kind: str) -> None:
    text = r"(?s)'learning_rte'.*Did you mean 'learning_rate'"
    assert_refused(tmp_path, ConfigError, text, evaluation(), BAD_PARAMS[kind])


def test_an_optimizer_without_a_number_for_its_rate(tmp_path: Path) -> None:
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    model = Model(lambda: keras.optimizers.SGD(rate))
    with pytest.raises(ConfigError, match="pass a number as the optimizer's learning rate"):
        train(tmp_path, [BAD_PARAMS["table"]], model=model)


@pytest.mark.parametrize(
    "watcher",
    [
        lambda name: BestSaver(name, "min"),
        EarlyStopping,
        lambda name: rule("learning_rate", name),
        lambda name: PeriodicTrigger(EarlyStopping(name), every_k_steps=3),
    ],
)
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("val/cst", "Did you mean 'val/cost'"),
        ("accuracy", r"Use one of: .*'val/cost'.*produces\(\)"),
    ],
)
def test_a_statistic_that_nothing_puts(
    tmp_path: Path, watcher: Callable[[str], Callback], name: str, text: str
) -> None:
    assert_refused(
        tmp_path, CallbackError, f"(?s)needs '{name}'.*{text}", evaluation(), watcher(name)
    )


class Summarising(Model):
    """Reports something of the model under a name."""

    def __init__(self, report: Callable[[tf.Tensor, tf.Tensor], None]) -> None:
        super().__init__(lambda: keras.optimizers.SGD(0.01))
        self._report = report

    def build_graph(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        cost = tf.reduce_mean(tf.square(FullyConnected("fc", x, 1)[:, 0] - y))
        self._report(cost, x)
        return cost


BUILT_IN = ["cost", "learning_rate", "queue/fill", "throughput/steps_per_s", "time/compute_share"]


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("report", [summary.scalar, summary.moving_average])
def test_a_summary_by_the_name_of_a_built_in(tmp_path: Path, report: Any, name: str) -> None:
    model = Summarising(lambda cost, x: report(name, tf.reduce_max(x)))
    with pytest.raises(LayerError, match=f"(?s)'{name}'.*reserved for trainers.*'my_{name}'"):
        train(tmp_path, model=model)


def test_a_callback_by_the_name_of_a_built_in(tmp_path: Path) -> None:
    text = "trainer and .* both produce 'cost'"
    assert_refused(tmp_path, CallbackError, text, PutValues("cost", [1.0]))


def test_the_cost_may_be_reported_by_its_own_name(tmp_path: Path) -> None:
    plain = train(tmp_path / "plain", model=Summarising(lambda cost, x: None))
    for report in (summary.scalar, summary.moving_average):
        model = Summarising(lambda cost, x, report=report: report("cost", cost))
        trainer = train(tmp_path / report.__name__, model=model)
        assert [name for name in trainer.monitors.names() if "cost" in name] == ["cost"]
        assert len(trainer.monitors.history("cost")) == len(plain.monitors.history("cost")) == 2


def test_a_summary_by_the_name_of_a_variable_is_the_summary(tmp_path: Path) -> None:
    beta = tf.Variable(2.0, trainable=False, name="beta")
    model = Summarising(lambda cost, x: summary.scalar("beta", beta + 3.0))
    trainer = train(tmp_path, [Named("beta")], model=model)
    assert trainer.monitors.latest("beta") == 5.0


class Named(Callback):
    """Sees to it that the trainer knows a hyper-parameter."""

    def __init__(self, name: str) -> None:
        self._name = name

    def before_train(self) -> None:
        assert self._name in self.trainer.hyper_param_names()


def test_a_histogram_is_no_statistic(tmp_path: Path) -> None:
    model = Summarising(lambda cost, x: summary.histogram("values", x))
    with pytest.raises(CallbackError, match="needs 'values', but no callback produces it"):
        train(tmp_path, [EarlyStopping("values")], model=model)
