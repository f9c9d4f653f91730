"""Names and defaults: scope, reuse_scope, argscope, register_layer, LinearWrap."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from towerpack import LayerError
from towerpack.nn import (
    BatchNorm,
    Conv2D,
    Conv2DTranspose,
    Deconv2D,
    Dropout,
    FullyConnected,
    LinearWrap,
    MaxPooling,
    ReLU,
    argscope,
    expose,
    find_tower_context,
    get_current_tower_context,
    register_layer,
    reuse_scope,
    scope,
)
from towerpack.tower import TowerFunction
from towers import gradient, numbers, spec, tower_of, traced, variables

IMAGE = spec(None, 8, 8, 3)


def output_names(tower: TowerFunction) -> list[str]:
    return list(tower.trace(is_training=True).result.outputs)


# ------------------------------------------------------------------ scope


def test_scopes_nest_and_name_layers_variables_and_outputs() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        with scope("group0/block1"), scope("left"):
            x = FullyConnected("fc", x, 6)
            x = x * tf.Variable(1.0, name="gain")
            expose("here", x)
        return FullyConnected("fc", x, 3)

    tower = tower_of(build)
    path = "group0/block1/left"
    assert traced(tower) == [
        f"{path}/fc/kernel",
        f"{path}/fc/bias",
        "fc/kernel",
        "fc/bias",
        f"{path}/gain",
    ]
    assert output_names(tower)[:2] == [f"{path}/fc/output", f"{path}/here"]


def test_variable_scopes_of_tensorflow_1_count_as_scopes() -> None:
    v1 = tf.compat.v1

    def build(x: tf.Tensor) -> tf.Tensor:
        with v1.variable_scope("outer") as kept, scope("left"), v1.variable_scope("inner"):
            x = FullyConnected("fc", x, 6)
            x = x * v1.get_variable("w", [6]) * tf.Variable(1.0, name="gain")
            expose("here", x)
        with v1.variable_scope("outer/left/inner", reuse=True):
            x = FullyConnected("fc", x, 6)
        with v1.variable_scope("other"), scope("elsewhere"), v1.variable_scope(kept):
            return FullyConnected("last", x, 3)

    tower = tower_of(build)
    path = "outer/left/inner"
    layers = [f"{path}/fc/kernel", f"{path}/fc/bias", "outer/last/kernel", "outer/last/bias"]
    assert traced(tower) == traced(tower) == [*layers, f"{path}/w", f"{path}/gain"]
    assert output_names(tower)[:2] == [f"{path}/fc/output", f"{path}/here"]


@pytest.mark.parametrize("name", ["", "a//b", "/a", "a/", 3, None])
def test_what_is_no_scope_name(name: Any) -> None:
    with pytest.raises(LayerError, match="needs a non-empty name"), scope(name):
        pass


def test_a_name_used_twice() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        with scope("block"):
            return FullyConnected("fc", FullyConnected("fc", x, 6), 6)

    with pytest.raises(LayerError, match="'block/fc' is used twice") as caught:
        tower_of(build).trace(is_training=True)
    assert "reuse_scope" in str(caught.value)


def test_a_name_used_twice_through_a_path() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        x = FullyConnected("a/b", x, 6)
        with scope("a"):
            return FullyConnected("b", x, 6)

    with pytest.raises(LayerError, match="'a/b' is used twice"):
        tower_of(build).trace(is_training=True)


# ------------------------------------------------------------------ reuse_scope


def test_reuse_shares_weights_and_gradients() -> None:
    def twice(x: tf.Tensor) -> tf.Tensor:
        y = FullyConnected("fc", x, 6, use_bias=False)
        with reuse_scope():
            return FullyConnected("fc", y, 6, use_bias=False)

    tower = tower_of(twice)
    assert traced(tower) == ["fc/kernel"]
    x, w = numbers(4, 6), variables(tower)["fc/kernel"]
    (found,) = gradient(tower, ["fc/kernel"], x)
    ones = np.ones([4, 6]) / 24
    np.testing.assert_allclose(found, (x @ w).T @ ones + x.T @ (ones @ w.T), rtol=1e-4)


def test_the_second_output_gets_a_number() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        FullyConnected("fc", x, 6)
        with reuse_scope():
            return FullyConnected("fc", x, 6)

    assert output_names(tower_of(build))[:2] == ["fc/output", "fc/output_1"]


def test_reuse_of_a_composite() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        y = Block("b", x, units=6)
        with reuse_scope():
            return Block("b", y, units=6)

    assert traced(tower_of(build)) == [
        f"b/{part}"
        for part in (
            *("fc/kernel", "fc/bias"),
            *("bn/gamma", "bn/beta", "bn/moving_mean", "bn/moving_variance"),
        )
    ]


def test_reuse_of_what_does_not_exist() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        x = FullyConnected("conv1", x, 6)
        with reuse_scope():
            return FullyConnected("conv2", x, 6)

    with pytest.raises(
        LayerError, match="no earlier layer of this tower has the name 'conv2'"
    ) as caught:
        tower_of(build).trace(is_training=True)
    assert "Did you mean 'conv1'?" in str(caught.value)


@pytest.mark.parametrize(
    "second",
    [
        lambda x: FullyConnected("a", x, 7),
        lambda x: FullyConnected("a", x[:, :3], 6),
        lambda x: FullyConnected("a", x, 6, use_bias=False),
        lambda x: BatchNorm("a", x),
    ],
)
def test_reuse_by_an_unequal_layer(second: Any) -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        FullyConnected("a", x, 6)
        with reuse_scope():
            return second(x)

    with pytest.raises(
        LayerError, match="'a' already exists with other arguments or another input"
    ):
        tower_of(build).trace(is_training=True)


def test_another_trace_with_other_arguments_is_refused() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        return FullyConnected("a", x, 6 if get_current_tower_context().is_training else 7)

    tower = tower_of(build)
    tower.trace(is_training=True)
    with pytest.raises(LayerError, match="already exists with other arguments"):
        tower.trace(is_training=False)


# ------------------------------------------------------------------ argscope


def channels(tower: TowerFunction) -> dict[str, int]:
    traced(tower)
    return {n: v.shape[-1] for n, v in variables(tower).items() if n.endswith("kernel")}


def test_argscopes_nest_and_the_call_wins() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        with argscope(Conv2D, kernel_shape=3, out_channel=4, use_bias=False):
            x = Conv2D("outer", x)
            with argscope([Conv2D, FullyConnected], out_channel=5, out_dim=6):
                x = Conv2D("inner", x)
                x = Conv2D("own", x, 7)
                x = Conv2D("own_named", x, filters=8)
            x = Conv2D("after", x)
        return FullyConnected("fc", x, 2, use_bias=False)

    assert channels(tower_of(build, IMAGE)) == {
        "outer/kernel": 4,
        "inner/kernel": 5,
        "own/kernel": 7,
        "own_named/kernel": 8,
        "after/kernel": 4,
        "fc/kernel": 2,
    }


def test_a_later_spelling_replaces_an_earlier_one() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        with argscope(FullyConnected, units=4), argscope(FullyConnected, out_dim=5):
            return FullyConnected("a", x)

    assert channels(tower_of(build)) == {"a/kernel": 5}


def test_deconv_is_conv_transpose_for_argscopes_too() -> None:
    assert Deconv2D is Conv2DTranspose

    def build(x: tf.Tensor) -> tf.Tensor:
        with argscope(Deconv2D, nl=tf.nn.relu, kernel_shape=2):
            return Conv2DTranspose("a", LinearWrap(x).Deconv2D("b", 3)(), 3)

    result = tower_of(build, IMAGE)(numbers(1, 8, 8, 3))
    assert result.outputs["y"].numpy().min() == 0


def test_argscope_reaches_composites_and_custom_layers() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        with argscope([Block, FullyConnected], units=6, use_bias=False):
            return Block("b", x)

    assert "b/fc/bias" not in traced(tower_of(build))


def test_argscope_of_an_argument_that_none_has() -> None:
    with pytest.raises(LayerError, match="none of") as caught, argscope([Conv2D], kernel_sise=3):
        pass
    assert "Did you mean 'kernel_size'" in str(caught.value)


def test_argscope_leaves_out_what_a_layer_lacks() -> None:
    with argscope([Conv2D, MaxPooling], padding="valid", nl=tf.nn.relu):
        names = traced(
            tower_of(lambda x: Conv2D("c", MaxPooling("p", x, 2), 3, 2), IMAGE),
        )
    assert names == ["c/kernel", "c/bias"]


@pytest.mark.parametrize("thing", [tf.nn.relu, "Conv2D", [Conv2D, 3]])
def test_argscope_of_what_is_no_layer(thing: Any) -> None:
    with (
        pytest.raises(LayerError, match="argscope needs registered layers"),
        argscope(thing, nl=None),
    ):
        pass


def test_two_layers_of_one_name_do_not_share_argscopes() -> None:
    def make() -> Any:
        def Twin(x: tf.Tensor, factor: float = 1.0) -> tf.Tensor:
            return x * factor

        return register_layer(Twin)

    one, two = make(), make()
    with argscope(one, factor=3.0):
        outputs = tower_of(lambda x: one("a", x) + two("b", x))(np.ones([1, 6], "f4")).outputs
    assert float(outputs["y"][0, 0]) == 4


# ------------------------------------------------------------------ exceptions and threads


@contextmanager
def everything() -> Iterator[None]:
    with ExitStack() as stack:
        for manager in (scope("s"), reuse_scope(), argscope(FullyConnected, units=5)):
            stack.enter_context(manager)
        yield


def test_exceptions_leave_no_scope_open() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        try:
            with everything():
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        with pytest.raises(LayerError, match="missing a required argument"):
            FullyConnected("fc", x)
        return FullyConnected("fc2", x, 3)

    assert traced(tower_of(build)) == ["fc2/kernel", "fc2/bias"]


def test_a_tower_that_fails_leaves_nothing_behind() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        stack = ExitStack()  # never closed: an exception unwinds a tower, not its author's care
        stack.enter_context(scope("open"))
        raise ZeroDivisionError

    for is_training in (True, False):
        with pytest.raises(ZeroDivisionError):
            tower_of(build).trace(is_training=is_training)
    assert find_tower_context() is None
    assert traced(tower_of(lambda x: FullyConnected("fc", x, 3)))[0] == "fc/kernel"


def test_a_layer_that_fails_leaves_its_scope() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        with pytest.raises(ZeroDivisionError):
            FullyConnected("bad", x, 3, nl=lambda x: 1 / 0)
        return FullyConnected("fc", x, 3)

    assert traced(tower_of(build))[2:] == ["fc/kernel", "fc/bias"]


def test_threads_do_not_see_each_others_scopes() -> None:
    inside, done = threading.Event(), threading.Event()
    found: list[Any] = []

    def other() -> None:
        inside.wait(20)
        found.append(find_tower_context())
        found.extend(traced(tower_of(lambda x: FullyConnected("fc", x, 3), seed=1)))
        done.set()

    def build(x: tf.Tensor) -> tf.Tensor:
        with everything():
            inside.set()
            assert done.wait(20)
        return FullyConnected("fc", x, 4)

    thread = threading.Thread(target=other)
    thread.start()
    assert traced(tower_of(build)) == ["fc/kernel", "fc/bias"]
    thread.join(20)
    assert found == [None, "fc/kernel", "fc/bias"]


def test_two_threads_trace_one_tower() -> None:
    ready = threading.Barrier(2, timeout=20)

    def build(x: tf.Tensor) -> tf.Tensor:
        ready.wait()
        h = x * tf.Variable(tf.ones([6]), name="w")
        ready.wait()
        return h * tf.Variable(tf.ones([6]), name="w")

    tower = tower_of(build)
    names: list[list[str]] = []
    threads = [threading.Thread(target=lambda: names.append(traced(tower))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert names == [["w", "w_1"], ["w", "w_1"]]


# ------------------------------------------------------------------ register_layer


@register_layer
def Block(x: tf.Tensor, units: int) -> tf.Tensor:
    """A composite."""
    return ReLU(BatchNorm("bn", FullyConnected("fc", x, units)))


@register_layer(use_scope=None)
def Scale(x: tf.Tensor, factor: float = 2.0) -> tf.Tensor:
    return x * factor


@register_layer(use_scope=False)
def Shift(x: tf.Tensor, by: float = 1.0) -> tf.Tensor:
    return x + by


def run(func: Any) -> float:
    return float(tower_of(func)(np.ones([1, 6], "f4")).outputs["y"][0, 0])


def test_a_registered_layer_keeps_name_and_docstring() -> None:
    assert Block.__name__ == "Block"
    assert Block.__doc__ == "A composite."
    assert repr(Block) == "<layer Block>"


def test_a_name_is_required_optional_or_refused() -> None:
    assert run(lambda x: Scale(x)) == 2
    assert run(lambda x: Scale("s", x, 3.0)) == 3
    assert run(lambda x: Scale(x, factor=4.0)) == 4
    assert run(lambda x: Shift(x, 2.0)) == 3
    assert run(lambda x: Scale(x=x)) == 2
    with pytest.raises(LayerError, match="Block needs a name as its first argument"):
        run(lambda x: Block(x, 3))
    with pytest.raises(LayerError, match="missing a required argument: 'x'"):
        run(lambda x: Block("b"))
    with pytest.raises(LayerError, match="has no argument 'unit'") as caught:
        run(lambda x: Block("b", x, unit=3))
    assert "Did you mean 'units'?" in str(caught.value)
    with pytest.raises(LayerError, match="missing a required argument: 'units'"):
        run(lambda x: Block("b", x))
    with pytest.raises(LayerError, match="too many positional"):
        run(lambda x: Block("b", x, 3, 4))
    with pytest.raises(LayerError, match="'units' in two spellings"):
        run(lambda x: FullyConnected("b", x, units=3, out_dim=3))


def test_a_layer_of_a_taken_name_is_refused() -> None:
    def Conv2D(x: tf.Tensor) -> tf.Tensor:
        return x

    with pytest.raises(LayerError, match="'Conv2D' is already registered in towerpack"):
        register_layer(Conv2D)


def test_a_layer_may_give_several_tensors() -> None:
    @register_layer
    def Halves(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return x[:, :3], x[:, 3:]

    tower = tower_of(lambda x: Halves("h", x)[1])
    assert output_names(tower) == ["h/output", "y", "cost"]


# ------------------------------------------------------------------ LinearWrap


def test_chains() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        return (
            LinearWrap(x)
            .Conv2D("conv", 4, 3)
            .tf.nn.relu()
            .MaxPooling("pool", 2)
            .Block("block", 5)
            .Scale(2.0)
            .Shift(1.0)
            .apply(tf.add, 1.0)
            .apply2(named, "name", factor=3.0)
            .tf.reshape([-1, 5])
            .tensor()
        )

    def named(name: str, x: tf.Tensor, factor: float) -> tf.Tensor:
        assert name == "name"
        return x * factor

    def plain(x: tf.Tensor) -> tf.Tensor:
        x = MaxPooling("pool", tf.nn.relu(Conv2D("conv", x, 4, 3)), 2)
        return tf.reshape((Block("block", x, 5) * 2 + 2) * 3, [-1, 5])

    x = numbers(2, 8, 8, 3)
    one, two = (tower_of(f, IMAGE)(x).outputs["y"] for f in (build, plain))
    np.testing.assert_array_equal(one, two)


def test_a_string_is_the_first_argument_of_a_keras_layer() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        return LinearWrap(x).RandomFlip("horizontal").Activation("relu", name="r")()

    x = np.zeros([64, 8, 8, 3], "f4")
    x[:, 0], x[:, 1] = 1, -1
    y = tower_of(build, IMAGE)(x, is_training=True).outputs["y"]
    np.testing.assert_array_equal(y, np.maximum(x, 0))


def test_print_tensor_prints_while_tracing_only(capfd: pytest.CaptureFixture[str]) -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        return LinearWrap(x).print_tensor().tf.nn.relu()()

    function, _ = tower_of(build).trace(is_training=False).function(["y"])
    printed = capfd.readouterr()
    assert "(None, 6)" in printed.out + printed.err
    function(tf.ones([2, 6]))
    assert capfd.readouterr().out == ""


def test_an_unknown_layer_in_a_chain() -> None:
    with pytest.raises(LayerError, match="No layer is named 'Conv2d'") as caught:
        _ = LinearWrap(tf.zeros([1])).Conv2d
    # Once towerpack.tf1.layers has been used there is a 'conv2d' too.
    assert "'Conv2D'" in str(caught.value)


def test_a_chain_answers_protocols_it_does_not_know() -> None:
    assert not hasattr(LinearWrap(tf.zeros([1])), "__array__")
    assert not hasattr(LinearWrap(tf.zeros([1])), "_private")
    assert not hasattr(LinearWrap(tf.zeros([1])), "autograph_info__")


def test_a_module_in_a_chain_is_no_function() -> None:
    with pytest.raises(TypeError, match="got the module"):
        LinearWrap(tf.zeros([1])).tf.nn()


def test_the_printed_lenet_runs_as_it_is_printed() -> None:
    def build(image: tf.Tensor) -> tf.Tensor:
        with argscope(Conv2D, kernel_shape=3, nl=tf.nn.relu, out_channel=32):
            logits = (LinearWrap(image)  # the starting brace is only for line-breaking
                      .Conv2D('conv0')
                      .MaxPooling('pool0', 2)
                      .Conv2D('conv1', padding='SAME')
                      .Conv2D('conv2')
                      .MaxPooling('pool1', 2)
                      .Conv2D('conv3')
                      .FullyConnected('fc0', 512, nl=tf.nn.relu)
                      .Dropout('dropout', 0.5)
                      .FullyConnected('fc1', out_dim=10, nl=tf.identity)())  # fmt: skip
        return logits

    tower = tower_of(build, spec(None, 28, 28, 1, name="image"))
    trace = tower.trace(is_training=True)
    assert trace.result.outputs["conv3/output"].shape.as_list() == [None, 7, 7, 32]
    assert trace.result.outputs["fc1/output"].shape.as_list() == [None, 10]
    assert tower.store.named_variables()["fc0/kernel"].shape == [7 * 7 * 32, 512]


def test_dropout_takes_part_in_argscopes() -> None:
    with argscope(Dropout, rate=0.0):
        assert run(lambda x: Dropout("d", x)) == 1


def test_a_function_inside_of_the_tower_is_refused() -> None:
    # It would keep what was traced first: dropout in evaluation.
    def net(x: tf.Tensor) -> tf.Tensor:
        return LinearWrap(x).FullyConnected("a", 4).Dropout("d", 0.5)()

    with pytest.raises(
        LayerError, match=r"FullyConnected\('a'\) must not be called in a tf.function"
    ):
        tower_of(tf.function(net, autograph=False)).trace(is_training=True)
