"""Gradient processors, optimizers around optimizers, frozen variables."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from embeddings import embedding_steps, gathered, one_hot
from scaling import sample, scaled
from small_training import LINE, SPECS, Do, Model, X, Y, assert_same, flow, train
from towerpack import ConfigError, LayerError, NumericsError, gradproc, load_checkpoint, optimizer
from towerpack.callbacks import InferenceRunner, ModelSaver, PeriodicTrigger, ScalarStats
from towerpack.callbacks.monitors import Monitor
from towerpack.dataflow import BatchData, DataFromArrays
from towerpack.inference import Predictor
from towerpack.nn import FullyConnected
from towerpack.training import StopTraining
from towerpack.training.optim.optimizer import AccumulateGradients, WeightEMA
from towerpack.training.optim.proxy_and_loss_scale import adapt
from warm_python import warm_python

PROGRAM = Path(__file__).with_name("optim_program.py")


def sgd(rate: float = 1.0) -> Any:
    return keras.optimizers.SGD(rate)


def plain(make: Callable[[], Any], **kwargs: Any) -> dict[str, Any]:
    """Without dropout, which would see another batch."""
    return {"model": Model(make, rate=0.0), **kwargs}


def moved(made: Any, *gradients: Any) -> list[list[float]]:
    """Where two variables of zeros get to by some gradients each, in one step."""
    variables = {"a/kernel": tf.Variable(tf.zeros([2])), "b/bias": tf.Variable(tf.zeros([2]))}
    adapter = adapt(made)
    adapter.build(variables)
    tf.function(lambda: adapter.apply([*gradients]), autograph=False)()
    return [v.numpy().tolist() for v in variables.values()]


def weighted(gradient: tf.Tensor, variable: tf.Variable) -> tf.Tensor:
    return gradient * 2.0 + variable


SPARSE = tf.IndexedSlices(tf.constant([1.0, 2.0]), tf.constant([1, 1]), tf.constant([2]))


@pytest.mark.parametrize(
    ("processor", "expected"),
    [
        (gradproc.FilterNoneGrad(), [[-3, 0], [-4, 0]]),
        (gradproc.GlobalNormClip(2.5), [[-1.5, 0], [-2, 0]]),
        (gradproc.GlobalNormClip(10), [[-3, 0], [-4, 0]]),
        (gradproc.ValueClip(3.5), [[-3, 0], [-3.5, 0]]),
        (gradproc.ValueClip(1, "b/.*"), [[-3, 0], [-1, 0]]),
        (gradproc.MapGradient(lambda g: g + 1.0, "a/kernel"), [[-4, -1], [-4, 0]]),
        (gradproc.MapGradient(weighted), [[-6, 0], [-8, 0]]),
        (gradproc.MapGradient(lambda g: None, ".*bias"), [[-3, 0], [0, 0]]),
        (gradproc.ScaleGradient((".*/bias", 2.0)), [[-3, 0], [-8, 0]]),
        (gradproc.ScaleGradient([("a.*", 0), (".*", 0.5)]), [[0, 0], [-2, 0]]),
    ],
    ids=repr,
)  # fmt: skip
def test_processors_by_hand(processor: Any, expected: list[list[float]]) -> None:
    made = optimizer.apply_grad_processors(sgd(), [processor])
    assert moved(made, tf.constant([3.0, 0.0]), tf.constant([4.0, 0.0])) == expected


def test_sparse_gradients_and_missing_ones() -> None:
    for processor in (gradproc.ScaleGradient((".*", 2.0)), gradproc.MapGradient(lambda g: 2 * g)):
        made = optimizer.ProcessGradients(AccumulateGradients(sgd(), 1), processor)
        assert moved(made, None, SPARSE) == [[0, 0], [0, -6]]


def test_what_matches_nothing_or_makes_no_sense() -> None:
    with pytest.raises(LayerError, match=r"MapGradient: no .* 'a/krenel'.*\n.*'a/kernel'"):
        moved(optimizer.ProcessGradients(sgd(), gradproc.MapGradient(tf.abs, "a/krenel")))
    with pytest.raises(LayerError, match="'a/kernel'"):  # The predecessor's W
        moved(optimizer.ProcessGradients(sgd(), gradproc.ScaleGradient(("a/W", 2.0))))
    for mistake, words in (
        (
            lambda: optimizer.ProcessGradients(sgd(), [tf.abs]),
            "must be a GradientProcessor",
        ),
        (lambda: gradproc.MapGradient(lambda: None), "of 0 arguments"),
        (lambda: AccumulateGradients(sgd(), 0), "at least 1"),
        (lambda: WeightEMA(sgd(), 1.0), "less than 1"),
        (lambda: WeightEMA(keras.optimizers.LossScaleOptimizer(sgd())), "must not scale the loss"),
    ):
        with pytest.raises(ConfigError, match=words):
            mistake()


@pytest.mark.parametrize(
    "make",
    [
        lambda regex: gradproc.MapGradient(lambda g: 2.0 * g, regex),
        lambda regex: gradproc.ValueClip(1.0, regex),
        lambda regex: gradproc.ScaleGradient((regex, 2.0)),
    ],
    ids=["MapGradient", "ValueClip", "ScaleGradient"],
)
@pytest.mark.parametrize("part", ["kernel", "a/", "a/k", "/", "A/KERNEL"])
def test_expressions_are_for_whole_names(make: Callable[[str], Any], part: str) -> None:
    with pytest.raises(LayerError, match="a/kernel"):
        moved(optimizer.ProcessGradients(sgd(), make(part)))
    three = [tf.constant([3.0, 3.0]), tf.constant([3.0, 3.0])]
    a, b = moved(optimizer.ProcessGradients(sgd(), make("a/kernel|b")), *three)
    assert a != b == [-3.0, -3.0]


def test_float16_clips_what_the_loss_would_give_unscaled_and_leaves_overflows_out() -> None:
    adapter = adapt(
        optimizer.ProcessGradients(sgd(), gradproc.GlobalNormClip(2.0)), scale_loss=True
    )
    weights = tf.Variable([0.0])
    adapter.build({"w": weights})
    for gradient, expected in ((1.0, -1.0), (4.0, -3.0), (np.inf, -3.0), (1.0, -4.0)):
        adapter.apply([adapter.scale_loss(tf.constant([gradient]))])
        assert weights.numpy() == [expected]
    assert float(adapter.variables()["dynamic_scale"].numpy()) == 2.0**14


# ------------------------------------------------------------------ accumulating


def decayed() -> Any:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    return keras.optimizers.AdamW(schedule, weight_decay=0.1)


@pytest.mark.parametrize(
    "make", [decayed, lambda: tf.compat.v1.train.MomentumOptimizer(0.05, 0.9)], ids=["keras", "v1"]
)
def test_accumulated_gradients_do_what_a_larger_batch_does(
    tmp_path: Path, make: Callable[[], Any]
) -> None:
    once = train(tmp_path / "once", **plain(make, dataflow=flow(12)))
    thrice = train(
        tmp_path / "thrice", **plain(lambda: AccumulateGradients(make(), 3), dataflow=flow(4))
    )
    assert (once.global_step, thrice.global_step) == (8, 24)
    slots = [t._run.assembled.setup.optimizers["optimizer"].variables() for t in (once, thrice)]
    for name, variable in slots[0].items():
        np.testing.assert_allclose(slots[1][name].numpy(), variable.numpy(), rtol=1e-4, atol=1e-6)
    for name, value in once.get_weights().items():
        np.testing.assert_allclose(thrice.get_weights()[name], value, rtol=1e-4, atol=1e-5)


def everything() -> Any:
    inner = optimizer.ProcessGradients(
        keras.optimizers.SGD(0.05, momentum=0.9), gradproc.SummaryGradient()
    )
    return WeightEMA(AccumulateGradients(inner, 3), 0.9)


def stop(_: Any) -> None:
    raise StopTraining


def test_a_run_that_ends_among_accumulated_steps_goes_on_bit_for_bit(tmp_path: Path) -> None:
    def run(name: str, *callbacks: Any) -> Any:
        saver = PeriodicTrigger(ModelSaver(), every_k_steps=4)
        return train(tmp_path / name, [saver, *callbacks], model=Model(everything), max_epoch=2)

    run("whole")
    run("parts", Do("trigger_step", stop, 8))
    counted = load_checkpoint(tmp_path / "parts").optimizer["accumulated_steps"]
    assert int(counted) == 8 % 3
    run("parts")
    saved = [load_checkpoint(tmp_path / name) for name in ("whole", "parts")]
    for group in ("model", "optimizer"):
        assert_same(*({n: np.asarray(a) for n, a in c.group(group).items()} for c in saved))


def test_a_changed_number_of_steps_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for steps in (2, 3):
        made = AccumulateGradients(sgd(0.01), steps)
        model = (*LINE[:2], lambda made=made: made)
        train(tmp_path, [ModelSaver()], model=model, max_epoch=steps)
    assert "optimizer.steps" in caplog.text


# ------------------------------------------------------------------ sparse gradients

adam = keras.optimizers.Adam
SPARSE_CASES: dict[str, Callable[[], Any]] = {
    "clipnorm": lambda: keras.optimizers.SGD(1.0, clipnorm=0.5),
    "GlobalNormClip": lambda: optimizer.ProcessGradients(sgd(), gradproc.GlobalNormClip(0.5)),
    "accumulated": lambda: AccumulateGradients(adam(0.1, clipvalue=0.1), 2),
    "loss scale": lambda: adam(0.1, global_clipnorm=0.5, loss_scale_factor=4.0),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adamax": lambda: keras.optimizers.Adamax(0.1),
    "lion": lambda: keras.optimizers.Lion(0.1),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.1, momentum=0.5, centered=True),
    "ValueClip": lambda: optimizer.ProcessGradients(adam(0.1), gradproc.ValueClip(0.5)),
}


@pytest.mark.parametrize("name", sample(list(SPARSE_CASES), at_least=5))
def test_repeated_rows_move_an_embedding_as_its_dense_twin(name: str) -> None:
    sparse, dense = (embedding_steps(lookup, SPARSE_CASES[name]) for lookup in (gathered, one_hot))
    for key, value in dense.items():
        np.testing.assert_allclose(sparse[key], value, rtol=1e-4, atol=1e-6, err_msg=key)


def test_accumulating_repeated_rows_is_as_a_larger_batch() -> None:
    twice = embedding_steps(gathered, lambda: AccumulateGradients(adam(0.1), 2), batch=4)
    once = embedding_steps(gathered, lambda: adam(0.1), batch=8)
    np.testing.assert_allclose(twice["table"], once["table"], rtol=1e-4, atol=1e-6)


def test_rows_whose_sum_is_infinite_are_noticed(tmp_path: Path) -> None:
    def build(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        table = tf.compat.v1.get_variable("table", [2], initializer=tf.zeros_initializer())
        return tf.reduce_sum(tf.gather(table, [1, 1])) * 3e38 + 0.0 * tf.reduce_sum(x) * y[0]

    made = optimizer.ProcessGradients(sgd(0.1), gradproc.CheckGradient())
    with pytest.raises(NumericsError, match="gradient of table"):
        train(tmp_path, model=(SPECS, build, lambda: made))


def test_processors_of_some_variables_leave_the_others_in_the_graph_outside(tmp_path: Path) -> None:
    def scaled_by(rate: float, *regex: str) -> dict[str, np.ndarray]:
        processors = [gradproc.MapGradient(lambda g: 2.0 * g, r) for r in regex]
        made = optimizer.ProcessGradients(keras.optimizers.SGD(rate), processors)
        run_dir = tmp_path / f"{rate}-{len(regex)}"
        return dict(train(run_dir, **plain(lambda: made), max_epoch=1).get_weights())

    half, whole = scaled_by(0.01, "fc0/.*", "fc1/kernel"), scaled_by(0.02)
    np.testing.assert_allclose(half["fc0/kernel"], whole["fc0/kernel"], rtol=0.05)
    assert not np.allclose(half["fc1/bias"], whole["fc1/bias"], rtol=0.05)


# ------------------------------------------------------------------ after the update


def test_variables_are_assigned_after_the_update() -> None:
    clipped = optimizer.VariableAssignmentOptimizer(
        sgd(), lambda v: tf.clip_by_value(v, -2.0, 2.0), "a.*"
    )
    doubled = optimizer.PostProcessOptimizer(clipped, lambda v: v.assign(2.0 * v))
    assert moved(doubled, tf.constant([3.0, 1.0]), tf.constant([3.0, 1.0])) == [
        [-4, -2],
        [-6, -2],
    ]


def test_averages_of_weights_are_evaluated_and_saved_beside_them(tmp_path: Path) -> None:
    weights: list[dict[str, np.ndarray]] = []

    def note(callback: Any) -> None:
        weights.append(dict(callback.trainer.get_weights()))

    data, inferencer = flow(48), ScalarStats("cost")
    trainer = train(
        tmp_path,
        [
            Do("before_train", note),
            PeriodicTrigger(Do("trigger", note), every_k_steps=1),
            InferenceRunner(data, inferencer, "val"),
            InferenceRunner(data, inferencer, "ema", ema=True),
            ModelSaver(),
        ],
        model=Model(lambda: WeightEMA(sgd(0.1), 0.8)),
    )
    expected = weights[0]
    for now in weights[1:]:
        expected = {n: 0.8 * old + 0.2 * now[n] for n, old in expected.items()}
    averages = trainer.get_weights(ema=True)
    for name, value in expected.items():
        np.testing.assert_allclose(averages[name], value, rtol=1e-4, atol=1e-6)
    checkpoint = load_checkpoint(tmp_path)
    assert_same({n: np.asarray(a) for n, a in checkpoint.model.items()}, trainer.get_weights())
    assert_same({n: np.asarray(a) for n, a in checkpoint.averaged.items()}, averages)
    for ema, prefix in ((False, "val"), (True, "ema")):
        cost = Predictor(Model(), tmp_path, outputs="cost", ema=ema)(X, Y)
        assert trainer.monitors.latest(f"{prefix}/cost") == pytest.approx(float(cost), rel=1e-5)
    assert trainer.monitors.latest("val/cost") != trainer.monitors.latest("ema/cost")


def test_where_there_are_no_averages(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a run that averages"):
        train(tmp_path, [InferenceRunner(flow(), ScalarStats("cost"), ema=True)], model=LINE)
    train(tmp_path, [ModelSaver()], model=LINE, max_epoch=1)
    with pytest.raises(RuntimeError, match="averages of weights"):
        Predictor(LINE, tmp_path, outputs="cost", ema=True)


# ------------------------------------------------------------------ looking at gradients


def root(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Zeros for inputs make it 0, and its gradient infinity times 0."""
    bias = tf.compat.v1.get_variable("shift", [], initializer=tf.zeros_initializer())
    out = FullyConnected("fc", x, 1, use_bias=False)
    return tf.reduce_mean(tf.sqrt(tf.abs(out))) + tf.square(bias - tf.reduce_mean(y))


def checked(run_dir: Path, **kwargs: Any) -> Any:
    x = X.copy()
    x[16:24] = 0.0  # The third batch
    made = AccumulateGradients(optimizer.ProcessGradients(sgd(0.1), gradproc.CheckGradient()), 1)
    data = BatchData(DataFromArrays(x, Y), 8)
    model = (SPECS, root, lambda: made)
    return train(run_dir, [ModelSaver()], model=model, dataflow=data, **kwargs)


def test_a_gradient_that_is_not_finite_ends_training_with_the_names_of_its_variables(
    tmp_path: Path,
) -> None:
    with pytest.raises(NumericsError, match=r"gradient of fc/kernel is .* at step 3"):
        checked(tmp_path)
    assert (tmp_path / "nonfinite-step-00000003.npz").exists()
    assert load_checkpoint(tmp_path).step == 2
    with pytest.raises(ConfigError, match="CheckNumerics"):
        checked(tmp_path / "b", extra_callbacks=[])


class Histograms(Monitor):
    def __init__(self) -> None:
        self.seen: dict[tuple[str, int], np.ndarray] = {}

    def put_histogram(self, name: str, value: np.ndarray, step: int) -> None:
        self.seen[name, step] = value


def test_gradients_are_reported_and_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    seen: list[np.ndarray] = []

    class Keeps(gradproc.GradientProcessor):
        def observe(self, gradients: Mapping[str, tf.Tensor]) -> None:
            tf.py_function(lambda g: seen.append(g.numpy()), [gradients["fc1/kernel"]], [])

    processors: Sequence[Any] = [
        Keeps(), gradproc.SummaryGradient("fc1/.*"), gradproc.PrintGradient("fc1/bias")
    ]  # fmt: skip
    histograms = Histograms()
    trainer = train(
        tmp_path,
        model=Model(lambda: optimizer.ProcessGradients(sgd(0.01), processors)),
        monitors=[histograms],
        max_epoch=1,
    )
    average = weight = 0.0
    for gradient in seen:
        average = 0.95 * average + 0.05 * np.sqrt(np.mean(gradient**2))
        weight = 0.95 * weight + 0.05
    reported = trainer.monitors.latest("gradient-summary/fc1/kernel-rms")
    assert reported == pytest.approx(average / weight, rel=1e-4)
    names = {f"gradient-summary/fc1/{n}-histogram" for n in ("kernel", "bias")}
    assert histograms.seen.keys() == {(name, 6) for name in names}
    np.testing.assert_array_equal(
        histograms.seen["gradient-summary/fc1/kernel-histogram", 6], seen[-1].ravel()
    )
    assert capfd.readouterr().err.count("fc1/bias-grad: shape [1] mean") == 6


# ------------------------------------------------------------------ freezing


def test_frozen_variables_stay_and_have_no_slots(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    start: dict[str, np.ndarray] = {}
    note = Do("before_train", lambda callback: start.update(callback.trainer.get_weights()))
    trainer = train(tmp_path, [ModelSaver(), note], frozen=["fc0/.*", "fc1/bias"], max_epoch=1)
    same = {n for n, v in trainer.get_weights().items() if np.array_equal(v, start[n])}
    assert same >= {"fc0/kernel", "fc0/bias", "fc1/bias"} and "fc1/kernel" not in same
    slots = load_checkpoint(tmp_path).optimizer
    assert [n for n in slots if "fc1_kernel" in n] and not [n for n in slots if "fc0" in n]
    assert caplog.text.count("  frozen") == 3
    with pytest.raises(LayerError, match=r"'fc2/\.\*'"):
        train(tmp_path / "b", frozen="fc2/.*")


# ------------------------------------------------------------------ several devices


def test_on_two_devices(tmp_path: Path) -> None:
    command = [*warm_python(), str(PROGRAM), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert len(done.stdout.split()) == scaled(2) + 1
