"""A compiled Keras model on a trainer, in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_cases import CASES
from scaling import sample
from small_training import RNG, Recorded, X, Y, assert_same, config, train
from towerpack import ConfigError, SpecError
from towerpack.callbacks import (
    InferenceRunner,
    KerasMetric,
    ModelSaver,
    Perplexity,
    ScalarStats,
)
from towerpack.dataflow import BatchData, DataFromArrays
from towerpack.inference import Predictor
from towerpack.model import ModelDesc
from towerpack.nn import expose
from towerpack.training import KerasMetrics, KerasModel, SimpleTrainer, batch_of_step, build_step

CLASS = np.digitize(Y, [-1.0, 1.0])
WEIGHT = RNG.uniform(0.5, 1.5, len(X)).astype(np.float32)


class Noted(keras.layers.Layer):
    """Adds a loss of its own."""

    def call(self, x: Any) -> Any:
        self.add_loss(0.1 * keras.ops.mean(x))
        return x


def two_heads(**compiled: Any) -> keras.Model:
    """Two inputs, two outputs, weighted losses, losses of layers and of weights, metrics."""
    one, two = keras.Input([2], name="one"), keras.Input([1], name="two")
    x = keras.layers.Concatenate()([one, two])
    x = Noted()(keras.layers.Dense(8, activation="relu", kernel_regularizer="l2")(x))
    x = keras.layers.BatchNormalization(momentum=0.5)(x)
    heads = [keras.layers.Dense(1, name="y")(x), keras.layers.Dense(3, name="kind")(x)]
    model = keras.Model([one, two], heads)
    usual: dict[str, Any] = {
        "optimizer": keras.optimizers.SGD(0.05, momentum=0.9),
        "loss": {
            "y": "mse",
            "kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        },
        "loss_weights": {"y": 1.0, "kind": 0.5},
        "metrics": {"y": "mae", "kind": "accuracy"},
    }
    model.compile(**{**usual, **compiled})
    return model


def data(batch: int = 8, *more: np.ndarray) -> BatchData:
    arrays = [X[:, :2], X[:, 2:], Y, CLASS, *more]
    return BatchData(DataFromArrays(*arrays), batch, remainder=True)


@pytest.mark.parametrize("weighted", sample([True, False]))
def test_it_does_what_fit_does(tmp_path: Path, weighted: bool) -> None:
    ours, theirs = two_heads(), two_heads()
    for model in (ours, theirs):  # Values that Keras has drawn would come from the run's seed.
        model.set_weights(
            [np.full(v.shape, 0.1) * np.arange(1, v.shape[-1] + 1) for v in model.variables]
        )
    more = (WEIGHT,) if weighted else ()
    model = KerasModel(ours, sample_weight=weighted)
    inferencers = [ScalarStats("cost"), KerasMetrics(model)]
    callbacks = [InferenceRunner(data(10, *more), inferencers)]
    kwargs: dict[str, Any] = {"dataflow": data(8, *more), "max_epoch": 2}
    trainer = train(tmp_path, callbacks, model=model, **kwargs)
    inputs, targets = [X[:, :2], X[:, 2:]], [Y, CLASS]
    weights = [WEIGHT, WEIGHT] if weighted else None
    theirs.fit(inputs, targets, 8, 2, 0, shuffle=False, sample_weight=weights)
    for a, b in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    for a, b in zip(
        ours.predict(inputs, verbose=0), theirs.predict(inputs, verbose=0), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    found = theirs.evaluate(inputs, targets, 10, 0, weights, return_dict=True)
    latest = {name: trainer.monitors.latest(f"val/{name}") for name in model.metric_names}
    assert latest == pytest.approx({n: found[n] for n in ("y_mae", "kind_accuracy")}, rel=1e-4)
    assert {"cost", "y_mae", "kind_loss"} <= set(trainer.monitors.names())
    if not weighted:
        assert trainer.monitors.latest("val/cost") == pytest.approx(found["loss"], rel=1e-4)


def test_checkpoints_have_keras_paths_and_are_resumed_and_predicted(tmp_path: Path) -> None:
    model = two_heads()
    paths = [v.path for v in model.variables]
    kwargs: dict[str, Any] = {"dataflow": data(), "callbacks": [ModelSaver()]}
    whole = train(tmp_path / "a", model=KerasModel(model), max_epoch=3, **kwargs)
    named = [p for p in paths if p.startswith(("y/", "kind/"))]
    assert len(whole.get_weights()) == len(paths) and set(named) <= whole.get_weights().keys()
    assert {"dense/kernel", "batch_normalization/gamma"} <= whole.get_weights().keys()
    train(tmp_path / "b", model=KerasModel(two_heads()), max_epoch=1, **kwargs)
    parts = train(tmp_path / "b", model=KerasModel(two_heads()), max_epoch=3, **kwargs)
    assert_same(parts.get_weights(), whole.get_weights())
    predictor = Predictor(KerasModel(two_heads()), tmp_path / "a", outputs="kind")
    assert predictor.input_names == ["one", "two"]
    expected = model.predict([X[:, :2], X[:, 2:]], verbose=0)[1]
    np.testing.assert_allclose(predictor(X[:, :2], X[:, 2:]), expected, rtol=1e-5)


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, x: Any, training: bool = False) -> Any:
        return {"scores": self.dense(x), "half": self.dense(x) / 2}


def test_a_subclassed_model_and_one_with_losses_of_layers_alone(tmp_path: Path) -> None:
    model = Subclassed()
    model.compile("sgd", {"scores": "sparse_categorical_crossentropy", "half": "mse"})
    with pytest.raises(ConfigError, match=r"does not define its inputs") as caught:
        KerasModel(model)
    assert "inputs=" in str(caught.value)
    made = KerasModel(model, inputs=[tf.TensorSpec([None, 3], tf.float32, "x")])
    assert [s.name for s in made.inputs()] == ["x", "target_half", "target_scores"]
    arrays = {"x": X, "half": X, "scores": CLASS}
    train(tmp_path / "a", model=made, dataflow=BatchData(DataFromArrays(arrays), 8))

    alone = keras.Sequential([keras.Input([3]), keras.layers.Dense(2), Noted()])
    alone.compile(keras.optimizers.SGD(0.1))
    recorded = Recorded("cost", "output")
    train(tmp_path / "b", [recorded], model=KerasModel(alone), dataflow=data_of(X))
    for step in recorded.outputs:
        assert step["cost"] == pytest.approx(0.1 * step["output"].mean(), abs=1e-5)


def data_of(*arrays: np.ndarray) -> BatchData:
    return BatchData(DataFromArrays(*arrays), 8)


class OwnStep(keras.Sequential):
    def train_step(self, data: Any) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: keras.Sequential([keras.Input([3])]), r"model\.compile\("),
        (lambda: two_heads(run_eagerly=True), "run_eagerly"),
        (lambda: two_heads(jit_compile=True), r"TrainConfig\(xla=True\)"),
        (lambda: compiled(OwnStep([keras.Input([3])])), "TrainStep"),
    ],
)
def test_what_cannot_be_done_is_refused(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        KerasModel(make())


def compiled(model: keras.Model) -> keras.Model:
    model.compile("sgd", "mse")
    return model


def test_other_settings(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"KerasModel\(model\)"):
        SimpleTrainer(config(tmp_path, model=two_heads()))
    model = KerasModel(two_heads(steps_per_execution=4, optimizer="adam"))
    with pytest.raises(ConfigError, match="set_dtype_policy"):
        train(tmp_path / "a", model=model, dataflow=data(), precision="bfloat16")
    with pytest.raises(SpecError, match="target_kind"):
        train(tmp_path / "b", model=model, dataflow=data_of(X[:, :2], X[:, 2:], Y, Y))
    # Its optimizer is copied, with what was set since.
    model.keras_model.optimizer.learning_rate = 0.25
    assert float(model.optimizer().learning_rate) == 0.25


def test_metrics_that_calls_update_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    case = CASES["metric in call"]
    model = KerasModel(case.make(), inputs=case.specs)
    assert model.metric_names == ["mae"]
    assert "['size']" in caplog.text


def test_a_metric_of_keras_sees_masks_and_fractional_weights(tmp_path: Path) -> None:
    class Masked(ModelDesc):
        def inputs(self) -> list[tf.TensorSpec]:
            return [
                tf.TensorSpec([None, 5], tf.int64, "ids"),
                tf.TensorSpec([None, 5, 1], tf.float32, "y"),
            ]

        def build_graph(self, ids: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            x = keras.layers.Embedding(7, 3, mask_zero=True, name="e")(ids)
            prediction = keras.layers.LSTM(1, return_sequences=True, name="l")(x)
            expose("prediction", prediction)
            expose("label", y)
            cost = tf.reduce_mean(tf.square(prediction - y))
            expose("tokens", 0.1 * tf.cast(tf.shape(ids)[0], tf.float32))
            return cost

        def optimizer(self) -> Any:
            return keras.optimizers.SGD(0.1)

    case = CASES["embedding with mask"]
    [ids], [y] = case.inputs, case.targets
    flow = BatchData(DataFromArrays(ids, y), 8)
    metrics = [KerasMetric(keras.metrics.MeanAbsoluteError(), name="mae"), ScalarStats("cost")]
    runner = InferenceRunner(flow, [*metrics, Perplexity(tokens="tokens")])
    trainer = train(tmp_path, [runner], model=Masked(), dataflow=flow, max_epoch=1)
    [prediction] = trainer.get_predictor(outputs=["prediction"])(ids)
    latest = trainer.monitors.latest
    assert latest("val/mae") == pytest.approx(np.abs(prediction - y)[ids > 0].mean(), rel=1e-4)
    assert latest("val/perplexity") == pytest.approx(np.exp(latest("val/cost")), rel=1e-4)


def keyed() -> keras.Model:
    zeta, alpha = (keras.Input([2], name=name) for name in ("zeta", "alpha"))
    x = keras.layers.Concatenate()([zeta, 3 * alpha])
    init = keras.initializers.Constant(0.1)
    outputs = {name: keras.layers.Dense(2, kernel_initializer=init)(x) for name in ("size", "kind")}
    model = keras.Model({"zeta": zeta, "alpha": alpha}, outputs)
    model.compile("sgd", {"size": "mse", "kind": "mae"})
    return model


KEYED = {name: RNG.normal(size=(16, 2)).astype(np.float32) for name in ("zeta", "alpha")}
GOALS = {name: RNG.normal(size=(16, 2)).astype(np.float32) for name in ("size", "kind")}


def test_dicts_of_inputs_and_outputs_train_by_name_alone(tmp_path: Path) -> None:
    ours, theirs = keyed(), keyed()
    theirs.fit(KEYED, GOALS, 8, 1, 0, shuffle=False)
    flow = BatchData(DataFromArrays({**KEYED, **GOALS}), 8)
    dataset = tf.data.Dataset.from_tensor_slices({**KEYED, **GOALS}).batch(8)
    for name, data in (("flow", flow), ("dataset", dataset)):
        model = KerasModel(ours)
        ours.set_weights(keyed().get_weights())
        runner = InferenceRunner(flow, [KerasMetrics(model), ScalarStats("cost")])
        train(tmp_path / name, [runner, ModelSaver()], model=model, data=data, max_epoch=1)
        for a, b in zip(ours.get_weights(), theirs.get_weights(), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
        assert batch_of_step(tmp_path / name, 1, data=data).arrays.keys() >= KEYED.keys()
    predictor = Predictor(KerasModel(keyed()), tmp_path / "flow")
    for name, value in zip(predictor.output_names, predictor(**KEYED), strict=True):
        np.testing.assert_allclose(value, theirs.predict(KEYED, verbose=0)[name], rtol=1e-4)
    with pytest.raises(SpecError, match=r"predictor\(alpha=…, zeta=…\)"):
        predictor(*KEYED.values())
    step = build_step(KerasModel(keyed()), seed=0)
    in_order = (*KEYED.values(), *GOALS.values())
    assert float(step({**KEYED, **GOALS})["cost"]) > 0
    with pytest.raises(SpecError, match="in a dict"):
        step(*in_order)
    wrong = DataFromArrays(*in_order)
    for name, data in (("flow", wrong), ("dataset", tf.data.Dataset.from_tensor_slices(in_order))):
        with pytest.raises(SpecError, match=r"in a dict[\s\S]*'alpha', 'zeta', 'kind', 'size'"):
            train(tmp_path / f"no {name}", model=KerasModel(keyed()), data=data)


def test_specs_of_a_dict_need_no_order() -> None:
    specs = [tf.TensorSpec([4, 2], tf.float32, name) for name in ("zeta", "alpha")]
    targets = [tf.TensorSpec([4, 2], tf.float32, f"target_{name}") for name in ("size", "kind")]
    model = KerasModel(keyed(), inputs=specs, targets=targets)
    names = [spec.name for spec in model.inputs()]
    assert names == ["alpha", "zeta", "target_kind", "target_size"]


def test_a_missing_target_is_named_with_the_key_to_add(tmp_path: Path) -> None:
    flow = BatchData(DataFromArrays({**KEYED, "size": GOALS["size"], "sort": GOALS["kind"]}), 8)
    with pytest.raises(SpecError, match=r"component 'kind'[\s\S]*\['sort'\] to 'kind'"):
        train(tmp_path, model=KerasModel(keyed()), dataflow=flow)


def test_a_vector_metric_is_reported_per_component(tmp_path: Path) -> None:
    net = keras.Sequential([keras.Input([3]), keras.layers.Dense(2, "sigmoid")])
    net.compile("sgd", "mse", metrics=[keras.metrics.F1Score(threshold=0.5)])
    labels = np.stack([Y > 0, Y < 1], 1).astype(np.float32)
    model, flow = KerasModel(net), BatchData(DataFromArrays(X, labels), 8)
    runner = InferenceRunner(flow, [KerasMetrics(model)])
    trainer = train(tmp_path, [runner, ModelSaver()], model=model, dataflow=flow, max_epoch=1)
    expected = net.evaluate(X, labels, verbose=0, return_dict=True)["f1_score"]
    latest = trainer.monitors.latest
    assert [latest(f"val/f1_score/{i}") for i in (0, 1)] == pytest.approx(list(expected), abs=1e-5)
    assert "f1_score/0" in trainer.monitors.names()
    assert KerasMetrics(model).directions() == {"f1_score/0": "max", "f1_score/1": "max"}
    predictor = Predictor(KerasModel(net), tmp_path)
    np.testing.assert_allclose(predictor(X), net.predict(X, verbose=0), rtol=1e-5)
