"""NumPy in, NumPy out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from small_training import SPECS, Do, Model, X, Y, train
from towerpack import CheckpointError, CheckpointMismatchError, ConfigError, LayerError, SpecError
from towerpack.callbacks import MinSaver, ModelSaver
from towerpack.checkpoint import load_checkpoint
from towerpack.dataflow import BatchData, DataFromArrays
from towerpack.inference import Predictor
from towerpack.nn import FullyConnected, expose


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("run")

    def put(callback: Any) -> None:
        callback.trainer.monitors.put_scalar("score", float(callback.trainer.epoch))

    class Score(Do):
        def produces(self) -> list[str]:
            return ["score"]

    train(directory, [Score("trigger", put), MinSaver("score"), ModelSaver()], max_epoch=3)
    yield directory


@pytest.fixture(scope="module")
def predictor(run: Path) -> Predictor:
    return Predictor(Model(), run, outputs="out")


def expected(run: Path, x: np.ndarray = X, **kwargs: Any) -> np.ndarray:
    w = load_checkpoint(run, **kwargs).model
    hidden = np.maximum(x @ w["fc0/kernel"] + w["fc0/bias"], 0)
    return (hidden @ w["fc1/kernel"] + w["fc1/bias"])[:, 0]


def test_numbers_and_needed_inputs(run: Path) -> None:
    predictor = Predictor(Model(), run, outputs=["out", "fc0/output"])
    assert (predictor.input_names, predictor.step) == (["x"], 18)
    assert predictor.output_names == ["out", "fc0/output"]
    out, hidden = predictor(X)
    assert isinstance(out, np.ndarray)
    np.testing.assert_allclose(out, expected(run), rtol=1e-5, atol=1e-6)
    assert hidden.shape == (48, 4)
    np.testing.assert_array_equal(predictor(x=X)[0], out)
    assert "['x'] -> ['out', 'fc0/output'], step 18" in repr(predictor)


def test_by_position_and_by_name(run: Path) -> None:
    predictor = Predictor(Model(), run, outputs=["cost"])
    assert predictor.input_names == ["x", "y"]
    [cost] = predictor(X, Y)
    np.testing.assert_allclose(cost, np.mean((expected(run) - Y) ** 2), rtol=1e-5)
    for args, kwargs in (((X,), {"y": Y}), ((), {"y": Y, "x": X})):
        np.testing.assert_array_equal(predictor(*args, **kwargs)[0], cost)
    turned = Predictor(Model(), run, ["y", "x"], ["cost"])
    np.testing.assert_array_equal(turned(Y, X)[0], cost)


@pytest.mark.parametrize("size", [7, 48, 100])
def test_batches(run: Path, size: int) -> None:
    cut = Predictor(Model(), run, outputs="out", batch_size=size)
    seen: list[int] = []
    function = cut._function
    cut._function = lambda *arrays: (seen.append(len(arrays[0])), function(*arrays))[1]
    np.testing.assert_allclose(cut(X), expected(run), rtol=1e-5, atol=1e-6)
    assert sum(seen) == 48
    assert max(seen) <= size
    assert cut(X[:0]).shape == (0,)


def test_what_cannot_be_cut(run: Path) -> None:
    predictor = Predictor(Model(), run, outputs="cost", batch_size=16)
    with pytest.raises(SpecError, match="'cost' must have one row for each row") as caught:
        predictor(X, Y)
    assert "float32 [] for 16 rows" in str(caught.value)
    with pytest.raises(SpecError, match="the same number of rows"):
        predictor(X, Y[:20])
    with pytest.raises(SpecError, match="must have one row for each row"):
        Predictor(Model(), run, outputs="large", batch_size=16)(X, Y)


def test_lists_and_other_dtypes(predictor: Predictor) -> None:
    out = predictor(X[:2])
    np.testing.assert_array_equal(predictor(X[:2].tolist()), out)
    np.testing.assert_array_equal(predictor(tf.constant(X[:2])), out)
    assert predictor([[1, 2, 3]]).shape == (1,)
    np.testing.assert_array_equal(predictor(X.astype(np.float64)), predictor(X))
    with pytest.raises(SpecError, match="wrong dtype"):
        predictor(X.astype(np.complex64))
    with pytest.raises(SpecError, match=r"(?s)^Input 'x' has the wrong shape.*x\[None\]"):
        predictor(X[0])
    with pytest.raises(SpecError, match="cannot be converted to an array"):
        predictor([[1.0, 2.0], [3.0]])


def test_numbers_are_not_rounded_to_integers(run: Path) -> None:
    class Indexed(Model):
        def inputs(self) -> list[tf.TensorSpec]:
            return [*SPECS, tf.TensorSpec([None], tf.int32, "index")]

        def build_graph(self, x: tf.Tensor, y: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
            expose("picked", tf.gather(x, index))
            return super().build_graph(x, y)

    predictor = Predictor(Indexed(), run, outputs="picked")
    np.testing.assert_array_equal(predictor(X, [1, 3.0]), X[[1, 3]])
    for wrong in ([1.7], [2**40]):
        with pytest.raises(SpecError, match=r"wrong dtype|values that int32 cannot hold"):
            predictor(X, wrong)


def test_wrong_calls(predictor: Predictor) -> None:
    for args, kwargs in (((), {}), ((X, Y), {}), ((X,), {"x": X}), ((), {"X": X}), ((), {"xx": X})):
        with pytest.raises(SpecError, match=r"must provide each of the inputs \['x'\]"):
            predictor(*args, **kwargs)


def test_over_a_flow(predictor: Predictor) -> None:
    out = predictor(X)
    flow = BatchData(DataFromArrays(X), 20, remainder=True)
    for batches in (
        flow,
        [{"x": X[:20], "y": 0}, {"x": X[20:]}],
        [(X[:9],), [X[9:]]],
        [X[:1], X[1:]],
    ):
        parts = list(predictor.over(batches))
        np.testing.assert_allclose(np.concatenate(parts), out, rtol=1e-6, atol=1e-6)
    with pytest.raises(SpecError, match=r"no component 'x'"):
        list(predictor.over([{"y": Y}]))


def test_checkpoints(run: Path, tmp_path: Path) -> None:
    best = Predictor(Model(), run, outputs="out", tag="best-score")
    assert best.step == 6
    by_path = run / "checkpoints" / "step-00000012"
    for checkpoint in (by_path, str(by_path), load_checkpoint(by_path)):
        predictor = Predictor(Model(), checkpoint, outputs="out")
        assert predictor.step == 12
        np.testing.assert_allclose(predictor(X), expected(by_path), rtol=1e-5, atol=1e-6)
    with pytest.raises(CheckpointError, match="contains no checkpoints"):
        Predictor(Model(), tmp_path, outputs="out")


def test_another_model(run: Path) -> None:
    def other(x: tf.Tensor, y: tf.Tensor) -> None:
        expose("out", FullyConnected("fc_0", FullyConnected("fc1", x, 1), 2))

    with pytest.raises(CheckpointMismatchError, match="belongs to another model") as caught:
        Predictor((SPECS, other), run, outputs="out")
    text = str(caught.value)
    assert "fc1/kernel: has float32 [4, 1], needs float32 [3, 1]" in text
    assert "fc_0/kernel float32 [1, 2]" in text


def test_a_part_of_the_model_is_enough(run: Path) -> None:
    def part(x: tf.Tensor, y: tf.Tensor) -> None:
        expose("hidden", FullyConnected("fc0", x, 4))

    assert Predictor((SPECS, part), run, outputs="hidden")(X).shape == (48, 4)


def test_wrong_names(run: Path) -> None:
    with pytest.raises(LayerError, match="no output 'outt'") as caught:
        Predictor(Model(), run, outputs=["outt"])
    assert "'out'" in str(caught.value)
    with pytest.raises(SpecError, match="also need the inputs") as caught_:
        Predictor(Model(), run, ["x"], ["cost"])
    assert "['y']" in str(caught_.value)
    with pytest.raises(SpecError, match="names of the model's inputs, got 'z'"):
        Predictor(Model(), run, ["z"], ["out"])
    for outputs in ([], ""):
        with pytest.raises(ConfigError, match="at least one output"):
            Predictor(Model(), run, outputs=outputs)
    with pytest.raises(ConfigError, match="batch_size must be at least 1 or None, got 0"):
        Predictor(Model(), run, outputs="out", batch_size=0)


def test_keras_layers_of_the_model_are_loaded(tmp_path: Path) -> None:
    class Parts(Model):
        def __init__(self) -> None:
            super().__init__()
            self.net = keras.Sequential([keras.layers.Dense(4), keras.layers.BatchNormalization()])

        def build_graph(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            return super().build_graph(x + self.net(x)[:, :3], y)

    trained = train(tmp_path, [ModelSaver()], model=Parts())
    weights = trained.get_weights()
    fresh = Parts()
    predictor = Predictor(fresh, tmp_path, outputs="out")
    np.testing.assert_array_equal(fresh.net.layers[0].kernel.numpy(), weights["net/dense/kernel"])
    assert predictor(X).shape == (48,)
