"""expose, summaries and regularization: what a tower gives besides its cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from towerpack import LayerError
from towerpack.nn import (
    FullyConnected,
    expose,
    find_tower_context,
    get_current_tower_context,
    l1_regularizer,
    l2_regularizer,
    regularize_cost,
    scope,
    summary,
)
from towers import fill, gradient, numbers, spec, tower_of, traced

# ------------------------------------------------------------------ expose


def test_expose_gives_the_tensor_back_under_its_scoped_name() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        with scope("head"):
            assert expose("twice", x * 2) is get_current_tower_context().outputs["head/twice"]
            expose("number", np.float32(3))
            expose("variable", tf.Variable(4.0))
        return x

    outputs = tower_of(build)(numbers(2, 6)).outputs
    assert [float(outputs[f"head/{n}"]) for n in ("number", "variable")] == [3, 4]


@pytest.mark.parametrize(
    "second", [lambda x: expose("a", x), lambda x: FullyConnected("fc", x, 6) and None]
)
def test_a_name_that_is_taken(second: Any) -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        expose("a", x)
        FullyConnected("fc", x, 6)
        second(x)
        return x

    with pytest.raises(LayerError, match=r"must be unique in the tower|is used twice"):
        traced(tower_of(build))


def test_the_cost_is_exposed_by_itself() -> None:
    from towerpack.tower import TowerFunction

    def same(x: tf.Tensor) -> tf.Tensor:
        return expose("cost", tf.reduce_mean(x))

    def other(x: tf.Tensor) -> tf.Tensor:
        expose("cost", x)
        return tf.reduce_mean(x)

    specs = [spec(None, 6)]
    assert list(TowerFunction(same, specs)(numbers(1, 6)).outputs) == ["cost"]
    with pytest.raises(LayerError, match="'cost' must denote the returned cost"):
        TowerFunction(other, specs)(numbers(1, 6))


# ------------------------------------------------------------------ branches and loops


def in_a_branch(func: Any) -> Any:
    def build(x: tf.Tensor) -> tf.Tensor:
        def branch() -> tf.Tensor:
            func(x)
            return x * 2.0

        return tf.cond(tf.reduce_sum(x) > 0, branch, lambda: x)

    return tower_of(build)


@pytest.mark.parametrize(
    "func",
    [
        lambda x: expose("inner", x * 1.0),
        lambda x: summary.scalar("inner", tf.reduce_sum(x)),
    ],
)
def test_what_is_inside_of_a_branch_cannot_be_asked_for(func: Any) -> None:
    with pytest.raises(LayerError, match="inner'\\) must not be in a branch"):
        in_a_branch(func).trace(is_training=True)


def test_layers_in_branches_and_loops_work_without_an_output() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        x = tf.cond(tf.reduce_sum(x) > 0, lambda: FullyConnected("yes", x, 6), lambda: x)
        _, x = tf.while_loop(
            lambda i, x: i < 3, lambda i, x: (i + 1, FullyConnected("loop", x, 6)), (0, x)
        )
        return FullyConnected("after", x, 2)

    tower = tower_of(build)
    trace = tower.trace(is_training=True)
    names = [f"{n}/{v}" for n in ("yes", "loop", "after") for v in ("kernel", "bias")]
    assert sorted(trace.used) == sorted(names)
    assert list(trace.result.outputs) == ["after/output", "y", "cost"]
    w, x = fill(tower), np.ones([2, 6], np.float32)
    wanted = x @ w["yes/kernel"] + w["yes/bias"]
    for _ in range(3):
        wanted = wanted @ w["loop/kernel"] + w["loop/bias"]
    wanted = wanted @ w["after/kernel"] + w["after/bias"]
    function, _ = tower.trace(is_training=False).function(["y"])
    np.testing.assert_allclose(function(tf.constant(x))[0], wanted, rtol=1e-3)
    gradients = tf.function(lambda x: gradient(tower, names[:2], x), autograph=False)
    assert all(g.numpy().any() for g in gradients(x))


# ------------------------------------------------------------------ summaries


def summaries(func: Any, **call: Any) -> list[tuple[str, str]]:
    def build(x: tf.Tensor) -> tf.Tensor:
        with scope("s"):
            func(x)
        return x

    found = tower_of(build, spec(None, 6))(numbers(2, 6), **call).summaries
    return [(s.kind, s.name) for s in found]


def every_kind(x: tf.Tensor) -> None:
    summary.scalar("a", tf.reduce_sum(x))
    summary.moving_average("b", 1.0)
    summary.histogram("c", x)
    summary.image("d", tf.reshape(x, [2, 2, 3, 1]), max_images=1)


def test_summaries_come_from_training_towers_and_pictures_from_the_first() -> None:
    assert summaries(every_kind) == [
        *(("scalar", "s/a"), ("moving_average", "s/b"), ("histogram", "s/c"), ("image", "s/d")),
    ]
    assert [k for k, _ in summaries(every_kind, index=1, total=2)] == ["scalar", "moving_average"]
    assert summaries(every_kind, is_training=False) == []


@pytest.mark.parametrize(
    ("func", "message"),
    [
        (lambda x: summary.scalar("a", x), r"summary.scalar\('s/a'\) needs a value of rank 0"),
        (lambda x: summary.moving_average("a", x), "of rank 0"),
        (lambda x: summary.image("a", x), "of rank 4"),
        (
            lambda x: summary.moving_average("a", 1.0, decay=1.0),
            r"decay must be in \[0, 1\), got 1.0",
        ),
        (lambda x: [summary.scalar("a", 1.0) for _ in "ab"], "'s/a' is used twice"),
    ],
)
def test_summaries_refuse(func: Any, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        summaries(func)


def test_a_summary_needs_a_tower() -> None:
    assert find_tower_context() is None
    with pytest.raises(LayerError, match="must be called inside a tower function"):
        summary.scalar("a", tf.constant(1.0))


# ------------------------------------------------------------------ regularization


def two_layers(x: tf.Tensor) -> tf.Tensor:
    with scope("net"):
        return FullyConnected("b", FullyConnected("a", x, 6), 6)


def test_regularizers_by_hand() -> None:
    w = numbers(3, 4)
    assert float(l2_regularizer(0.1)(w)) == pytest.approx(0.05 * (w**2).sum(), rel=1e-5)
    assert float(l1_regularizer(0.1)(w)) == pytest.approx(0.1 * np.abs(w).sum(), rel=1e-5)


def test_the_term_is_the_sum_over_what_matches() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        two_layers(x)
        expose("term", regularize_cost("a/kernel|b/bias", l2_regularizer(1.0)))
        return x

    tower = tower_of(build)
    traced(tower)
    w = fill(tower)
    wanted = 0.5 * ((w["net/a/kernel"] ** 2).sum() + (w["net/b/bias"] ** 2).sum())
    x = numbers(2, 6)
    assert float(tower(x).outputs["term"]) == pytest.approx(wanted, rel=1e-4)
    assert float(tower(x, is_training=False).outputs["term"]) == 0


def test_a_term_that_was_not_added_is_reported() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        y = two_layers(x)
        added = regularize_cost("net/a/kernel", l2_regularizer(1.0))
        regularize_cost("net/b/kernel", l2_regularizer(1.0), name="forgotten")
        return y + added

    unused = tower_of(build).trace(is_training=True).unused_regularizers()
    assert unused == ["forgotten('net/b/kernel')"]


def test_a_regex_that_matches_nothing() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        return two_layers(x) + regularize_cost("net/a/kernels", l2_regularizer(1.0))

    with pytest.raises(LayerError, match="no trainable variable matches") as caught:
        traced(tower_of(build))
    assert "Did you mean 'net/a/kernel'" in str(caught.value)


def test_float16_weights_are_summed_in_float32() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        w = tf.Variable(tf.fill([64], tf.constant(200, tf.float16)), name="w")
        expose("term", regularize_cost("w", l2_regularizer(1.0)))
        return x * tf.cast(w[:6], tf.float32)

    assert float(tower_of(build)(numbers(1, 6)).outputs["term"]) == 64 * 200**2 / 2
