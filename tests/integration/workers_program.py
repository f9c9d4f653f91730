"""One of several processes that train together; started by `test_workers.py`.

    python workers_program.py CASE DIRECTORY

Each case is a function. The tests read what it prints.
"""

from __future__ import annotations

import functools
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager.context import Context

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from scaling import sample
from small_training import SPECS, Model, Recorded, X, Y, config, flow, train
from towerpack import ConfigError
from towerpack.callbacks import Callback, InferenceRunner, ModelSaver, PeriodicTrigger, ScalarStats
from towerpack.checkpoint import load_checkpoint
from towerpack.cluster import Cluster
from towerpack.dataflow import (
    BatchData,
    DataFlow,
    DataFromArrays,
    DataFromGenerator,
    DataFromList,
    MapData,
    ProxyDataFlow,
    RemoteDataZMQ,
)
from towerpack.inputs import QueueInput, SplitInput
from towerpack.nn import BatchNorm, Dropout, FullyConnected, expose
from towerpack.training import (
    KerasMetrics,
    KerasModel,
    MultiWorkerTrainer,
    StopTraining,
    join_cluster,
)
from towerpack.training.distribution import multi_worker, worker_team
from towerpack.training.distribution.peers import wait_for_peers
from towerpack.training.run import opening
from towerpack.training.state import settings

# What was made before the workers have met keeps its values.
BEFORE = keras.layers.Dense(2)
BEFORE.build((None, 3))
VALUE = BEFORE.kernel.numpy()
if sys.argv[1] in (
    "hangs",
    "dies_building",
):  # Else TensorFlow waits for 10 s before it gives up a silent worker.
    Context.configure_coordination_service = functools.partialmethod(
        Context.configure_coordination_service, heartbeat_timeout_in_ms=4000
    )
if sys.argv[1] == "dies_joining" and Cluster.from_environment().worker_index == 1:

    def meet(*arguments: Any) -> None:
        wait_for_peers(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    multi_worker.wait_for_peers = meet
TEAM = join_cluster({"alone": 1.0, "dies_joining": 10.0}.get(sys.argv[1], 60.0)).team
np.testing.assert_array_equal(BEFORE.kernel, VALUE)
if sys.platform == "linux":  # TensorFlow's servers catch SIGTERM, and do nothing then
    caught = re.search(r"SigCgt:\s*(\w+)", Path("/proc/self/status").read_text())
    assert caught and not int(caught[1], 16) >> (signal.SIGTERM - 1) & 1


def sgd() -> Any:
    return keras.optimizers.SGD(0.05, momentum=0.9)


def plain() -> Model:
    return Model(sgd, rate=0.0)


def together(run_dir: Path, callbacks: Any = (), **kwargs: Any) -> MultiWorkerTrainer:
    trainer = MultiWorkerTrainer(config(run_dir, callbacks, **kwargs))
    trainer.train()
    return trainer


class Everywhere(Callback):
    """Acts in every worker."""

    chief_only = False


class Say(Everywhere):
    def trigger_epoch(self) -> None:
        print(f"epoch {self.trainer.epoch}", flush=True)


# ------------------------------------------------------------------ everybody stays well


def is_one_large_batch(where: Path) -> None:
    validation = InferenceRunner(flow(), [ScalarStats("cost")])
    saver = PeriodicTrigger(ModelSaver(keep=9), every_k_steps=2)
    ours = together(where / "ours", [saver, validation], model=plain(), max_epoch=3)
    split = together(where / "split", model=plain(), max_epoch=3, data=SplitInput(flow(16)))
    assert ours.global_step == split.global_step == 9
    if TEAM.is_chief:
        whole = train(where / "whole", model=plain(), dataflow=flow(16), max_epoch=3)
        for name, value in whole.get_weights().items():
            for weights in (ours.get_weights(), split.get_weights()):
                np.testing.assert_allclose(weights[name], value, rtol=2e-5, atol=1e-6)
        both = [dict(t.monitors.history("mean")) for t in (ours, whole)]
        np.testing.assert_allclose(list(both[0].values()), list(both[1].values()), rtol=1e-4)
        assert load_checkpoint(where / "ours").step == 9
        assert ours.monitors.latest("val/cost") > 0
    else:
        assert ours.run_dir == where / "ours" / f"worker-{TEAM.index}"


def keras_model(*, synchronized: bool) -> KerasModel:
    """Of everything that could differ between workers: added losses, averages, a schedule."""
    layers = keras.layers
    net = keras.Sequential(
        [
            keras.Input([3]),
            layers.Dense(8, "relu", activity_regularizer=keras.regularizers.L2(0.01)),
            layers.BatchNormalization(synchronized=synchronized),
            *([] if synchronized else [layers.Dropout(0.2)]),
            layers.Dense(1, kernel_regularizer=keras.regularizers.L1(0.01)),
        ]
    )
    rate = keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.8)
    net.compile(keras.optimizers.Adam(rate), "mse", weighted_metrics=["mae"])
    return KerasModel(net, sample_weight=True)


def weighted(size: int) -> DataFlow:
    return BatchData(DataFromArrays(X, Y[:, None], np.arange(48, dtype=np.float32) % 3), size)


def a_keras_model_is_one_large_batch(where: Path) -> None:
    def numbers_of(model: KerasModel) -> dict[str, Any]:
        scalars = [ScalarStats("cost"), KerasMetrics(model)]
        return {"model": model, "callbacks": [InferenceRunner(weighted(12), scalars)]}

    split = SplitInput(weighted(16))
    model = keras_model(synchronized=True)
    ours = together(where / "ours", data=split, max_epoch=3, **numbers_of(model))
    assert ours.global_step == 9
    if TEAM.is_chief:
        model = keras_model(synchronized=True)
        whole = train(where / "whole", dataflow=weighted(16), max_epoch=3, **numbers_of(model))
        for name, value in whole.get_weights().items():
            close(ours.get_weights()[name], value)
        for name in ("cost", "val/cost", "val/mae", "learning_rate"):
            pairs = [[v for _, v in t.monitors.history(name)] for t in (ours, whole)]
            assert pairs[0]
            close(*pairs)


def close(ours: Any, theirs: Any) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-6)


def each_draws_its_own(where: Path) -> None:
    drop = keras.layers.Dropout(0.5)

    def build(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        ours, keras_own = Dropout("drop", tf.ones_like(x), 0.5), drop(tf.ones_like(x))
        expose("kept", tf.stack([ours, keras_own]))
        return tf.reduce_mean(tf.square(FullyConnected("fc", BatchNorm("bn", x), 1)[:, 0] - y))

    class Masks(Recorded):
        chief_only = False

    masks = Masks("kept")
    trainer = together(where, [masks], model=(SPECS, build, sgd), max_epoch=1)
    first, second = everybodys(np.stack([step["kept"] for step in masks.outputs], axis=1))
    for mine, theirs in zip(first, second, strict=True):  # ours, then that of Keras
        assert not np.array_equal(mine, theirs)
    for name, value in trainer.get_weights().items():
        first, second = everybodys(value)
        np.testing.assert_array_equal(first, second, err_msg=name)


def everybodys(values: np.ndarray) -> np.ndarray:
    return np.asarray(TEAM.exchange(values.tolist()))


def own_parts_are_read_whole(where: Path) -> None:
    class EveryOther(ProxyDataFlow):
        def __init__(self, ds: Any, own: int) -> None:
            super().__init__(ds)
            self._own = own

        def __len__(self) -> int:
            return len(self.ds) // 2

        def __iter__(self) -> Any:
            return (dp for i, dp in enumerate(self.ds) if i % 2 == self._own)

    class Lines(DataFlow):
        def __init__(self, path: str) -> None:
            self._path = path

    rank = TEAM.index
    remote = BatchData(RemoteDataZMQ(f"ipc://{where}-{rank}"), 8)
    parts = [
        BatchData(DataFromArrays(X[rank::2], Y[rank::2]), 8),
        BatchData(EveryOther(DataFromArrays(X, Y), rank), 8),
        BatchData(DataFromGenerator(lambda: zip(X[rank::2], Y[rank::2], strict=True)), 8),
        Lines(f"/data/part-{rank}"),
        remote,
    ]
    for part in parts:
        assert TEAM.share(part) is part, part
    assert TEAM.share(Lines(f"/host{rank}/data")).num_shards == 2
    for whole in (flow(), BatchData(DataFromList(list(zip(X, Y, strict=True))), 8)):
        assert len(TEAM.share(whole)) == 3
    for wrong in (QueueInput(BatchData(DataFromArrays(X, Y + rank), 8)), SplitInput(parts[0])):
        try:
            TEAM.share(wrong)
        except ConfigError as error:
            assert "worker 1" in str(error), error
        else:
            raise AssertionError(wrong)
    together(where, dataflow=parts[0], max_epoch=1)


def differ(where: Path) -> None:
    """In every setting that one may forget to give to all workers, and in a version."""
    settings.library_versions = lambda: {"keras": f"3.{TEAM.index}", "python": f"3.{TEAM.index}"}
    sign = 1 - 2 * TEAM.index

    def optimizer() -> Any:
        return keras.optimizers.SGD(0.05, momentum=0.9 - 0.4 * TEAM.index)

    data = BatchData(
        MapData(DataFromArrays(X, Y), lambda dp: (dp[0], sign * dp[1])), 4 * 2**TEAM.index
    )
    model = Model(optimizer, rate=0.25 + 0.25 * TEAM.index)
    together(where, model=model, dataflow=data, seed=TEAM.index, steps_per_epoch=3)


def uneven_data_end_together(where: Path) -> None:
    mine = DataFromArrays(X, Y) if TEAM.is_chief else DataFromArrays(X[:32], Y[:32])
    data = QueueInput(BatchData(mine, 8), infinite=False)
    trainer = together(where, data=data, steps_per_epoch=10, max_epoch=1)
    assert trainer.global_step == 4


def what_the_chief_sets_holds_for_all_and_one_stops_all(where: Path) -> None:
    class Set(Callback):
        def trigger_epoch(self) -> None:
            self.trainer.hyper_param("learning_rate").set(0.01)

    class StopAndLook(Everywhere):
        def __init__(self, where: int) -> None:
            self.where = where
            self.seen: list[float] = []

        def after_call(self) -> None:
            self.seen.append(self.trainer.hyper_param("learning_rate").get())

        def trigger_epoch(self) -> None:
            if TEAM.index == self.where and self.trainer.epoch == 2:
                raise StopTraining("enough")

    for index in sample([1, 0]):
        stop = StopAndLook(index)
        trainer = together(
            where / str(index), [Set(), stop, ModelSaver()], max_epoch=4, model=plain()
        )
        assert trainer.global_step == 6
        assert not trainer.complete
        np.testing.assert_allclose([stop.seen[0], stop.seen[-1]], [0.05, 0.01])


def a_rate_held_by_hand_holds_for_all(where: Path) -> None:
    """The chief holds the rate for one epoch: all workers leave their schedules, and return."""

    class Hold(Callback):
        def trigger_epoch(self) -> None:
            self.trainer.hold("learning_rate", 0.01 if self.trainer.epoch == 1 else None)

    class Look(Everywhere):
        acts_between_steps = True

        def __init__(self) -> None:
            self.seen: list[float] = []

        def setup(self, trainer: Any) -> None:
            trainer.schedule("learning_rate", lambda step: 0.02 + 0.001 * step)

        def after_call(self) -> None:
            self.seen.append(self.trainer.hyper_param("learning_rate").get())

    look = Look()
    ours = together(where / "ours", [Hold(), look], model=plain(), max_epoch=3)
    assert look.seen[3:6] == np.float32([0.01] * 3).tolist()
    np.testing.assert_allclose(
        np.diff(look.seen[:3] + look.seen[6:]), [0.001] * 2 + [0.004, 0.001, 0.001], rtol=1e-3
    )
    if TEAM.is_chief:
        whole = train(
            where / "whole", [Hold(), Look()], model=plain(), dataflow=flow(16), max_epoch=3
        )
        for name, value in whole.get_weights().items():
            np.testing.assert_allclose(ours.get_weights()[name], value, rtol=2e-5, atol=1e-6)


def stopped_before_a_step(where: Path) -> None:
    class Stop(Everywhere):
        acts_between_steps = True

        def before_step(self) -> None:
            if TEAM.index == 1 and self.trainer.global_step == 4:
                raise StopTraining("enough")

    trainer = together(where, [Stop(), ModelSaver()], max_epoch=4, model=plain())
    assert trainer.global_step == 4 and not trainer.complete


def well(where: Path) -> None:
    """All of these, and at last what one of them does not survive."""
    for case in (
        is_one_large_batch,
        a_keras_model_is_one_large_batch,
        each_draws_its_own,
        own_parts_are_read_whole,
        uneven_data_end_together,
        what_the_chief_sets_holds_for_all_and_one_stops_all,
        a_rate_held_by_hand_holds_for_all,
        stopped_before_a_step,
        long,
        fails,
    ):
        case(where / case.__name__)
        print("passed", case.__name__, flush=True)


# ------------------------------------------------------------------ somebody does not


def long(where: Path) -> None:
    """Until somebody ends it; or, continued, to its end. Worker 1 does not see the directory."""
    if not TEAM.is_chief:
        exists, load = Path.exists, opening.load_checkpoint
        Path.exists = lambda path: ".shared-" not in path.name and exists(path)
        opening.load_checkpoint = lambda path: where in path.parents or load(path)

    class Slowly(Say):
        def trigger_epoch(self) -> None:
            super().trigger_epoch()
            time.sleep(0.05)

    trainer = together(
        where,
        [ModelSaver(keep=2), Slowly()],
        model=keras_model(synchronized=False),
        dataflow=weighted(8),
        max_epoch=25,
        deterministic=True,
    )
    np.savez(where / f"end-{TEAM.index}.npz", **trainer.get_weights())


hangs = long


def chief_dies_once(where: Path) -> None:
    class Die(Callback):
        def trigger_epoch(self) -> None:
            if self.trainer.epoch == 3 and os.environ["TOWERPACK_RESTART"] == "0":
                os.kill(os.getpid(), signal.SIGKILL)

    trainer = together(where, [PeriodicTrigger(ModelSaver(), every_k_steps=3), Die()], max_epoch=5)
    assert trainer.complete


def fails(where: Path) -> None:
    class Fail(Everywhere):
        def trigger_epoch(self) -> None:
            if TEAM.index == 1:
                raise RuntimeError("no more")

    together(where, [ModelSaver(), Fail(), Say()], max_epoch=4)


def _fails_in_a_step(where: Path, index: int, build: Any) -> None:
    wrong = np.where(np.arange(48) == 24 + 4 * index, 9, np.arange(48) % 4).astype(np.int32)
    data = BatchData(DataFromArrays(X, wrong), 4)
    specs = [SPECS[0], tf.TensorSpec([None], tf.int32, "y")]
    together(where, [ModelSaver(), Say()], dataflow=data, model=(specs, build, sgd))


def wrong_label_of_1(where: Path) -> None:
    def build(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        logits = FullyConnected("fc", x, 4)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))

    _fails_in_a_step(where, 1, build)


def failed_function_of_0(where: Path) -> None:
    def look(y: np.ndarray) -> np.ndarray:
        if y.max() > 3:
            raise RuntimeError(f"no label {y.max()}")
        return y

    def build(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        seen = tf.ensure_shape(tf.numpy_function(look, [y], tf.int32), [None])
        out = FullyConnected("fc", x, 1)[:, 0]
        return tf.reduce_mean(tf.square(out - tf.cast(seen, tf.float32)))

    _fails_in_a_step(where, 0, build)


def dies_building(where: Path) -> None:
    def build(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        if TEAM.index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return tf.reduce_mean(tf.square(FullyConnected("fc", x, 1)[:, 0] - y))

    together(where, model=(SPECS, build, sgd))


def cannot_build(where: Path) -> None:
    def build(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        if TEAM.index == 1:
            raise ValueError("no such network")
        return tf.reduce_mean(tf.square(FullyConnected("fc", x, 1)[:, 0] - y))

    together(where, model=(SPECS, build, sgd))


def waits(where: Path) -> None:
    """Worker 1 does not come to the next call; worker 0 waits for it."""

    class Sleep(Say):
        def trigger_epoch(self) -> None:
            super().trigger_epoch()
            time.sleep(1000 * TEAM.index)

    together(where, [ModelSaver(), Sleep()])


def stuck(where: Path) -> None:
    """Worker 0 comes to no end with what the other waits for, whatever is reported to it."""

    def build(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        print("building", flush=True)
        time.sleep(1000 * (TEAM.index == 0))
        return tf.reduce_mean(tf.square(FullyConnected("fc", x, 1)[:, 0] - y))

    worker_team._PATIENCE_S = 2.0
    together(where, model=(SPECS, build, sgd))


def alone(where: Path) -> None:
    raise AssertionError("the other one has not come, and this one goes on")


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
