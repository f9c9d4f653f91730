"""A law: a compiled Keras model gives the weights of `fit` and the numbers of `evaluate`.

Trained by `KerasModel` and saved, then loaded by every path: resume, `init=`, `load_weights`,
`Predictor`, `export`.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_cases import CASES, Case
from scaling import sample
from small_training import Do, train
from towerpack._keras.adapter import inner_layers, is_fresh, variables_of
from towerpack.callbacks import InferenceRunner, ModelSaver, ScalarStats
from towerpack.dataflow import BatchData, DataFromArrays
from towerpack.inference import Predictor, export, load_exported
from towerpack.training import KerasMetrics, KerasModel, SimpleTrainer, load_weights

BATCH = 8
# They hold each kind of fault that there was; of the others a sample.
ALWAYS = [
    "bidirectional, mask, weights, use_ema",
    "subclassed, unbuilt, add_loss",
    "stateful LSTM",
    "EfficientNet in small",
]
OTHERS = [name for name in CASES if name not in ALWAYS]


@pytest.mark.parametrize("name", [*ALWAYS, *sample(OTHERS)])
def test_a_keras_model_gives_the_numbers_of_fit_and_evaluate(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    theirs, _ = started(case)
    # Compiled, `fit` would build the optimizer in each step: ScheduleFreeAdamW then starts anew.
    theirs.optimizer.build(theirs.trainable_variables)
    # Keras squares the parts of an embedding's repeated rows one by one; ours adds them up first.
    update = theirs.optimizer.apply
    theirs.optimizer.apply = lambda gradients, variables=None: update(
        [tf.convert_to_tensor(g) for g in gradients], variables
    )
    theirs.fit(*data_of(case), BATCH, 2, 0, shuffle=False, sample_weight=case.weight)
    weights = values(theirs)
    # Not those that Keras has drawn the seeds of: ours are the run's.
    generators = [g for layer in inner_layers(theirs) for g in layer._seed_generators]
    drawn = {id(g.state) for g in generators if is_fresh(g)}
    compared = [id(v) not in drawn for v in variables_of(theirs)]
    expected = predicted(theirs, case)
    for variable, value in zip(variables_of(theirs), weights, strict=True):
        variable.assign(value)  # Predictions move the states of RNNs.
    numbers = theirs.evaluate(*data_of(case), BATCH, 0, case.weight, return_dict=True)

    ours, trainer = trained(case, tmp_path / "a")
    names = trainer.model.output_names
    first = [array[:BATCH] for array in case.inputs]

    def check(model: keras.Model, trainer: SimpleTrainer) -> None:
        same(*(itertools.compress(found, compared) for found in (values(model), weights)))
        latest = [trainer.monitors.latest(f"val/{n}") for n in trainer.model.metric_names]
        known = [numbers[n] for n in KerasModel(theirs, inputs=case.specs).metric_names]
        same([trainer.monitors.latest("val/cost"), *latest], [numbers["loss"], *known])

    check(ours, trainer)
    same(trainer.get_predictor(outputs=names)(*first), expected)
    trained(case, tmp_path / "b", 1)
    check(*trained(case, tmp_path / "b", 2))  # resumed

    loaded, _ = made(case)
    load_weights(loaded, tmp_path / "a")
    same(predicted(loaded, case), expected)
    same(Predictor(made(case)[1], tmp_path / "a", outputs=names)(*first), expected)
    seen: list[Any] = []

    def look(callback: Any) -> None:
        function, _ = callback.trainer.predict_function(names)
        seen.extend(function(*map(tensor, first)))

    callbacks = [Do("before_train", look)]
    trained(case, tmp_path / "c", 1, callbacks=callbacks, init=str(tmp_path / "a"))
    same(seen, expected)
    path = export(
        made(case)[1], tmp_path / "a", tmp_path / "x", outputs=names, batch_examples=first
    )
    specs = trainer.model.inputs()
    exported = load_exported(path).run({str(s.name): a for s, a in zip(specs, first, strict=False)})
    same([exported[n] for n in names], expected)


def made(case: Case) -> tuple[keras.Model, KerasModel]:
    """A new Keras model, and the model of a trainer."""
    model, weight = case.make(), case.weight
    asked: Any = weight is not None
    if weight is not None and weight.ndim > 1:
        asked = tf.TensorSpec([None, *weight.shape[1:]], tf.float32, "sample_weight")
    return model, KerasModel(model, inputs=case.specs, sample_weight=asked)


def started(case: Case) -> tuple[keras.Model, KerasModel]:
    """The same with initial values that are always the same, and not those that Keras draws."""
    model, ours = made(case)
    rng = np.random.default_rng(3)
    for v in model.weights:
        if v.trainable or v.name == "vector_u":
            v.assign(rng.normal(size=v.shape).astype(np.float32) * 0.4)
    return model, ours


def trained(case: Case, run_dir: Path, epochs: int = 2, **kwargs: Any) -> tuple[Any, Any]:
    """The Keras model after training, and the trainer."""
    model, ours = started(case)
    more = [] if case.weight is None else [case.weight]
    data = BatchData(DataFromArrays(*case.inputs, *case.targets, *more), BATCH)
    runner = InferenceRunner(data, [ScalarStats("cost"), KerasMetrics(ours)])
    kwargs.setdefault("callbacks", [ModelSaver(), runner])
    return model, train(run_dir, model=ours, dataflow=data, max_epoch=epochs, **kwargs)


def values(model: keras.Model) -> list[np.ndarray]:
    return [v.numpy() for v in variables_of(model)]


def data_of(case: Case) -> tuple[Any, Any]:
    """Inputs and targets as Keras takes them."""
    inputs, targets = [tensor(a) for a in case.inputs], case.targets
    y: Any = dict(zip(case.names, targets, strict=True)) if case.names else targets
    return inputs[0] if len(inputs) == 1 else inputs, y if len(y) > 1 else targets[0]


def tensor(array: np.ndarray) -> Any:
    return tf.constant(array, tf.string) if array.dtype == object else array


def predicted(model: keras.Model, case: Case) -> list[np.ndarray]:
    inputs = [tensor(a[:BATCH]) for a in case.inputs]
    return keras.tree.flatten(model.predict_on_batch(inputs[0] if len(inputs) == 1 else inputs))


def same(ours: Any, theirs: Any) -> None:
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=2e-5)
