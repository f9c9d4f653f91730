"""What programs for the predecessor ask of layers, towers and summaries."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from towerpack import LayerError
from towerpack.model import ModelDesc
from towerpack.nn import (
    BatchNorm,
    BNReLU,
    Conv2D,
    Dropout,
    FullyConnected,
    LinearWrap,
    add_activation_summary,
    add_moving_summary,
    add_param_summary,
    argscope,
    get_global_step_var,
    l2_regularizer,
    regularize_cost,
    scope,
    summary,
)
from towerpack.tower import TowerFunction

IMAGE = tf.TensorSpec([None, 6, 6, 2], tf.float32, "image")


def traced(build: Callable[[Any], Any], *, is_training: bool = True) -> Any:
    tower = TowerFunction(build, [IMAGE])
    return tower, tower.trace(is_training=is_training)


def test_batch_norm_and_relu_in_one() -> None:
    def build(x: Any) -> Any:
        with argscope(Conv2D, activation=BNReLU, use_bias=False, kernel_size=3, filters=2):
            x = LinearWrap(x).Conv2D("conv1.1").BNReLU("last")()
            with argscope(BatchNorm, epsilon=1e-3), scope("block"):
                return tf.reduce_mean(BNReLU(x))

    tower, _ = traced(build)
    assert "conv1.1/bias" not in tower.store.named_variables()
    assert {n for n in tower.store.trainable() if n.endswith("gamma")} == {
        "conv1.1/bn/gamma",
        "last/bn/gamma",
        "block/bn/gamma",
    }
    assert tower.store.layers()["block/bn"].epsilon == 1e-3
    predict, _ = tower.trace(is_training=False).function(["last/output"])
    assert predict(np.full([2, 6, 6, 2], -9, np.float32))[0].numpy().min() >= 0


def test_dropout_without_a_name_and_by_a_tensor() -> None:
    def build(x: Any) -> Any:
        rate = tf.constant(0.5 if model.training else 0.0)
        return tf.reduce_sum(LinearWrap(x).Dropout(rate=rate).Dropout(rate=0.5)())

    model = ModelDesc()
    tower = TowerFunction(build, [IMAGE])
    ones = tf.ones([10, 6, 6, 2])
    dropped = float(tower(ones, is_training=True).cost)
    # Each is scaled up by 2: had both the same mask, half would be left, four times as large.
    assert dropped == pytest.approx(720, rel=0.3) and dropped % 4 == 0
    assert float(tower(ones, is_training=False).cost) == 720
    with pytest.raises(LayerError, match=r"rate must be in \[0, 1\), got 1\.5"):
        traced(lambda x: tf.reduce_sum(Dropout(x, rate=tf.constant(1.5))))
    with pytest.raises(LayerError, match="must be called inside a tower function"):
        _ = model.training


def test_dropout_of_most_of_its_input_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Tensorpack's `Dropout('d', x, 0.8)` keeps 80 %."""
    tower = TowerFunction(lambda x: tf.reduce_sum(Dropout("d", x, 0.8)), [IMAGE])
    tower.trace(is_training=True)
    assert "drops 80%" in caplog.text and "write 0.2" in caplog.text
    with pytest.raises(LayerError, match="rate=, the share to drop"):
        traced(lambda x: tf.reduce_sum(Dropout("d", x, keep_prob=0.8)))


def test_a_layers_output_carries_its_variables() -> None:
    def build(x: Any) -> Any:
        c = Conv2D("conv0", x, 4, 3, activation=tf.nn.relu)
        assert c.variables.kernel.shape == [3, 3, 2, 4] and c.variables.bias.shape == [4]
        return tf.reduce_sum(c.variables.kernel)

    tower, _ = traced(build)
    assert set(tower.store.named_variables()) == {"conv0/kernel", "conv0/bias"}


def test_summaries_of_tensors_go_by_their_names() -> None:
    def build(x: Any) -> Any:
        with scope("net"):
            y = tf.reduce_mean(FullyConnected("fc", x, 3), name="accuracy")
        wd_cost = regularize_cost("fc/kernel", l2_regularizer(0.1), name="wd_cost")
        add_moving_summary(y, wd_cost, tf.multiply(2.0, y, name="twice"), decay=0.5)
        add_param_summary((".*/kernel", ["histogram", "rms"]), (".*/bias", ["sparsity", "mean"]))
        add_activation_summary(x, ["mean"], name="input")
        return y + wd_cost

    tower, _ = traced(build)
    result = tf.function(lambda x: summed(tower(x, is_training=True).summaries), autograph=False)
    found = result(tf.ones([1, 6, 6, 2]))
    assert set(found) == {
        ("moving_average", "net/accuracy", 0.5),
        ("moving_average", "wd_cost", 0.5),
        ("moving_average", "twice", 0.5),
        ("histogram", "param-summary/net/fc/kernel-histogram", 0.0),
        ("scalar", "param-summary/net/fc/kernel-rms", 0.0),
        ("scalar", "param-summary/net/fc/bias-sparsity", 0.0),
        ("scalar", "param-summary/net/fc/bias-mean", 0.0),
        ("scalar", "activation-summary/input-mean", 0.0),
    }
    kernel = tower.store.named_variables()["net/fc/kernel"].numpy()
    rms = found["scalar", "param-summary/net/fc/kernel-rms", 0.0]
    assert float(rms) == pytest.approx(np.sqrt(np.mean(kernel**2)))
    assert float(found["scalar", "param-summary/net/fc/bias-sparsity", 0.0]) == 1


def summed(summaries: Any) -> dict[tuple[str, str, float], tf.Tensor]:
    return {(s.kind, s.name, s.decay): s.value for s in summaries}


@pytest.mark.parametrize(
    ("ask", "ours"),
    [
        (lambda: regularize_cost("fc.*/W", tf.nn.l2_loss), "fc.*/kernel"),
        (lambda: regularize_cost(".*/b$", tf.nn.l2_loss), ".*/bias$"),
        (lambda: add_param_summary((".*/(W|b)", ["rms"])), ".*/(kernel|bias)"),
    ],
)
def test_old_names_of_variables_get_the_new_ones(ask: Callable[[], Any], ours: str) -> None:
    def build(x: Any) -> Any:
        y = tf.reduce_mean(FullyConnected("fc0", x, 3))
        ask()
        return y

    with pytest.raises(LayerError) as caught:
        traced(build)
    assert f"use '{ours}', because W and b are called kernel and bias here" in str(caught.value)
    with pytest.raises(LayerError, match=r"summary type must be .*'max'"):
        traced(lambda x: summary.add_tensor_summary(x, ["max"]))
    with pytest.raises(LayerError, match=r"decay must be in \[0, 1\), got 1\.0"):
        traced(lambda x: add_moving_summary(tf.reduce_mean(x), decay=1.0))
    with pytest.raises(LayerError, match="must have a name in a graph"):
        TowerFunction(add_moving_summary, [IMAGE])(tf.ones([1, 6, 6, 2]))


def test_evaluation_finds_what_tensorflow_was_given_a_name_for() -> None:
    def build(x: Any) -> Any:
        y = FullyConnected("fc", x, 3)
        tf.nn.softmax(y, name="prob")
        return tf.reduce_mean(y, name="total_cost")

    _, trace = traced(build, is_training=False)
    predict, inputs = trace.function(["prob", "total_cost"])
    assert inputs == ["image"]
    np.testing.assert_allclose(predict(tf.ones([2, 6, 6, 2]))[0].numpy().sum(1), 1, rtol=1e-6)
    with pytest.raises(LayerError, match="no output 'probs'"):
        trace.function(["probs"])


def test_the_global_step_of_schedules() -> None:
    def build(x: Any) -> Any:
        rate = tf.compat.v1.train.exponential_decay(1.0, get_global_step_var(), 10, 0.5, True)
        return tf.reduce_sum(x) * 0 + rate

    tower = TowerFunction(build, [IMAGE])
    ones = tf.ones([1, 6, 6, 2])
    rate_at = tf.function(lambda step: tower(ones, step=step).cost, autograph=False)
    assert float(rate_at(tf.constant(9, tf.int64))) == 1
    assert float(rate_at(tf.constant(25, tf.int64))) == 0.25
    assert float(tf.function(lambda: tower(ones, is_training=False).cost, autograph=False)()) == 1
    with tf.Graph().as_default():  # whose collections go with it
        assert get_global_step_var() is tf.compat.v1.train.get_or_create_global_step()


class MyDense(keras.layers.Dense):
    """Of another class than the scope is over."""


def test_argscope_over_keras_classes() -> None:
    before = keras.layers.Conv2D(3, 2).get_config()
    with argscope([keras.layers.Conv2D, keras.layers.Dense], activation="relu", padding="same"):
        with argscope(keras.layers.Conv2D, out_channel=5, strides=2):
            made = keras.layers.Conv2D(kernel_size=3, strides=1, name="own")
        other = keras.layers.Conv2D(4, 3)
        dense = keras.layers.Dense(2, "tanh")
        derived = MyDense(2)
        elsewhere: list[Any] = []
        thread = threading.Thread(target=lambda: elsewhere.append(keras.layers.Dense(2)))
        thread.start()
        thread.join()
    assert (made.filters, made.padding, made.strides, made.name) == (5, "same", (1, 1), "own")
    assert made.activation is keras.activations.relu is other.activation
    assert (other.filters, other.strides) == (4, (1, 1))
    assert dense.activation is keras.activations.tanh
    assert derived.activation is elsewhere[0].activation is keras.activations.linear
    after = keras.layers.Conv2D(3, 2).get_config()
    assert {**after, "name": ""} == {**before, "name": ""}
    assert keras.layers.Conv2D.from_config(made.get_config()).padding == "same"
    with pytest.raises(LayerError, match="none of \\['Dense'\\] has an argument 'kernel_size'"):
        with argscope(keras.layers.Dense, kernel_size=3):
            pass
    with pytest.raises(LayerError, match="argscope needs registered layers"):
        with argscope(keras.layers.add, kernel_size=3):  # type: ignore[arg-type]
            pass


def test_names_of_tensors_are_the_same_in_every_place() -> None:
    def build(x: Any) -> Any:
        y = tf.reduce_mean(x, name="mean")
        add_moving_summary(y)
        return y

    tower = TowerFunction(build, [IMAGE])
    names = []

    def step(i: tf.Tensor) -> tf.Tensor:
        with tf.name_scope("around"):
            result = tower(tf.ones([1, 6, 6, 2]), is_training=True)
        names.extend(s.name for s in result.summaries)
        return i + 1

    tf.function(lambda: tf.while_loop(lambda i: i < 2, step, [tf.constant(0)]), autograph=False)()
    assert set(names) == {"mean"}


def test_many_layers_with_initializers_of_tensorflow_are_made_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def build(x: Any) -> Any:
        initializer = tf.compat.v1.variance_scaling_initializer(scale=2.0, mode="fan_out")
        with argscope(Conv2D, kernel_initializer=initializer, filters=2, kernel_size=3):
            for i in range(8):
                x = Conv2D(f"conv{i}", x)
        return tf.reduce_sum(x)

    logger = tf.get_logger()
    logger.addHandler(caplog.handler)
    try:
        tower, _ = traced(build)
    finally:
        logger.removeHandler(caplog.handler)
    kernels = [v.numpy() for n, v in tower.store.trainable().items() if n.endswith("kernel")]
    assert len({kernel.tobytes() for kernel in kernels}) == 8
    assert not caplog.records
