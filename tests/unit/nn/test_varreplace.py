"""Variables in other ways: remapped, frozen; what helpers of scopes and numbers give."""

from __future__ import annotations

import runpy
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from towerpack import ConfigError, LayerError
from towerpack.nn import (
    BatchNorm,
    FullyConnected,
    LinearWrap,
    auto_reuse_scope,
    cached_name_scope,
    freeze_variables,
    get_current_tower_context,
    print_stat,
    psnr,
    regularize_cost,
    remap_variables,
    reuse_scope,
    rms,
    under_name_scope,
    under_variable_scope,
)
from towerpack.training import StepSetup
from towers import MODES, fill, gradient, numbers, runner, tower_of, traced, variables

EXAMPLE = Path(__file__).parents[3] / "examples" / "dorefa_digits.py"
X = numbers(4, 6)
WRITTEN = {
    "by name": lambda x: FullyConnected("w", x, 6, use_bias=False),
    "Keras": lambda x: keras.layers.Dense(6, use_bias=False)(keras.layers.Dense(6)(x)),
    "in a chain": lambda x: LinearWrap(x).Dense(6, use_bias=False)(),
    "get_variable": lambda x: x @ tf.compat.v1.get_variable("w", [6, 6]),
    "Variable": lambda x: x * tf.Variable(tf.ones([6]), name="w"),
}


def compat(name: str, x: tf.Tensor) -> tf.Tensor:
    return x @ tf.compat.v1.get_variable(f"{name}/kernel", [6, 6])


outside = keras.Sequential([keras.layers.Dense(6, use_bias=False)])
outside.build((None, 6))
LAYERS: dict[str, Any] = {
    "named": lambda name, x: FullyConnected(name, x, 6, use_bias=False),
    "keras": lambda name, x: keras.layers.Dense(6, use_bias=False, name=name)(x),
    "outside": lambda name, x: outside(x),
    "compat": compat,
}


@tf.custom_gradient
def sign(x: tf.Tensor) -> Any:
    return tf.sign(x), lambda dy: dy


# ------------------------------------------------------------------ remap_variables


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", LAYERS)
def test_layers_compute_with_a_function_of_what_is_trained(kind: str, mode: str) -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        with remap_variables(lambda v: 1 / tf.zeros_like(v)), remap_variables(sign):
            return LAYERS[kind]("fc", x)

    tower = tower_of(build)
    (name,) = traced(tower)
    (kernel,) = fill(tower).values()
    assert isinstance(tower.store.named_variables()[name], tf.Variable)
    np.testing.assert_allclose(runner(tower, mode)(X)["y"], X @ np.sign(kernel), rtol=1e-5)
    (slope,) = gradient(tower, [name], X)
    np.testing.assert_allclose(slope, X.sum(0)[:, None].repeat(6, 1) / 24, rtol=1e-4, atol=1e-6)
    assert isinstance(outside.weights[0].value, tf.Variable)  # No scope is open here.


def test_exceptions_moving_averages_and_regularisation() -> None:
    nothing = keras.Variable(0.0, autocast=False)  # The function itself reads it as it is.
    fixed = keras.layers.Dense(6, trainable=False)
    inside: list[str] = []

    def build(x: tf.Tensor) -> tf.Tensor:
        with remap_variables(lambda v: v * nothing.value):
            y = BatchNorm("bn", x + fixed(x)) + 1
            inside[:] = get_current_tower_context().store.trainable()
            with remap_variables(lambda v: v):
                y = FullyConnected("fc", y, 6)
            return tf.cast(y, tf.float32) + regularize_cost("fc/kernel", rms)

    tower = tower_of(build, policy="mixed_bfloat16")
    assert {"bn/gamma", "fixed/kernel"} <= set(traced(tower))
    assert inside == ["nothing", "bn/gamma", "bn/beta"]
    kernel = tower.store.named_variables()["fc/kernel"].numpy()
    y = runner(tower, "graph", is_training=True)(X)["y"]
    term = np.sqrt(np.mean(kernel**2))
    np.testing.assert_allclose(y, (kernel.sum(0) + term)[None].repeat(4, 0), atol=0.05)
    assert variables(tower)["bn/moving_mean"].any()


def test_a_function_that_makes_another_shape_is_refused() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        with remap_variables(lambda v: v[:, :1]):
            return FullyConnected("fc", x, 6)

    with pytest.raises(LayerError, match=r"for 'fc/kernel:0', got float32 \(6, 1\)"):
        traced(tower_of(build))
    with (
        pytest.raises(LayerError, match="must be called inside a tower function"),
        remap_variables(sign),
    ):
        pass


def quantized(variable: tf.Variable) -> Any:
    return sign(variable) if variable.name.endswith("/W:0") else variable


@pytest.mark.parametrize("kind", [*LAYERS, "none"])
def test_a_function_that_changes_no_variable_is_reported_once(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        with remap_variables(quantized):
            return LAYERS.get(kind, lambda name, x: x)("fc", x)

    tower = tower_of(build)
    traced(tower)
    for name in traced(tower):
        assert f"changed none of {tower.store.named_variables()[name].name}." in caplog.text
    assert caplog.text.count("remap_variables: quantized") == 1
    assert ("was called for no variable" in caplog.text) == (kind == "none")


def test_a_function_that_changes_some_variables_and_exceptions_are_not_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        with remap_variables(lambda v: sign(v) if "kernel" in v.name else v):
            x = FullyConnected("fc0", x, 6)
            with remap_variables(lambda v: v):
                return FullyConnected("fc1", x, 6)

    traced(tower_of(build))
    assert "remap_variables" not in caplog.text


def test_the_name_of_an_operation_is_refused_with_the_name_to_use() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        with remap_variables(lambda v: v if v.op.name == "fc/W" else sign(v)):
            return FullyConnected("fc", x, 6)

    with pytest.raises(LayerError, match=r"variable\.name\.split"):
        traced(tower_of(build))


# ------------------------------------------------------------------ freeze_variables


@pytest.mark.parametrize("kind", LAYERS)
def test_no_gradient_reaches_frozen_variables(kind: str) -> None:
    def build(x: tf.Tensor, **how: bool) -> tf.Tensor:
        with freeze_variables(**how), remap_variables(sign):
            y = LAYERS[kind]("fc", x)
        return y + FullyConnected("free", x, 6, use_bias=False)

    for skip in (False, True):
        tower = tower_of(lambda x, skip=skip: build(x, skip_collection=skip))
        name = next(n for n in traced(tower) if n != "free/kernel")
        first, second = gradient(tower, [name, "free/kernel"], X)
        assert first is None and second is not None
        assert (name in tower.store.trainable()) is not skip
        tower.store.replace(lambda _, v: tf.Variable(v))  # As a distribution does.
        assert (name in tower.store.trainable()) is not skip


def test_other_uses_train_and_some_names_are_chosen() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        with freeze_variables("fc/k.*"):
            y = FullyConnected("fc", x, 6)
        with reuse_scope():
            return y + 2 * FullyConnected("fc", x, 6)

    tower = tower_of(build)
    traced(tower)
    kernel, bias = gradient(tower, ["fc/kernel", "fc/bias"], X)
    np.testing.assert_allclose(bias, np.full(6, 3 / 6), rtol=1e-5)
    np.testing.assert_allclose(kernel[:, 0], 2 * X.mean(0) / 6, rtol=1e-4, atol=1e-6)
    with pytest.raises(LayerError, match=r"'fd/\.\*' must match a trainable variable"):
        traced(tower_of(lambda x: freeze_variables("fd/.*").__call__(build)(x)))
    with pytest.raises(LayerError, match=r"used variables: fc/bias, fc/kernel") as caught:
        traced(tower_of(lambda x: freeze_variables("fc/W").__call__(build)(x)))
    assert "'fc/kernel'" in str(caught.value.fix)


def test_an_optimizer_may_not_hold_what_is_frozen() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        with freeze_variables(".*kernel", skip_collection=True):
            return FullyConnected("fc1", FullyConnected("fc0", x, 6), 6)

    tower = tower_of(build)
    trace = tower.trace(is_training=True)
    setup = StepSetup(tower, trace, keras.optimizers.SGD(), frozen=["fc0/.*"])
    assert list(setup.trainable) == ["fc1/bias"]
    with pytest.raises(ConfigError, match=r"'fc0/kernel' \[6, 6\], 'fc0/bias' \[6\], 'fc1/kernel'"):
        setup.optimizer("optimizer", tower.store.named_variables())


# ------------------------------------------------------------------ helpers of scopes, numbers


def test_helpers_of_scopes() -> None:
    @auto_reuse_scope
    def net(x: tf.Tensor) -> tf.Tensor:
        return FullyConnected("fc", x, 6)

    @under_variable_scope()
    def block(x: tf.Tensor) -> tf.Tensor:
        return net(net(x))

    @under_name_scope("named")
    def named(x: tf.Tensor) -> tf.Tensor:
        with cached_name_scope("cached"):
            first = tf.identity(x).name
        with cached_name_scope("cached"), cached_name_scope("inner", top_level=False):
            found.extend([first, tf.identity(x).name, tf.get_current_name_scope()])
        found.append(tf.identity(x).name)
        return block(net(x))

    found: list[str] = []
    names = traced(tower_of(named))
    assert names == ["fc/kernel", "fc/bias", "block/fc/kernel", "block/fc/bias"]
    ops = ["cached/Identity:0", "cached/inner/Identity:0", "cached/inner", "named/Identity:0"]
    assert found == ops


@pytest.mark.parametrize("mode", MODES[:2])
def test_numbers(mode: str, capfd: pytest.CaptureFixture[str]) -> None:
    run = (lambda f: f) if mode == "eager" else partial(tf.function, autograph=False)
    x, y = tf.constant([3.0, -4.0]), tf.constant([3.0, -3.0])
    assert run(print_stat)(x, "so:").numpy().tolist() == [3, -4]
    assert capfd.readouterr().err.strip() == "so: shape [2] mean -0.5 rms 3.53553391 [3 -4]"
    assert float(run(rms)(x)) == pytest.approx(np.sqrt(12.5))
    of_tensorflow = tf.image.psnr(x[None, :, None], y[None, :, None], 255)
    assert float(run(psnr)(x, y, 255.0)) == pytest.approx(float(of_tensorflow))
    with pytest.raises(ValueError, match="incompatible"):
        psnr(x, y[:1])


# ------------------------------------------------------------------ the example


def test_the_example_trains_with_weights_of_one_bit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main = runpy.run_path(str(EXAMPLE))["main"]
    main(["--epochs", "1", "--steps", "3", "--run-dir", str(tmp_path)])
    assert "computes with 2 different weights" in capsys.readouterr().out


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("kind", WRITTEN)
def test_calls_share_what_is_made_inside(kind: str, mode: str) -> None:
    net = auto_reuse_scope(WRITTEN[kind])

    def build(x: tf.Tensor) -> tf.Tensor:
        one = net(x)
        between = keras.layers.Dense(6, use_bias=False)(x)
        return tf.stack([one, net(x), keras.layers.Dense(6, use_bias=False)(between)])

    tower = tower_of(build)
    y = runner(tower, mode)(X)["y"].numpy()
    np.testing.assert_array_equal(y[0], y[1])
    assert len(variables(tower)) == len(traced(tower_of(net))) + 2


def test_a_later_call_that_makes_more_layers() -> None:
    @auto_reuse_scope
    def deep(x: tf.Tensor, number: int) -> tf.Tensor:
        for _ in range(number):
            x = keras.layers.Dense(6)(x)
        return x

    with pytest.raises(LayerError, match="than the first call: dense"):
        traced(tower_of(lambda x: deep(keras.layers.Dense(6)(deep(x, 1)), 2)))
