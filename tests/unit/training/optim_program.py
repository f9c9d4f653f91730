"""Optimizers on two logical CPU devices, which only a process of its own can have.

    python optim_program.py DIRECTORY

Each case is a function; it says its name on stdout when it has passed.
"""

# ruff: noqa: E402 - devices are made before anything uses TensorFlow

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
from embeddings import IDS, TARGETS, embedding_model, gathered, one_hot
from scaling import SCALE, sample
from small_training import Model, config, flow
from towerpack import (
    AccumulateGradients,
    CheckGradient,
    ConfigError,
    GlobalNormClip,
    MapGradient,
    ProcessGradients,
    ScaleGradient,
    SummaryGradient,
    ValueClip,
    VariableAssignment,
    WeightEMA,
)
from towerpack.callbacks import InferenceRunner, ScalarStats
from towerpack.dataflow import BatchData, DataFromArrays
from towerpack.training import (
    AsyncMultiGPUTrainer,
    SimpleTrainer,
    SyncMultiGPUTrainer,
    SyncMultiGPUTrainerParameterServer,
)
from towerpack.training.optim.proxy_and_loss_scale import LossScale, adapt

TWO = ["CPU:0", "CPU:1"]
GRADIENTS = np.random.default_rng(3).normal(size=(6, 2, 3)).astype(np.float32)
NAMES = ("a/kernel", "b/kernel")


def decayed(**kwargs: Any) -> Any:
    return keras.optimizers.SGD(0.1, 0.9, weight_decay=0.1, **kwargs)


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adamw": lambda: keras.optimizers.AdamW(0.1, weight_decay=0.1, global_clipnorm=0.5),
    "averaged": lambda: decayed(use_ema=True, ema_overwrite_frequency=2, loss_scale_factor=4.0),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(decayed(), dynamic_growth_steps=2),
    "processors": lambda: ProcessGradients(
        decayed(),
        [
            CheckGradient(),
            SummaryGradient(),
            GlobalNormClip(1.0),
            ValueClip(0.4),
            ScaleGradient(("a/.*", 0.5)),
            MapGradient(lambda g, v: g + 0.1 * v, "b/.*"),
        ],
    ),
    "wrappers": lambda: LossScale(
        WeightEMA(
            VariableAssignment(
                AccumulateGradients(decayed(), 2), lambda v: tf.clip_by_value(v, -0.9, 0.9)
            ),
            0.5,
        )
    ),
}


def applied(
    make: Callable[[], Any], strategy: tf.distribute.Strategy | None
) -> list[dict[str, np.ndarray]]:
    """All variables of a training, on each replica, as the executor runs it."""
    outside = make()  # Users make optimizers before there is a strategy.
    with (strategy or tf.distribute.get_strategy()).scope():
        variables = {name: tf.Variable(tf.ones([3]), name=name) for name in NAMES}
        adapter = adapt(outside)
        adapter.build(variables)

    def averaged(gradients: tf.Tensor) -> list[Any]:
        if strategy is None:
            return tf.unstack(gradients)

        def of_replica() -> list[tf.Tensor]:
            index: Any = tf.distribute.get_replica_context().replica_id_in_sync_group
            return tf.unstack(gradients + 1.0 - 2.0 * tf.cast(index, tf.float32))

        pairs = [(value, value) for value in strategy.run(of_replica)]
        return list(strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.MEAN, pairs))

    def body(i: tf.Tensor, gradients: tf.Tensor) -> Any:
        scaled = adapter.scale_loss(tf.constant(1.0)) * gradients[i]
        given = averaged(scaled)

        def update() -> tf.Tensor:
            adapter.apply(given)
            return tf.constant(True)

        tf.cond(adapter.check(given), update, lambda: tf.constant(False))
        return i + 1, gradients

    @tf.function(autograph=False)
    def run(gradients: tf.Tensor) -> None:
        tf.while_loop(lambda i, _: i < len(GRADIENTS), body, (0, gradients))

    run(tf.constant(GRADIENTS))
    every = {**variables, **adapter.variables()}
    local = (strategy or tf.distribute.get_strategy()).experimental_local_results
    copies = {name: [v.numpy() for v in local(variable)] for name, variable in every.items()}
    return [
        {name: values[min(i, len(values) - 1)] for name, values in copies.items()} for i in range(2)
    ]


def replicas_with_copies_move_as_one(where: Path) -> None:
    strategy = tf.distribute.MirroredStrategy(
        TWO, cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    for name, make in OPTIMIZERS.items():
        alone = applied(make, None)[0]
        for copy in applied(make, strategy):
            assert copy.keys() == alone.keys()
            for key, value in alone.items():
                np.testing.assert_allclose(copy[key], value, rtol=1e-5, err_msg=f"{name}: {key}")
        assert not np.array_equal(alone["a/kernel"], np.ones(3)), name
    try:
        applied(lambda: decayed(gradient_accumulation_steps=2), strategy)
    except ConfigError as error:
        assert "AccumulateGradients" in str(error.fix)
    else:
        raise AssertionError("no error")


def shared(config: Any) -> Any:
    return SyncMultiGPUTrainerParameterServer(config, devices=TWO)


def copies(config: Any) -> Any:
    return SyncMultiGPUTrainer(config, devices=TWO)


def alone(config: Any) -> Any:
    return AsyncMultiGPUTrainer(config, devices=TWO[:1])


def trained(
    trainer: Any,
    where: Path,
    make: Callable[[], Any],
    callbacks: Sequence[Any] | None = None,
    **kwargs: Any,
) -> Any:
    if callbacks is None:
        callbacks = [InferenceRunner(flow(48), ScalarStats("cost"), "ema", ema=True)]
    kwargs = {"model": Model(make, rate=0.0), "max_epoch": 1, "steps_per_epoch": 4, **kwargs}
    made = trainer(config(where / trainer.__name__, callbacks, **kwargs))
    made.train()
    return made


def wrapped(scale: float | None = None) -> Any:
    sgd = keras.optimizers.SGD(0.05)
    processors = [CheckGradient(), SummaryGradient("fc0/.*"), GlobalNormClip(1.0)]
    made = WeightEMA(AccumulateGradients(ProcessGradients(sgd, processors), 2), 0.9)
    # The usual scale of 2 ** 15 leaves out the first steps.
    return made if scale is None else LossScale(made, initial=scale)


def trainers_precisions_and_compilation(where: Path) -> None:
    alone, one, two = (
        trained(trainer, where / "exact", wrapped) for trainer in (SimpleTrainer, shared, copies)
    )
    others = [(two, copies, {"precision": "float16"}), (alone, SimpleTrainer, {"xla": True})]
    if SCALE == 1:
        others += [(alone, SimpleTrainer, {"precision": "float16"})]
        others += [(one, shared, {"precision": half}) for half in ("float16", "bfloat16")]
    for exact, trainer, how in others:
        scale = 256.0 if how.get("precision") == "float16" else None
        found = trained(trainer, where / str(how), lambda s=scale: wrapped(s), **how).get_weights()
        for name, value in exact.get_weights().items():
            assert found[name].dtype == np.float32
            np.testing.assert_allclose(found[name], value, atol=1e-5 if "xla" in how else 0.02)
        if "precision" in how:  # It does something.
            kernel = exact.get_weights()["fc0/kernel"]
            assert not np.allclose(found["fc0/kernel"], kernel, atol=1e-6)
    for ema in (False, True):
        theirs = two.get_weights(ema=ema)
        for name, value in one.get_weights(ema=ema).items():
            np.testing.assert_allclose(theirs[name], value, rtol=1e-4, atol=1e-6)
    for name in ("ema/cost", "gradient-summary/fc0/kernel-rms"):
        np.testing.assert_allclose(*(t.monitors.latest(name) for t in (one, two)), rtol=1e-4)
    for trainer in sample([shared, copies]):
        try:
            trained(trainer, where, wrapped, xla=True)
        except ConfigError as error:
            assert "CPU:1" in str(error) and "xla=False" in str(error)
        else:
            raise AssertionError("no error")


def every_trainer_sums_repeated_rows(where: Path) -> None:
    def processed() -> Any:
        some = ScaleGradient(("table", 0.5)), ValueClip(0.2, "fc/.*"), GlobalNormClip(0.5)
        return ProcessGradients(keras.optimizers.Adam(0.1), [*some, CheckGradient()])

    data = BatchData(DataFromArrays(IDS, TARGETS), 4)
    for trainer in (SimpleTrainer, shared, copies, alone):
        found = [
            trained(
                trainer, where / str(i), processed, callbacks=[], dataflow=data, steps_per_epoch=2,
                model=embedding_model(lookup, processed),
            ).get_weights()
            for i, lookup in enumerate((gathered, one_hot))
        ]  # fmt: skip
        for name, value in found[1].items():
            np.testing.assert_allclose(found[0][name], value, atol=1e-5, err_msg=str(trainer))


CASES = [replicas_with_copies_move_as_one, trainers_precisions_and_compilation]

if __name__ == "__main__":
    for case in [every_trainer_sums_repeated_rows, *sample(CASES)]:
        case(Path(sys.argv[1]) / case.__name__)
        print(case.__name__, flush=True)
