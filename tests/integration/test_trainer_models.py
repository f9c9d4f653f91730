"""Models of all kinds, precision, hyper-parameters, lengths of epochs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from small_training import (
    LINE,
    SPECS,
    Do,
    Model,
    Recorded,
    X,
    Y,
    assert_resumes,
    assert_same,
    flow,
    train,
)
from towerpack import ConfigError, LayerError
from towerpack.callbacks import (
    Callback,
    InferenceRunner,
    ModelSaver,
    ScalarStats,
)
from towerpack.dataflow import BatchData, DataFromArrays, DataFromGenerator
from towerpack.nn import (
    FullyConnected,
    expose,
    get_current_tower_context,
    l2_regularizer,
    regularize_cost,
)
from towerpack.training import ObjAttrParam, SimpleTrainer, TrainConfig

pytestmark = pytest.mark.usefixtures("nothing_to_collect", "no_thread_is_left")


def slots(trainer: SimpleTrainer) -> dict[str, tf.Variable]:
    return trainer._run.assembled.setup.optimizers["optimizer"].variables()


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
        with pytest.raises(ConfigError, match="other settings of an optimizer are constants"):
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
    with pytest.raises(ConfigError, match="number of steps per epoch is unknown"):
        config_of = TrainConfig(model=Model(), dataflow=endless)
        SimpleTrainer(config_of)
    with pytest.raises(ConfigError, match="must make at least one step"):
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
