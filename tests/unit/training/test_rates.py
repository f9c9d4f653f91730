"""Learning rates of old programs: schedules on the v1 global step, and rates in variables."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from scaling import sample
from small_training import Do, train
from towerpack import ConfigError
from towerpack.callbacks import (
    HyperParamSetterWithFunc,
    ModelSaver,
    ScheduledHyperParamSetter,
)
from towerpack.checkpoint import load_checkpoint
from towerpack.model import ModelDesc
from towerpack.nn import FullyConnected, get_global_step_var
from towerpack.tower import TowerFunction
from towerpack.training import AccumulateGradients, build_step
from towers import spec

v1 = tf.compat.v1


class Slope(ModelDesc):
    """The gradient of its one weight is 1: the weight is minus the sum of all rates."""

    def __init__(self, optimizer: Callable[[], Any]) -> None:
        self._make = optimizer

    def inputs(self) -> list[tf.TensorSpec]:
        return [spec(None, 3, name="x"), spec(None, name="y")]

    def build_graph(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return tf.Variable(0.0, name="w") + 0.0 * tf.reduce_sum(x)

    def optimizer(self) -> Any:
        return self._make()


def decayed() -> Any:
    return v1.train.exponential_decay(0.1, v1.train.get_or_create_global_step(), 6, 0.5)


def stairs() -> Any:
    step = v1.train.get_or_create_global_step()
    return v1.train.piecewise_constant(step, [5, 11], [0.1, 0.01, 0.001])


def exponential(step: int) -> float:
    return 0.1 * 0.5 ** (step / 6)


def constant_in_pieces(step: int) -> float:
    return 0.1 if step <= 5 else 0.01 if step <= 11 else 0.001


@pytest.mark.parametrize(
    ("schedule", "rate", "optimizer"),
    [
        (decayed, exponential, keras.optimizers.SGD),
        (stairs, constant_in_pieces, v1.train.GradientDescentOptimizer),
    ],
)
def test_a_schedule_on_the_global_step_decays_also_after_a_resume(
    optimizer: Any, schedule: Callable[[], Any], rate: Callable[[int], float], tmp_path: Path
) -> None:
    def run(epochs: int) -> Any:
        model = Slope(lambda: optimizer(schedule()))
        return train(tmp_path, [ModelSaver()], model=model, max_epoch=epochs, monitors=None)

    run(1)
    trainer = run(3)
    np.testing.assert_allclose(trainer.get_weights()["w"], -sum(map(rate, range(18))), rtol=1e-5)
    told = trainer.monitors.history("learning_rate")
    np.testing.assert_allclose(told, [(n, rate(n - 1)) for n in (6, 12, 18)], rtol=1e-5)
    assert v1.train.get_global_step() is None


def test_a_keras_schedule_is_reported(tmp_path: Path) -> None:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 6, 0.5)
    trainer = train(tmp_path, model=Slope(lambda: keras.optimizers.SGD(schedule)))
    told = trainer.monitors.history("learning_rate")
    np.testing.assert_allclose(told, [(n, exponential(n - 1)) for n in (6, 12)], rtol=1e-5)


def test_the_global_step_inside_of_the_model_is_the_run_s(tmp_path: Path) -> None:
    class Reads(Slope):
        def build_graph(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            step = v1.train.get_or_create_global_step()
            assert step is v1.train.get_global_step()
            FullyConnected("unused", x, 1)
            return tf.cast(step, tf.float32) * tf.Variable(1.0, name="w")

    seen: list[float] = []

    def look(callback: Any) -> None:
        cost, _ = callback.trainer.predict_function(["cost"])
        seen.append(float(cost()[0]))

    model = Reads(lambda: v1.train.GradientDescentOptimizer(0.0))
    trainer = train(tmp_path, [Do("trigger", look), ModelSaver()], model=model)
    assert [value for _, value in trainer.monitors.history("cost")] == [2.5, 8.5]
    assert seen == [6.0, 12.0]
    assert "global_step" not in {*trainer.get_weights(), *load_checkpoint(tmp_path).model}
    # Without a run there is a step, too, and it is no part of the model.
    tower = TowerFunction(model.build_graph, model.inputs())
    tower.trace(is_training=False)
    assert list(tower.store.named_variables()) == ["unused/kernel", "unused/bias", "w"]


def test_a_step_made_by_the_program_is_the_run_s_or_is_refused(tmp_path: Path) -> None:
    def program() -> None:
        optimizer = v1.train.GradientDescentOptimizer(decayed())
        weights.update(
            train(tmp_path, optimizer=optimizer, model=Slope(lambda: None)).get_weights()
        )

    weights: dict[str, np.ndarray] = {}
    thread = threading.Thread(target=program)  # TensorFlow keeps a global step for each thread.
    thread.start()
    thread.join()
    np.testing.assert_allclose(weights["w"], -sum(map(exponential, range(12))), rtol=1e-5)
    step = tf.Variable(0, name="global_step")
    other = v1.train.GradientDescentOptimizer(lambda: tf.cast(step, tf.float32))
    with pytest.raises(ConfigError, match="must depend on the global step of the run"):
        train(tmp_path / "other", model=Slope(lambda: other))


# ------------------------------------------------------------------ rates in variables


def in_get_variable() -> Any:
    rate = v1.get_variable("learning_rate", initializer=0.5, trainable=False)
    return v1.train.GradientDescentOptimizer(rate)


def in_a_variable() -> Any:
    return v1.train.GradientDescentOptimizer(tf.Variable(0.5, name="learning_rate"))


def in_a_function() -> Any:
    rate = tf.Variable(0.5, name="learning_rate")
    return keras.optimizers.SGD(lambda: rate)


class OnTheModel(Slope):
    def __init__(self) -> None:
        self.rate = tf.Variable(0.5, name="learning_rate")

    def optimizer(self) -> Any:
        return v1.train.GradientDescentOptimizer(self.rate)


@pytest.mark.parametrize(
    "make", sample([in_get_variable, in_a_variable, OnTheModel, in_a_function], at_least=2)
)
def test_a_rate_in_a_variable_is_found_saved_once_and_reported(
    make: Callable[[], Any], tmp_path: Path
) -> None:
    def run(epochs: int) -> Any:
        model = OnTheModel() if make is OnTheModel else Slope(make)
        halve = HyperParamSetterWithFunc("learning_rate", lambda e, now: now / 2 if e else None)
        return train(tmp_path, [halve, ModelSaver()], model=model, max_epoch=epochs, monitors=None)

    run(1)
    trainer = run(3)
    assert trainer.monitors.history("learning_rate") == [(6, 0.5), (12, 0.25), (18, 0.125)]
    assert float(trainer.get_weights()["w"]) == -6 * (0.5 + 0.25 + 0.125)
    saved = load_checkpoint(tmp_path)
    values = {**saved.model, **saved.optimizer}
    assert len(values) == len(saved.model) + len(saved.optimizer)
    rates = [name for name in values if name in ("learning_rate", "rate")]
    assert [float(values[name]) for name in rates] == [0.0625]


def test_a_rate_from_a_graph_is_refused(tmp_path: Path) -> None:
    class FromTheTower(Slope):
        def build_graph(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            self.rate = decayed()
            return super().build_graph(x, y)

    model = FromTheTower(lambda: v1.train.GradientDescentOptimizer(model.rate))
    with pytest.raises(ConfigError, match="constant tensor"):
        train(tmp_path, model=model)


def test_numbers_of_any_kind_are_rates(tmp_path: Path) -> None:
    for value in (np.float32(0.5), tf.constant(0.5), 0.5):
        model = Slope(lambda v=value: v1.train.GradientDescentOptimizer(v))
        trainer = train(tmp_path / type(value).__name__, model=model, max_epoch=1)
        assert trainer.hyper_param("learning_rate").get() == 0.5
        assert float(trainer.get_weights()["w"]) == -3.0


@pytest.mark.parametrize("decayed_by_keras", [True, False])
def test_the_rate_of_a_schedule_can_be_read_and_not_set(
    tmp_path: Path, *, decayed_by_keras: bool
) -> None:
    schedule = keras.optimizers.schedules.PolynomialDecay(1.0, 12, 0.0)
    rates: list[float] = []

    def read(callback: Any) -> None:
        rates.append(callback.trainer.hyper_param("learning_rate").get())
        with pytest.raises(ConfigError, match="that can be changed"):
            callback.trainer.hyper_param("learning_rate").set(0.5)
        with pytest.raises(ConfigError, match="that can be changed"):
            callback.trainer.hold("learning_rate", 0.5)
        assert callback.trainer.hyper_param_names() == []

    class Read(Do):
        acts_between_steps = True

    model = Slope(
        lambda: keras.optimizers.SGD(
            schedule if decayed_by_keras else lambda: schedule(get_global_step_var())
        )
    )
    trainer = train(tmp_path, [Read("trigger_step", read)], model=model, max_epoch=1)
    steps = trainer.global_step
    assert steps > 2 and rates == pytest.approx([1 - step / 12 for step in range(steps)])
    setter = HyperParamSetterWithFunc("learning_rate", lambda epoch, value: None)
    with pytest.raises(ConfigError, match="that can be changed"):
        train(tmp_path / "set", [setter], model=model, max_epoch=1)


@pytest.mark.filterwarnings("ignore:Cannot activate TF2")
def test_a_summary_of_a_schedule_in_optimizer_says_what_to_do(tmp_path: Path) -> None:
    def make() -> Any:
        rate = decayed()
        v1.summary.scalar("lr", rate)
        return v1.train.GradientDescentOptimizer(rate)

    with pytest.raises(ConfigError, match="where a number is needed") as caught:
        train(tmp_path, model=Slope(make))
    assert "tf.summary" in str(caught.value.fix)


# ------------------------------------------------------------------ rates computed from variables


def rate_variable() -> Any:
    return v1.get_variable("learning_rate", initializer=0.8, trainable=False)


def step() -> Any:
    return tf.cast(get_global_step_var(), tf.float32)


# What optimizer() computes, with the rate of each of the 12 steps. The variable becomes 0.08 after
# the first epoch of 6 steps.
COMPUTED: dict[str, tuple[Callable[[], Any], Callable[[int], float]]] = {
    "factor": (lambda: rate_variable() / 8.0, lambda n: 0.1 if n < 6 else 0.01),
    "sum": (lambda: 0.1 * rate_variable() + 0.02, lambda n: 0.1 if n < 6 else 0.028),
    "quotient": (lambda: 0.1 / (1 + step()), lambda n: 0.1 / (1 + n)),
    "minimum": (lambda: tf.minimum(0.05, 0.01 * (1 + step())), lambda n: min(0.05, 0.01 * (1 + n))),
    "branches": (
        lambda: tf.cond(get_global_step_var() < 6, lambda: 0.1, lambda: 0.01),
        lambda n: 0.1 if n < 6 else 0.01,
    ),
    "bounded schedule": (lambda: tf.maximum(decayed(), 0.06), lambda n: max(exponential(n), 0.06)),
    "scaled schedule": (lambda: 2 * decayed(), lambda n: 2 * exponential(n)),
    "shifted schedule": (
        lambda: v1.train.exponential_decay(0.1, get_global_step_var() + 6, 6, 0.5),
        lambda n: exponential(n + 6),
    ),
    "schedule of values": (
        lambda: (lambda r: v1.train.piecewise_constant(step(), [2.0], [r, r / 2]))(rate_variable()),
        lambda n: (0.8 if n < 6 else 0.08) / (1 if n <= 2 else 2),
    ),
}


@pytest.mark.parametrize("name", sample([*COMPUTED], at_least=4))
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_computed_rate_follows_the_step_and_its_variables(
    name: str, wrapped: bool, tmp_path: Path
) -> None:
    def optimizer() -> Any:
        inner = v1.train.GradientDescentOptimizer(make())
        return AccumulateGradients(inner, 1) if wrapped else inner

    def run(epochs: int) -> Any:
        callbacks: list[Any] = [ModelSaver()]
        if name in ("factor", "sum", "schedule of values"):
            callbacks.append(ScheduledHyperParamSetter("learning_rate", [(1, 0.08)]))
        return train(tmp_path, callbacks, model=Slope(optimizer), max_epoch=epochs, monitors=None)

    make, rate = COMPUTED[name]
    run(1)
    trainer = run(2)  # Resumed.
    np.testing.assert_allclose(trainer.get_weights()["w"], -sum(map(rate, range(12))), rtol=1e-5)
    told = trainer.monitors.history("learning_rate")
    np.testing.assert_allclose(told, [(6, rate(5)), (12, rate(11))], rtol=1e-5)


def test_other_numbers_of_an_optimizer_follow_the_step_too(tmp_path: Path) -> None:
    def make() -> Any:
        return v1.train.MomentumOptimizer(1.0, tf.minimum(0.5, 0.1 * step()))

    speed, weight = 0.0, 0.0
    for n in range(12):
        speed = min(0.5, 0.1 * n) * speed + 1.0
        weight -= speed
    weights = train(tmp_path, model=Slope(make)).get_weights()
    np.testing.assert_allclose(weights["w"], weight, rtol=1e-5)


def test_a_computed_rate_follows_the_step_in_a_loop_of_one_s_own(tmp_path: Path) -> None:
    for make, rate in (
        (lambda: 0.1 / (1 + step()), COMPUTED["quotient"][1]),
        (decayed, exponential),
    ):
        model = Slope(lambda make=make: v1.train.GradientDescentOptimizer(make()))
        built = build_step(model)
        for _ in range(12):
            built(np.zeros([2, 3], "f4"), np.zeros([2], "f4"))
        (weight,) = built.variables()["model"].values()
        np.testing.assert_allclose(weight, -sum(map(rate, range(12))), rtol=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: rate_variable() / 8.0,
        lambda: tf.cond(get_global_step_var() < 6, lambda: 0.1, lambda: 0.01),
        lambda: float(0.1 / (1 + step())),
        lambda: 2 * decayed(),
        lambda: v1.train.exponential_decay(0.1, get_global_step_var() + 6, 6, 0.5),
    ],
)
def test_a_computed_number_for_a_keras_optimizer_is_refused(make: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"learning rate|not change during training") as caught:
        train(tmp_path, model=Slope(lambda: keras.optimizers.SGD(make())))
    assert "lambda: " in str(caught.value.fix)
    # The line that the message shows.
    follows = lambda: keras.optimizers.SGD(lambda: 0.1 / (1.0 + step()))  # noqa: E731
    weights = train(tmp_path / "follows", model=Slope(follows)).get_weights()
    expected = -sum(COMPUTED["quotient"][1](n) for n in range(12))
    np.testing.assert_allclose(weights["w"], expected, rtol=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: 0.1 if get_global_step_var() < 6 else 0.01,
        lambda: float(0.1 / (1 + step())),
        lambda: 0.1 / (1 + get_global_step_var().numpy()),
        lambda: float(rate_variable() / 8),
        lambda: (rate_variable() / 8).numpy().item(),
        lambda: (rate_variable() / 8).numpy(),
    ],
)
@pytest.mark.parametrize("kind", [v1.train.GradientDescentOptimizer, keras.optimizers.SGD])
def test_a_python_number_made_of_what_changes_is_refused(
    make: Any, kind: Any, tmp_path: Path
) -> None:
    with pytest.raises(
        ConfigError, match=r"not change during training|changes during training"
    ) as caught:
        train(tmp_path, model=Slope(lambda: kind(make())))
    assert "lambda" in str(caught.value.fix)


def test_a_tensor_outside_of_optimizer_is_refused(tmp_path: Path) -> None:
    rate = tf.Variable(0.8)
    optimizer = v1.train.GradientDescentOptimizer(rate / 8.0)
    with pytest.raises(ConfigError, match="constant tensor") as caught:
        train(tmp_path, model=Slope(lambda: None), optimizer=optimizer)
    assert "lambda: lr / 8.0" in str(caught.value.fix)


def test_optimizer_is_called_in_a_graph_only_where_a_tensor_may_depend_on_a_variable(
    tmp_path: Path,
) -> None:
    def make() -> Any:
        rate = rate_variable()
        assert rate.numpy() > 0  # In a graph this would be an error.
        calls.append(rate)
        return v1.train.MomentumOptimizer(rate, 0.9)

    calls: list[Any] = []
    train(tmp_path, model=Slope(make))
    assert len({*map(id, calls)}) == 1
