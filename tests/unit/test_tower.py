"""Tower functions and their traces: calls, what a prediction needs, mistakes."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from towerpack import LayerError, SpecError
from towerpack.nn import (
    BatchNorm,
    Dropout,
    FullyConnected,
    expose,
    find_tower_context,
    get_current_tower_context,
)
from towerpack.tower import TowerFunction
from towers import MODES, numbers, runner, spec, tower_of

SPECS = [spec(None, 6, name="image"), spec(None, name="label", dtype=tf.int64)]


def classify(image: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
    hidden = BatchNorm("bn", FullyConnected("fc0", image, 8, nl=tf.nn.relu))
    logits = FullyConnected("fc1", Dropout("drop", hidden), 3)
    expose("prob", tf.nn.softmax(logits))
    # Would fail for labels that are not there.
    with tf.control_dependencies([tf.debugging.assert_less(label, tf.constant(3, tf.int64))]):
        wrong = tf.cast(tf.argmax(logits, 1) != label, tf.float32)
    expose("wrong", wrong)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(label, logits)
    return tf.reduce_mean(losses, name="loss")


@pytest.fixture(scope="module")
def tower() -> TowerFunction:
    tower = TowerFunction(classify, SPECS)
    tower.trace(is_training=True)
    return tower


def data() -> tuple[np.ndarray, np.ndarray]:
    return numbers(4, 6), np.array([0, 1, 2, 0])


# ------------------------------------------------------------------ calls


@pytest.mark.parametrize("mode", MODES)
def test_a_call_gives_cost_and_outputs(mode: str, tower: TowerFunction) -> None:
    image, label = data()
    outputs = runner(tower, mode)(tf.constant(image), tf.constant(label))
    prob = outputs["prob"].numpy()
    np.testing.assert_allclose(prob.sum(1), 1, rtol=1e-5)
    cost = -np.log(prob[range(4), label]).mean()
    assert float(outputs["cost"]) == pytest.approx(cost, rel=1e-4)
    np.testing.assert_array_equal(outputs["wrong"], prob.argmax(1) != label)


def test_a_call_with_autograph() -> None:
    tower = TowerFunction(classify, SPECS)
    function = tf.function(lambda x, y: tower(x, y, is_training=False).cost)
    image, label = map(tf.constant, data())
    wanted = float(tower(image, label, is_training=False).cost)
    assert float(function(image, label)) == pytest.approx(wanted, rel=1e-5)


def test_numpy_arrays_are_welcome(tower: TowerFunction) -> None:
    assert float(tower(*data(), is_training=False).cost) > 0


def test_the_context_says_which_tower_it_is() -> None:
    seen: list[Any] = []

    def build(x: tf.Tensor) -> tf.Tensor:
        context = get_current_tower_context()
        main = context.is_main_training_tower
        seen.append((context.is_training, context.index, context.total, main))
        return tf.reduce_mean(x)

    tower = TowerFunction(build, [spec(None)])
    x = numbers(2)
    tower(x)
    tower(x, index=1, total=2)
    tower(x, is_training=False)
    assert seen == [(True, 0, 1, True), (True, 1, 2, False), (False, 0, 1, False)]
    assert find_tower_context() is None


def test_towers_nest() -> None:
    inner = TowerFunction(lambda x: tf.reduce_mean(FullyConnected("inner", x, 6)), [spec(None, 6)])

    def build(x: tf.Tensor) -> tf.Tensor:
        before = get_current_tower_context()
        cost = inner(FullyConnected("fc", x, 6), is_training=False).cost
        assert get_current_tower_context() is before
        return cost + tf.reduce_mean(FullyConnected("after", x, 2))

    outer = TowerFunction(build, [spec(None, 6)])
    outer.trace(is_training=True)
    assert list(inner.store.layers()) == ["inner"]
    assert list(outer.store.layers()) == ["fc", "after"]
    assert [v.name for v in outer.store.layers()["fc"].weights] == ["kernel", "bias"]


# ------------------------------------------------------------------ traces


def test_a_prediction_needs_no_labels(tower: TowerFunction) -> None:
    trace = tower.trace(is_training=False)
    function, names = trace.function(["prob", "fc0/output"])
    assert names == ["image"]
    image, label = data()
    prob, hidden = function(tf.constant(image))
    wanted = tower(image, label, is_training=False).outputs
    np.testing.assert_allclose(prob, wanted["prob"], rtol=1e-4)
    np.testing.assert_allclose(hidden, wanted["fc0/output"], rtol=1e-4)
    _, names = trace.function(["wrong"])
    assert names == ["image", "label"]


def test_a_prediction_changes_nothing(tower: TowerFunction) -> None:
    function, _ = tower.trace(is_training=True).function(["prob"])
    before = tower.store.named_variables()["bn/moving_mean"].numpy()
    function(tf.constant(data()[0]))
    np.testing.assert_array_equal(tower.store.named_variables()["bn/moving_mean"], before)


def test_a_prediction_does_not_write_its_inputs_out_as_text(
    tower: TowerFunction, monkeypatch: pytest.MonkeyPatch
) -> None:
    # TensorFlow does, for an error that it then drops, where the arguments fit no signature.
    function, _ = tower.trace(is_training=False).function(["prob", "wrong"])
    for text in ("__repr__", "__str__"):
        monkeypatch.setattr(type(tf.constant(0)), text, lambda _: pytest.fail("written out"))
    image, label = data()
    for x in (image, tf.constant(image)):
        assert function(x, label)[0].shape == (4, 3)


def test_given_inputs_keep_their_order_even_if_not_needed(tower: TowerFunction) -> None:
    function, names = tower.trace(is_training=False).function(["prob"], ["label", "image"])
    assert names == ["label", "image"]
    image, label = data()
    assert function(tf.constant(label), tf.constant(image))[0].shape == [4, 3]


def test_inputs_and_constants_as_outputs() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        expose("x", x)
        expose("constant", 3.0)
        return tf.reduce_mean(x)

    trace = TowerFunction(build, [spec(None)]).trace(is_training=False)
    function, names = trace.function(["constant"])
    assert names == []
    assert float(function()[0]) == 3
    function, names = trace.function(["x", "constant", "x"])
    assert [t.numpy().tolist() for t in function(tf.constant([1.0]))] == [[1], 3, [1]]


def test_an_output_or_input_that_does_not_exist(tower: TowerFunction) -> None:
    trace = tower.trace(is_training=False)
    with pytest.raises(LayerError, match="no output 'prop'") as caught:
        trace.function(["prop"])
    assert "Did you mean 'prob'?" in str(caught.value)
    with pytest.raises(SpecError, match="names of the model's inputs, got 'imag'"):
        trace.function(["prob"], ["imag"])
    with pytest.raises(SpecError, match=r"also need the inputs \['image'\]"):
        trace.function(["prob"], ["label"])


def test_used_names_leave_out_what_a_trace_does_not_read() -> None:
    net, unused = keras.layers.Dense(3), keras.layers.Dense(3)
    unused.build((None, 6))

    def build(x: tf.Tensor) -> tf.Tensor:
        if get_current_tower_context().is_training:
            x = FullyConnected("train_only", x, 6)
        return tf.reduce_mean(net(x)) if x is not None else unused(x)

    tower = TowerFunction(build, [spec(None, 6)])
    training, inference = (tower.trace(is_training=t) for t in (True, False))
    assert sorted(training.used) == [
        *("net/bias", "net/kernel", "train_only/bias", "train_only/kernel"),
    ]
    assert sorted(inference.used) == ["net/bias", "net/kernel"]
    assert {"unused/kernel", "unused/bias"} < set(tower.store.named_variables())


def test_a_trace_before_any_data_makes_all_variables() -> None:
    tower = TowerFunction(classify, SPECS)
    assert list(tower.store.named_variables()) == []
    tower.trace(is_training=False)
    assert len(tower.store.named_variables()) == 8


def test_replicas_in_one_graph_share_their_variables() -> None:
    tower = TowerFunction(classify, SPECS)

    @tf.function(autograph=False)
    def both(image: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
        return tf.stack([tower(image, label, index=i, total=2).cost for i in range(2)])

    both(*map(tf.constant, data()))
    assert len(tower.store.named_variables()) == 8


# ------------------------------------------------------------------ mistakes


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "must return a scalar cost in training"),
        (tf.ones([2]), "must return a floating-point scalar"),
        (tf.constant(1), "int32"),
        ("no", "string"),
    ],
)
def test_what_is_no_cost(result: Any, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        TowerFunction(lambda x: result, [spec(None)]).trace(is_training=True)


def test_no_cost_is_fine_in_inference() -> None:
    result = TowerFunction(lambda x: None, [spec(None)])(numbers(2), is_training=False)
    assert result.cost is None
    assert TowerFunction(lambda x: 2.0, [spec(None)])(numbers(2)).cost.numpy() == 2


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ((numbers(2, 6),), "needs 2 tensors .*, got 1"),
        ((numbers(2, 5), np.zeros(2, "i8")), "input 'image' of the tower must be"),
        ((numbers(2, 6), np.zeros(2, "i4")), "input 'label' of the tower must be"),
    ],
)
def test_a_call_with_wrong_tensors(tower: TowerFunction, tensors: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        tower(*tensors)


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ([tf.TensorSpec([None])], "Input 0 of the model must have a unique name"),
        ([spec(None), spec(None)], "Input 1 of the model must have a unique name"),
        ([(None, 3)], "must be a named tf.TensorSpec"),
    ],
)
def test_wrong_specs(specs: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        TowerFunction(classify, specs)


def test_the_example_of_ones_own_loop_learns(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parents[2] / "examples" / "own_loop.py"
    runpy.run_path(str(path), run_name="__main__")
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert float(last.rpartition(" ")[2].rstrip("%")) > 90


# ------------------------------------------------------------------ graphs of TensorFlow 1


def test_a_tower_in_a_graph_of_tensorflow_1_is_refused() -> None:
    with tf.Graph().as_default():
        layer = keras.layers.Dense(3)
        layer.build((None, 6))
        with pytest.raises(LayerError, match="need TensorFlow's eager mode"):
            TowerFunction(classify, SPECS)
    tower = TowerFunction(lambda x: tf.reduce_mean(layer(x)), [spec(None, 6)])
    message = r"'layer/kernel' of the model must not be created in a tf\.Graph"
    with pytest.raises(LayerError, match=message):
        tower.trace(is_training=True)


def test_replicas_draw_differently_by_plain_tensorflow() -> None:
    """Each in a graph of its own, as compiled replicas and those of other machines are."""

    def draw(x: tf.Tensor) -> tf.Tensor:
        dropped = tf.nn.dropout(tf.ones([20]), 0.5)
        return tf.concat([tf.random.uniform([20]), tf.random.normal([20]), dropped], 0)

    def drawn(index: int, seed: int = 0) -> np.ndarray:
        tower = tower_of(draw, seed=seed)
        call = tf.function(lambda x: tower(x, index=index, total=3).outputs["y"], autograph=False)
        return call(tf.zeros([1, 6])).numpy().reshape(3, 20)

    replicas = [drawn(index) for index in range(3)]
    for kind in range(3):
        assert len({replica[kind].tobytes() for replica in replicas}) == 3
    np.testing.assert_array_equal(drawn(1), replicas[1])
    assert not np.array_equal(drawn(1, seed=1), replicas[1])
