"""Trainings on two logical CPU devices, which only a process of its own can have.

    python replicas_program.py DIRECTORY

Each case is a function; it says its name on stdout when it has passed.
"""

# ruff: noqa: E402 - devices are made before anything uses TensorFlow

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_slim as slim

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from scaling import SCALE, sample
from small_training import SPECS, Model, Recorded, X, Y, assert_same, config, flow
from towerpack import ConfigError, LayerError, NumericsError
from towerpack.callbacks import (
    DataParallelInferenceRunner,
    Inferencer,
    InferenceRunner,
    ModelSaver,
    ScalarStats,
)
from towerpack.checkpoint import load_checkpoint
from towerpack.dataflow import BatchData, DataFromArrays, FilterData
from towerpack.inference import Predictor
from towerpack.inputs import QueueInput, SplitInput, StagingInput, TFDatasetInput
from towerpack.nn import (
    BatchNorm,
    Dropout,
    FullyConnected,
    expose,
    get_current_tower_context,
    summary,
)
from towerpack.tf1 import regularize_cost_from_collection, slim_network
from towerpack.training import (
    KerasModel,
    SimpleTrainer,
    SyncMultiGPUTrainer,
    SyncMultiGPUTrainerParameterServer,
    WeightEMA,
    build_step,
)
from towerpack.training.state.step_costs import read_step_costs

TWO = ["CPU:0", "CPU:1"]
KINDS = [SyncMultiGPUTrainer, SyncMultiGPUTrainerParameterServer]


def sgd() -> Any:
    return keras.optimizers.SGD(0.05, momentum=0.9)


def plain(**kwargs: Any) -> dict[str, Any]:
    return {"model": Model(sgd, rate=0.0), "max_epoch": 3, **kwargs}


def kind_of(run_dir: Path) -> Any:
    return next(kind for kind in KINDS if kind.__name__ in run_dir.parts)


def two(run_dir: Path, callbacks: Any = (), **kwargs: Any) -> Any:
    trainer = kind_of(run_dir)(config(run_dir, callbacks, **kwargs), devices=TWO)
    trainer.train()
    return trainer


def one(run_dir: Path, callbacks: Any = (), **kwargs: Any) -> SimpleTrainer:
    trainer = SimpleTrainer(config(run_dir, callbacks, **kwargs))
    trainer.train()
    return trainer


@functools.cache
def on_all(where: Path) -> tuple[Any, Recorded]:
    """Two batches of 8 in each step: with no device named, all are taken."""
    both = Recorded("cost", "out")
    trainer = kind_of(where)(config(where / "all", [both], **plain()))
    trainer.train()
    return trainer, both


def gradients_are_averaged(where: Path) -> None:
    ours, both = on_all(where.parent)
    whole = Recorded("cost", "out")
    theirs = one(where / "one", [whole], **plain(dataflow=flow(16)))
    assert ours.global_step == theirs.global_step == 9
    for name, value in theirs.get_weights().items():
        np.testing.assert_allclose(ours.get_weights()[name], value, rtol=2e-5, atol=1e-6)
    for a, b in zip(both.outputs, whole.outputs, strict=True):
        assert a["out"].shape == (16,)
        np.testing.assert_allclose(a["out"], b["out"], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(a["cost"], b["cost"], rtol=1e-4)
    costs = read_step_costs(where.parent / "all" / "step_costs.f32")
    assert costs.tolist() == [float(step["cost"]) for step in both.outputs]
    history = ours.monitors.history("mean"), theirs.monitors.history("mean")
    np.testing.assert_allclose(*history, rtol=1e-4)


def replicas_drop_differently(where: Path) -> None:
    def build(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        kept = expose("kept", Dropout("drop", tf.ones_like(x), 0.5))
        expose("plain", tf.random.uniform([8, 3]))
        expose("dropped", tf.nn.dropout(tf.ones([8, 3]), 0.5))
        if get_current_tower_context().is_main_training_tower:
            summary.scalar("seven", tf.constant(7.0))
        return tf.reduce_mean(tf.squeeze(FullyConnected("fc", kept, 1), -1) - y)

    recorded = Recorded("kept", "plain", "dropped")
    trainer = two(where, [recorded], model=(SPECS, build, sgd), max_epoch=1)
    assert trainer.monitors.latest("seven") == 7
    for name in ("kept", "plain", "dropped"):
        # Parts of each step and replica, of which no two may be equal.
        parts = [part for step in recorded.outputs for part in np.split(step[name], 2)]
        assert len({part.tobytes() for part in parts}) == len(parts) == 6, name


class Backbone(Model):
    """Keras layers that were built before any trainer."""

    def __init__(self) -> None:
        super().__init__(lambda: keras.optimizers.Adam(0.01))
        layers = keras.layers
        self.backbone = keras.Sequential(
            [layers.Input([3]), layers.Dense(4), layers.BatchNormalization(), layers.Dropout(0.5)]
        )

    def build_graph(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        kept = expose("kept", self.backbone(x))
        return tf.reduce_mean(tf.square(tf.reduce_sum(kept, -1) - y))


def keras_layers_of_the_model(where: Path) -> None:
    constant = BatchData(DataFromArrays(np.tile(X[:8], [6, 1]), np.tile(Y[:8], 6)), 8)
    recorded, model = Recorded("kept"), Backbone()
    trainer = two(where, [recorded, ModelSaver()], model=model, dataflow=constant, max_epoch=2)
    masks = np.stack([step["kept"] for step in recorded.outputs]) != 0
    assert not np.array_equal(masks[:, :8], masks[:, 8:])
    # Both replicas have seen the same: statistics that follow both or one of them are the same.
    weights = trainer.get_weights()
    for variable, (name, value) in zip(model.backbone.weights, weights.items(), strict=False):
        np.testing.assert_array_equal(variable, value, err_msg=name)
    assert model.backbone(X).shape == (48, 4)
    # Another trainer, and Keras itself, can go on with the same layers.
    assert list(weights) == list(one(where / "one", model=model).get_weights())
    model.backbone.compile(optimizer="sgd", loss="mse")
    model.backbone.fit(X, X[:, :1], verbose="0")


def statistics_of_both_replicas(where: Path) -> None:
    def model(sync: bool) -> Any:
        def build(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            h = BatchNorm("bn", FullyConnected("fc", x, 4), sync_statistics=sync)
            return tf.reduce_mean(tf.square(tf.reduce_sum(h, -1) - y))

        return SPECS, build, sgd

    if SyncMultiGPUTrainerParameterServer.__name__ in where.parts:
        with pytest.raises(LayerError, match="own copy of the variables"):
            two(where, model=model(sync=True))
        return
    synced = two(where / "two", model=model(sync=True), max_epoch=1).get_weights()
    whole = one(where / "one", model=model(sync=False), max_epoch=1, dataflow=flow(16))
    for name, value in whole.get_weights().items():
        np.testing.assert_allclose(synced[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
    still = (*model(sync=False)[:2], lambda: keras.optimizers.SGD(0.0))
    each = two(where / "each", model=still, max_epoch=1, steps_per_epoch=1).get_weights()
    expected = (X[:16] @ each["fc/kernel"]).mean(0)
    np.testing.assert_allclose(each["bn/moving_mean"], 0.1 * expected, 1e-4)


def clipping_by_keras(where: Path) -> None:
    """Gradients are clipped once, when they have been averaged; the limits bind in every step."""
    sgd = keras.optimizers.SGD
    cases: list[tuple[Any, Callable[[list[np.ndarray]], float], float]] = [
        (lambda: sgd(1.0, clipnorm=0.1), lambda moves: max(map(np.linalg.norm, moves)), 0.1),
        (lambda: sgd(1.0, clipvalue=0.05), lambda moves: max(np.abs(m).max() for m in moves), 0.05),
        (
            lambda: sgd(1.0, global_clipnorm=0.2),
            lambda moves: np.linalg.norm([np.linalg.norm(m) for m in moves]),
            0.2,
        ),
    ]
    places = [None, kind_of(where)(devices=TWO)._distribution]
    for make, size, limit in cases:
        runs = [build_step(Model(make, rate=0.0), seed=5, distribution=place) for place in places]
        for start in (0, 16):
            weights = [step.variables()["model"] for step in runs]
            before, _ = ([v.numpy() for v in model.values()] for model in weights)
            for step in runs:
                step(X[start : start + 16], Y[start : start + 16])
            one, both = ([v.numpy() for v in model.values()] for model in weights)
            moves = [a - b for a, b in zip(both, before, strict=True)]
            np.testing.assert_allclose(size(moves), limit, rtol=1e-4)
            for a, b in zip(one, both, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def embeddings(where: Path) -> None:
    """Gradients of rows of a table."""

    def build(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        table = tf.compat.v1.get_variable("table", [4, 1])
        rows = tf.gather(table, tf.cast(tf.abs(x[:, 0]) > 1, tf.int32))
        return tf.reduce_mean(tf.square(rows[:, 0] - y))

    # These do not move rows that no replica has read.
    makes: list[Any] = [
        lambda: keras.optimizers.Adam(0.01),
        lambda: tf.compat.v1.train.MomentumOptimizer(0.05, 0.9),
    ]
    for make in sample(makes):
        name, model = type(make()).__name__, (SPECS, build, make)
        ours = two(where / name, model=model, max_epoch=2).get_weights()["table"]
        whole = one(where / name / "one", model=model, max_epoch=2, dataflow=flow(16))
        np.testing.assert_allclose(ours, whole.get_weights()["table"], rtol=1e-5)


def optimizers_of_old_programs(where: Path) -> None:
    """Also their slots, and what they keep besides, in checkpoints."""
    train = tf.compat.v1.train
    makes: list[Any] = [
        lambda: train.RMSPropOptimizer(train.exponential_decay(0.01, global_step(), 3, 0.5)),
        lambda: train.AdamOptimizer(0.05),
        lambda: train.MomentumOptimizer(0.05, 0.9),
    ]
    for make in sample(makes):
        name = type(make()).__name__
        whole = one(where / name / "one", **plain(model=Model(make, rate=0.0), dataflow=flow(16)))
        parts = {"model": Model(make, rate=0.0), "steps_per_epoch": 3}
        two(where / name, [ModelSaver()], **plain(**parts, max_epoch=1))
        resumed = two(where / name, [ModelSaver()], **plain(**parts))
        for variable, value in whole.get_weights().items():
            ours = resumed.get_weights()[variable]
            np.testing.assert_allclose(ours, value, rtol=1e-4, atol=1e-5, err_msg=name)


def global_step() -> Any:
    return tf.compat.v1.train.get_or_create_global_step()


def precisions(where: Path) -> None:
    for precision in sample(["float16", "bfloat16"]):
        recorded = Recorded("cost")
        two(where / precision, [recorded], precision=precision, **plain(max_epoch=10))
        costs = [float(step["cost"]) for step in recorded.outputs]
        assert np.mean(costs[-3:]) < 0.5 * np.mean(costs[:3]), costs


def an_odd_batch_at_the_end_is_left(where: Path) -> None:
    data = QueueInput(BatchData(DataFromArrays(X[:40], Y[:40]), 8), infinite=False)
    trainer = two(where, steps_per_epoch=10, data=data, max_epoch=1)
    assert trainer.global_step == 2


def staged_on_both_devices(where: Path) -> None:
    def data() -> StagingInput:
        batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
        return StagingInput(TFDatasetInput(batches), device=TWO)

    whole, _ = on_all(where.parent)
    two(where, [ModelSaver()], **plain(max_epoch=1), data=data())
    parts = two(where, [ModelSaver()], **plain(), data=data())
    assert_same(parts.get_weights(), whole.get_weights())


def skipped_steps_take_their_batches(where: Path) -> None:
    def build(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        expose("x", x)
        return tf.reduce_mean(tf.squeeze(FullyConnected("fc", x, 1), -1) - y)

    def rows() -> tf.data.Dataset:  # The order of one data set changes with each iterator.
        return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(48, seed=1)

    queue = BatchData(FilterData(DataFromArrays(X, Y), lambda dp: dp[1] < 1), 8)
    makes: list[Callable[[], Any]] = [
        lambda: TFDatasetInput(rows().batch(8)),
        lambda: StagingInput(QueueInput(queue), 1, TWO),
        lambda: SplitInput(QueueInput(queue)),
    ]
    for number, make in enumerate(makes):
        inputs: list[list[Any]] = []
        for skipped in ((), [1, (3, 5)]):
            recorded = Recorded("x")
            two(
                where / f"{number}{len(skipped)}", [recorded], data=make(), steps_per_epoch=4,
                model=(SPECS, build, sgd), skip_steps=skipped,
            )  # fmt: skip
            inputs.append([output["x"] for output in recorded.outputs])
        whole, left = inputs
        np.testing.assert_array_equal([whole[step - 1] for step in (2, 6, 7, 8)], left)


def a_bad_batch_of_the_second_replica(where: Path) -> None:
    bad = Y.copy()
    bad[24] = np.nan  # The fourth batch: step 2, second replica.
    try:
        two(where, dataflow=BatchData(DataFromArrays(X, bad), 8))
    except NumericsError as error:
        assert "step 2" in str(error)
    else:
        raise AssertionError("no error")
    with np.load(where / "nonfinite-step-00000002.npz") as batch:
        np.testing.assert_array_equal(batch["y"], bad[16:24])
        np.testing.assert_array_equal(batch["y-replica1"], bad[24:32])


def the_number_of_replicas_changes(where: Path) -> None:
    """The same steps on the same data, where a batch is that of all replicas."""

    def part(kind: Any, run_dir: Path, epochs: int) -> Any:
        data = SplitInput(flow(16))
        return kind(run_dir, [ModelSaver()], **plain(data=data, max_epoch=epochs))

    whole = part(one, where / "whole", 3)
    part(two, where / "parts", 1)
    part(one, where / "parts", 2)
    assert load_checkpoint(where / "parts").step == 6
    parts = part(two, where / "parts", 3)
    assert parts.global_step == whole.global_step == 9
    for name, value in whole.get_weights().items():
        np.testing.assert_allclose(parts.get_weights()[name], value, rtol=1e-5, atol=1e-6)


def uneven_rows_count_as_in_one_batch(where: Path) -> None:
    """Also a last batch of one row, of which the second replica has none."""

    def trained(kind: Any, batch: int) -> Any:
        data = SplitInput(flow(batch, remainder=True))
        model = plain(data=data, max_epoch=3)
        return kind(where / f"{kind.__name__}{batch}", [], **model)

    for batch in (9, 47):
        whole, parts = trained(one, batch), trained(two, batch)
        for name, value in whole.get_weights().items():
            np.testing.assert_allclose(parts.get_weights()[name], value, rtol=1e-5, atol=1e-6)
        means = [list(dict(t.monitors.history("mean")).values()) for t in (whole, parts)]
        np.testing.assert_allclose(*means, rtol=1e-5)


def devices_are_checked(where: Path) -> None:
    for devices, words in (
        (["CPU:0", "CPU:7"], "no device 'CPU:7'"),
        (["CPU:0", "/device:cpu:0"], "each device once"),
        ([], "at least one"),
        (0, "at least one"),
        (2, "no device 'GPU:0'"),
        (np.int64(2), "no device 'GPU:0'"),
        ([1, 0], "no device 'GPU:1'"),
    ):
        try:
            SyncMultiGPUTrainer(config(where), devices=cast("Any", devices))
        except ConfigError as error:
            assert words in str(error), error
        else:
            raise AssertionError(devices)


def networks_of_tf_slim(where: Path) -> None:
    """Trained, saved, resumed and predicted."""

    def net(x: tf.Tensor) -> Any:
        with slim.arg_scope([slim.fully_connected], weights_regularizer=slim.l2_regularizer(0.01)):
            h = slim.fully_connected(x, 8, normalizer_fn=slim.batch_norm, scope="fc0")
            return slim.fully_connected(h, 1, activation_fn=None, scope="fc1"), {"hidden": h}

    def build(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        out = expose("out", slim_network(net)(x)[0][:, 0])
        return tf.reduce_mean(tf.square(out - y)) + regularize_cost_from_collection()

    recorded, model = Recorded("cost", "hidden"), (SPECS, build, sgd)
    two(where, [recorded, ModelSaver()], model=model, max_epoch=3)
    weights = two(where, [recorded, ModelSaver()], model=model, max_epoch=8).get_weights()
    costs = [step["cost"] for step in recorded.outputs]
    assert np.mean(costs[-3:]) < 0.5 * np.mean(costs[:3]), costs
    assert recorded.outputs[0]["hidden"].shape == (16, 8)
    mean, variance = (weights[f"fc0/BatchNorm/moving_{name}"] for name in ("mean", "variance"))
    assert np.abs(mean).max() > 0
    hidden = (X @ weights["fc0/weights"] - mean) / np.sqrt(variance + 1e-3)
    hidden = np.maximum(hidden + weights["fc0/BatchNorm/beta"], 0)
    expected = (hidden @ weights["fc1/weights"] + weights["fc1/biases"])[:, 0]
    found = Predictor(model, where, outputs="out")(X)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def compiled_keras_models(where: Path) -> None:
    def make() -> keras.Model:
        net = keras.Sequential([keras.Input([3]), keras.layers.Dense(1, kernel_regularizer="l2")])
        net.compile(sgd(), "mse", metrics=["mae"])
        net.set_weights([np.ones([3, 1]), np.zeros([1])])
        return net

    ours, theirs = make(), make()
    trainer = two(where, model=KerasModel(ours))
    theirs.fit(X, Y, 16, 2, 0, shuffle=False)
    for a, b in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ours.predict(X, verbose=0), theirs.predict(X, verbose=0), rtol=1e-3)
    assert np.isfinite(trainer.monitors.latest("mae"))


def evaluated_on_both_devices(where: Path) -> None:
    """Every datapoint once, with the weights of now; averages of weights, too."""

    class Rows(Inferencer):
        def __init__(self) -> None:
            self.seen: list[np.ndarray] = []

        def outputs(self) -> list[str]:
            return ["out", "cost"]

        def names(self) -> list[str]:
            return ["mean"]

        def begin(self) -> None:
            self.seen = []

        def update(self, outputs: Any, batch_size: int) -> None:
            assert len(outputs["out"]) == batch_size
            self.seen.append(outputs["out"])

        def finish(self) -> dict[str, float]:
            return {"mean": float(np.concatenate(self.seen).mean())}

    def runners(ema: bool) -> list[InferenceRunner]:
        rows.append([Rows(), Rows()])
        data = BatchData(DataFromArrays(X, Y), 7, remainder=True)
        mine = [[part, ScalarStats("cost")] for part in rows[-1]]
        return [
            DataParallelInferenceRunner(data, mine[0], TWO, f"both-{ema}", ema=ema),
            InferenceRunner(data, mine[1], f"one-{ema}", ema=ema),
        ]

    rows: list[list[Rows]] = []
    averaged = Model(lambda: WeightEMA(sgd(), 0.9), rate=0.0)
    trainer = two(where, [*runners(False), *runners(True)], **plain(model=averaged))
    for ema, (both, alone) in zip([False, True], rows, strict=True):
        assert [len(part) for part in both.seen] == [7] * 6 + [6]
        np.testing.assert_allclose(np.concatenate(both.seen), np.concatenate(alone.seen), 1e-6)
        for name in ("mean", "cost"):
            found = trainer.monitors.history(f"both-{ema}/{name}")
            assert len(found) == 3 and len({value for _, value in found}) == 3
            expected = trainer.monitors.history(f"one-{ema}/{name}")
            np.testing.assert_allclose(found, expected, rtol=1e-6)


def a_loop_of_ones_own(where: Path) -> None:
    places = [None, kind_of(where)(devices=TWO)._distribution]
    runs = [build_step(Model(sgd, rate=0.0), seed=5, distribution=place) for place in places]
    for _ in range(3):
        one, both = (step(X, Y) for step in runs)
        for name in ("cost", "out"):
            np.testing.assert_allclose(one[name], both[name], rtol=1e-4, atol=1e-5)


def resumed_and_deterministic(where: Path) -> None:
    """Last: the deterministic operations stay on."""

    def part(name: str, epochs: int, train: Any = two, **kwargs: Any) -> dict[str, np.ndarray]:
        settings = {"deterministic": True, "max_epoch": epochs, **kwargs}
        return train(where / name, [ModelSaver()], model=Model(), **settings).get_weights()

    whole = part("whole", 3)
    part("parts", 1)
    assert_same(part("parts", 3), whole)
    if SCALE == 1:
        assert_same(part("again", 3), whole)
        dataset = TFDatasetInput(tf.data.Dataset.from_tensor_slices((X, Y)).batch(8))
        part("dataset", 2, data=dataset, steps_per_epoch=3)
        assert_same(part("d", 2, one), part("e", 2, one))


CASES = [
    # Each of these has tests on one device, and all share what makes several of one.
    *sample([compiled_keras_models, networks_of_tf_slim, optimizers_of_old_programs]),
    gradients_are_averaged,
    replicas_drop_differently,
    clipping_by_keras,
    keras_layers_of_the_model,
    embeddings,
    statistics_of_both_replicas,
    precisions,
    an_odd_batch_at_the_end_is_left,
    staged_on_both_devices,
    skipped_steps_take_their_batches,
    devices_are_checked,
    a_bad_batch_of_the_second_replica,
    the_number_of_replicas_changes,
    uneven_rows_count_as_in_one_batch,
    evaluated_on_both_devices,
    a_loop_of_ones_own,
    resumed_and_deterministic,
]

if __name__ == "__main__":
    wanted = sys.argv[2:] or [case.__name__ for case in CASES]
    for kind in KINDS:
        for case in CASES if kind is SyncMultiGPUTrainer else sample(CASES):
            if case.__name__ in wanted:
                case(Path(sys.argv[1]) / kind.__name__ / case.__name__)
                print(kind.__name__, case.__name__, flush=True)
