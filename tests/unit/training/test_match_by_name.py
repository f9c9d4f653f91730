"""Runs that start from weights of elsewhere."""

from __future__ import annotations

import logging
import zipfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import save_file

from small_training import SPECS, Model, assert_same, flow, train
from towerpack import CheckpointError, CheckpointMismatchError, ConfigError
from towerpack.callbacks import HyperParamSetterWithFunc, ModelSaver
from towerpack.checkpoint import load_checkpoint
from towerpack.nn import BatchNorm, FullyConnected
from towerpack.tower import TowerFunction
from towerpack.training import SmartInit, TrainConfig
from towers import fill, variables

STILL = {"optimizer": "sgd", "max_epoch": 1}


class Wide(Model):
    """Another head, and batch normalisation besides."""

    def build_graph(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        h = BatchNorm("bn", FullyConnected("fc0", x, 4))
        return tf.reduce_mean((FullyConnected("fc1", h, 2) - y[:, None]) ** 2)


def start(run_dir: Path, init: Any, **kwargs: Any) -> dict[str, np.ndarray]:
    """The weights that a run starts with; they stay what they are, for the rate is 0."""
    frozen = keras.optimizers.SGD(0.0)
    kwargs = {"optimizer": frozen, "max_epoch": 1, "init": init, **kwargs}
    return train(run_dir, **kwargs).get_weights()


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("first") / "run"
    train(run_dir, [ModelSaver()])
    return run_dir


@pytest.fixture(scope="module")
def tower() -> TowerFunction:
    made = TowerFunction(Model().build_graph, SPECS)
    made.trace(is_training=True)
    return made


def load(tower: TowerFunction, init: SmartInit) -> dict[str, np.ndarray]:
    fill(tower)
    init.load(tower.store.named_variables())
    return variables(tower)


def test_every_kind_of_source_gives_the_same_weights(
    first: Path, tower: TowerFunction, tmp_path: Path
) -> None:
    saved = dict(load_checkpoint(first).model)
    np.savez(tmp_path / "w.npz", **{f"{name}:0": value for name, value in saved.items()})
    save_file(saved, tmp_path / "w.safetensors")
    half = [{n: v.astype(np.float64)} for n, v in saved.items()]
    checkpoint = load_checkpoint(first).path
    paths = [first, str(checkpoint), tmp_path / "w.npz", tmp_path / "w.safetensors"]
    for source in [*paths, load_checkpoint(first), saved, half]:
        assert_same(load(tower, SmartInit(source)), saved)
    assert_same(start(tmp_path / "new", first, dataflow=flow(16)), saved)
    assert_same(start(tmp_path / "old", None, session_init=SmartInit(str(first))), saved)
    assert start(tmp_path / "none", "").keys() == saved.keys()


def test_optimizers_that_copy_weights_copy_those(first: Path, tmp_path: Path) -> None:
    kept = keras.optimizers.ScheduleFreeAdamW(1e-9)
    weights = start(tmp_path, first, optimizer=kept)
    for name, value in load_checkpoint(first).model.items():
        np.testing.assert_allclose(weights[name], value, atol=1e-6)


def test_the_log_lists_everything(
    first: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    init = SmartInit(first, ignore_mismatch=True, rename={"fc0/bias": "bn/beta"})
    with caplog.at_level(logging.INFO):
        weights = start(tmp_path, init, model=Wide())
    [text] = [r.getMessage() for r in caplog.records if "Initial weights from" in r.getMessage()]
    assert [line.strip() for line in text.splitlines()][1:] == [
        "loaded (2)",
        "float32 [3, 4]  fc0/kernel",
        "float32 [4]  bn/beta  from fc0/bias",
        "skipped, because the value does not fit (2)",
        "fc1/bias: fc1/bias is float32 [1], needs float32 [2]",
        "fc1/kernel: fc1/kernel is float32 [4, 1], needs float32 [4, 2]",
        *("without a value (6)", "fc0/bias", "bn/gamma", "bn/moving_mean", "bn/moving_variance"),
        *("fc1/kernel", "fc1/bias"),
    ]
    saved = load_checkpoint(first).model
    np.testing.assert_array_equal(weights["bn/beta"], saved["fc0/bias"])
    with pytest.raises(CheckpointMismatchError, match="do not fit the model") as caught:
        start(tmp_path / "strict", first, model=Wide())
    assert "needs float32 [4, 2]" in str(caught.value)
    assert "ignore_mismatch=True" in str(caught.value)


def test_names_of_the_predecessor_s_model_zoo(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    names = {
        "fc0/W": ("fc0/kernel", (3, 4)),
        "fc0/b": ("fc0/bias", (4,)),
        "bn/gamma": ("bn/gamma", (1, 4)),
        "bn/mean/EMA": ("bn/moving_mean", (4,)),
        "bn/variance/EMA": ("bn/moving_variance", (4,)),
        "global_step": (None, ()),
    }
    values = {name: rng.uniform(size=shape) for name, (_, shape) in names.items()}
    np.savez(tmp_path / "zoo.npz", **values)

    class Frozen(Wide):
        def build_graph(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            h = BatchNorm("bn", FullyConnected("fc0", x, 4), training=False)
            return tf.reduce_mean((FullyConnected("fc1", h, 2) - y[:, None]) ** 2)

    weights = start(tmp_path / "run", tmp_path / "zoo.npz", model=Frozen())
    for old, (new, _) in names.items():
        if new:
            value = values[old].astype(np.float32).reshape(weights[new].shape)
            np.testing.assert_array_equal(weights[new], value)


def test_only_a_run_that_starts_from_nothing_takes_it(
    first: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained = train(tmp_path, [ModelSaver()], max_epoch=1, init=first).get_weights()
    with caplog.at_level(logging.INFO):
        again = start(tmp_path, first, optimizer=None, max_epoch=1)
    assert_same(again, trained)
    assert f"Did not load SmartInit({first}) again" in caplog.text
    # And a checkpoint of another model names the way.
    with pytest.raises(CheckpointMismatchError, match=r"TrainConfig\(resume='never', init="):
        train(tmp_path, model=Wide())


def test_what_is_of_a_run_is_not_taken_over(tmp_path: Path) -> None:
    class Rated(Model):
        def __init__(self) -> None:
            super().__init__()
            self.learning_rate = tf.Variable(0.5, trainable=False)

    lower = HyperParamSetterWithFunc("learning_rate", lambda *_: 0.125)
    rated = {"model": Rated(), "optimizer": tf.compat.v1.train.GradientDescentOptimizer(0.0)}
    train(tmp_path / "first", [lower, ModelSaver()], **rated)
    assert "learning_rate" in load_checkpoint(tmp_path / "first").model
    assert start(tmp_path / "run", tmp_path / "first", model=Rated())["learning_rate"] == 0.5


def test_mistakes(first: Path, tower: TowerFunction, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is an alias of init="):
        TrainConfig(model=Model(), dataflow=flow(), init=first, session_init=first)
    with pytest.raises(CheckpointMismatchError, match="'fc9/W', but the given dict"):
        load(tower, SmartInit({"fc0/W": np.zeros([3, 4])}, rename={"fc9/W": "fc0/kernel"}))
    with pytest.raises(CheckpointMismatchError, match="No value in the given dict") as caught:
        load(tower, SmartInit({"net/fc0/kernel": np.zeros([3, 4])}))
    assert "rename={'net/fc0/kernel': 'fc0/kernel'}" in str(caught.value)
    with pytest.raises(CheckpointMismatchError, match="a and b match it"):
        twice = {"a": np.zeros([3, 4]), "b": np.zeros([3, 4])}
        load(tower, SmartInit(twice, rename=lambda name: "fc0/kernel"))
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 no")
    np.savez(tmp_path / "objects.npz", x=np.array([{}], object))
    with zipfile.ZipFile(tmp_path / "deep.npz", "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\0\x80\0" + b"(" * 127 + b"\n")
    header = {"descr": "<f8", "fortran_order": False, "shape": (100_000_000_000,)}
    with zipfile.ZipFile(tmp_path / "huge.npz", "w") as archive, archive.open("x.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, header)
    np.savez_compressed(tmp_path / "zeros.npz", x=np.zeros(80 << 20, np.uint8))
    (tmp_path / "model.ckpt.index").touch()
    for source, text in [
        (tmp_path / "bad.npz", "cannot be read"),
        (tmp_path / "objects.npz", "cannot be read"),
        (tmp_path / "huge.npz", "cannot be read"),
        (tmp_path / "deep.npz", "cannot be read"),
        (tmp_path / "zeros.npz", "its content would have"),
        (tmp_path / "nothing", "does not exist"),
        (tmp_path / "model.ckpt", "cannot be read"),
        (3, "Weights must be a path"),
    ]:
        with pytest.raises(CheckpointError, match=text):
            load(tower, SmartInit(source))
