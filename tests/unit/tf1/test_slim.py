"""Networks of tf_slim, and functions in TensorFlow 1's style, in a tower."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from towerpack import LayerError, MissingExtraError
from towerpack.tf1 import regularize_cost_from_collection, slim_network
from towers import MODES, numbers, runner, spec, tower_of, traced, variables

slim = pytest.importorskip("tf_slim")
V1 = tf.compat.v1
X = numbers(8, 4, 4, 1)


def net(x: tf.Tensor) -> Any:
    """Scopes with names and without, batch norm, dropout, regularisation, end points."""
    ends, outer = {}, V1.get_variable_scope().name  # As slim's own networks name them.
    with slim.arg_scope([slim.conv2d], weights_regularizer=slim.l2_regularizer(1e-2)):
        x = slim.conv2d(x, 3, 3, normalizer_fn=slim.batch_norm, scope="c1")
        ends[f"{outer}/mixed".strip("/")] = x = slim.conv2d(x, 2, 3)
    x = slim.dropout(slim.flatten(x), 0.5)
    ends["logits"] = slim.fully_connected(slim.batch_norm(x), 3, activation_fn=None)
    return ends["logits"], ends


NAMES = [
    "c1/weights",
    "c1/BatchNorm/beta",
    "c1/BatchNorm/moving_mean",
    "c1/BatchNorm/moving_variance",
    "Conv/weights",
    "Conv/biases",
    "BatchNorm/beta",
    "BatchNorm/moving_mean",
    "BatchNorm/moving_variance",
    "fully_connected/weights",
    "fully_connected/biases",
]


def a_tower() -> Any:
    return tower_of(lambda x: slim_network(net)(x)[0], spec(None, 4, 4, 1))


@pytest.mark.parametrize("mode", MODES)
def test_variables_are_found_by_name_and_updates_run_in_training_alone(mode: str) -> None:
    tower = a_tower()
    assert traced(tower) == traced(tower) == NAMES
    assert [n for n in NAMES if "moving" not in n] == list(tower.store.trainable())
    before = variables(tower)
    first, second = (runner(tower, mode)(X)["y"] for _ in range(2))
    np.testing.assert_array_equal(first, second)  # Nothing is dropped.
    runner(tower, mode, is_training=True)(X)
    after = variables(tower)
    moved = [name for name in NAMES if not np.array_equal(before[name], after[name])]
    assert list(after) == NAMES and moved == [n for n in NAMES if "moving" in n]


def test_what_dropout_draws_is_a_function_of_replica_and_step() -> None:
    tower = tower_of(lambda x: slim_network(slim.dropout)(x))

    def draw(step: int, index: int = 0) -> np.ndarray:
        ones = np.ones([4, 6], np.float32)
        return tower(ones, step=tf.constant(step, tf.int64), index=index).outputs["y"].numpy()

    np.testing.assert_array_equal(draw(3), draw(3))
    for other in (draw(4), draw(3, 1)):
        assert set(np.unique(other)) == {0, 2} and not np.array_equal(other, draw(3))


def test_two_calls_in_one_graph_are_the_same_network() -> None:
    tower = a_tower()
    twice = lambda x: [tower(x, is_training=False).outputs["y"] for _ in range(2)]  # noqa: E731
    both = tf.function(twice, autograph=False)
    np.testing.assert_array_equal(*both(X))
    assert list(variables(tower)) == NAMES


def test_what_the_user_says_about_training_holds() -> None:
    def frozen(x: tf.Tensor) -> tf.Tensor:
        with slim.arg_scope([slim.batch_norm, slim.dropout], is_training=False):
            return slim_network(net)(x)[0]

    tower = tower_of(frozen, spec(None, 4, 4, 1))
    runs = [runner(tower, "graph", is_training=training)(X)["y"] for training in (True, False)]
    np.testing.assert_allclose(*runs, atol=1e-6)
    told = slim_network(lambda x, is_training: x * float(is_training), is_training=False)
    tower = tower_of(told, spec(None, 4, 4, 1))
    assert float(runner(tower, "graph", is_training=True)(X)["cost"]) == 0


def test_end_points_are_outputs() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        with V1.variable_scope("deep"):
            return slim_network(net)(x)[0]

    trace = tower_of(build, spec(None, 4, 4, 1)).trace(is_training=False)
    assert list(trace.result.outputs) == ["deep/mixed", "deep/logits", "y", "cost"]


def test_regularisation_of_this_tower_is_the_sum_over_its_weights() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        slim_network(net)(x)
        return regularize_cost_from_collection()

    tower = tower_of(build, spec(None, 4, 4, 1))
    calls = lambda x: [tower(x, is_training=t).cost for t in (True, True, False)]  # noqa: E731
    first, second, none = tf.function(calls, autograph=False)(X)
    weights = [v for name, v in variables(tower).items() if name.startswith(("c1/w", "Conv/w"))]
    expected = sum(0.5e-2 * (w**2).sum() for w in weights)
    assert float(first) == float(second) == pytest.approx(expected) and float(none) == 0
    assert not tower.trace(is_training=True).unused_regularizers()
    assert len(a_tower().trace(is_training=True).unused_regularizers()) == 2
    with pytest.raises(LayerError, match="graph mode, not eagerly"):
        tower(X)


def test_functions_of_tensorflow_1_find_their_variables_in_each_call() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        with V1.variable_scope(None, "fc"):
            w = V1.get_variable("w", [6, 2], initializer=V1.ones_initializer())
            V1.get_variable("step", [], trainable=False)
        return x @ w + tf.add_n([tf.nn.l2_loss(v) for v in V1.trainable_variables()])

    tower = tower_of(build)
    first, second = (runner(tower, "graph")(numbers(2, 6))["y"] for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert list(variables(tower)) == ["fc/w", "fc/step"]


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tf_slim", None)
    with pytest.raises(MissingExtraError, match="tf_slim") as caught:
        slim_network(net)
    assert "towerpack[slim]" in str(caught.value)
