"""Weights from files of TensorFlow and Keras; names that are skipped."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from towerpack import CheckpointError, CheckpointMismatchError
from towerpack.tower import TowerFunction
from towerpack.training import SmartInit
from towers import fill, spec, tower_of, variables

V1 = tf.compat.v1


class Model:
    """A Keras model that hangs on ours, and a layer of its own."""

    def __init__(self) -> None:
        K = keras.layers
        inner = keras.Sequential([K.Conv2D(2, 1, name="inner")], name="seq")
        layers = [K.Conv2D(2, 3, name="c1"), K.BatchNormalization(name="bn"), inner]
        self.net = keras.Sequential([keras.Input((4, 4, 3)), *layers, K.Conv2D(2, 1, name="c2")])

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return keras.layers.Dense(2, name="own")(self.net(x))


@cache
def tower() -> tuple[Model, TowerFunction]:
    model = Model()
    made = tower_of(model, spec(None, 4, 4, 3))
    made.trace(is_training=True)
    return model, made


def load(init: SmartInit) -> dict[str, np.ndarray]:
    _, made = tower()
    fill(made, seed=50)
    init.load(made.store.named_variables())
    return variables(made)


def write(kind: str, folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
    model, made = tower()
    values = fill(made)
    names = [n for n in values if "own/" not in n]
    path = folder / f"w{kind}"
    if kind == ".ckpt":
        with tf.Graph().as_default(), V1.Session() as session:
            slim = {n: n.replace("c1/kernel", "c1/weights") for n in names}
            held = [V1.get_variable(slim[n], initializer=values[n]) for n in names]
            session.run(V1.global_variables_initializer())
            V1.train.Saver(held).save(session, str(path), write_meta_graph=False)
    elif kind == ".weights.h5":
        model.net.save_weights(path)
    else:
        model.net.save(path)
    return path, {n: values[n] for n in names}


KINDS = [".ckpt", ".keras", ".weights.h5", ".h5"]


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning:keras")
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_what_was_written(kind: str, tmp_path: Path) -> None:
    path, written = write(kind, tmp_path)
    loaded = load(SmartInit(path))
    assert len(written) == 10
    for name, value in written.items():
        np.testing.assert_array_equal(loaded[name], value, err_msg=name)
    target = path if kind != ".ckpt" else Path(f"{path}.index")
    target.write_bytes(target.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="cannot be read"):
        load(SmartInit(target))


def test_what_is_skipped_keeps_its_values(caplog: pytest.LogCaptureFixture) -> None:
    _, made = tower()
    values = {n: v + 1 for n, v in fill(made).items()}
    values["own/bias"] = np.zeros(9)  # Of other classes: its shape does not matter.
    before = load(SmartInit(None))
    with caplog.at_level(logging.INFO):
        loaded = load(SmartInit(values, skip=["own/.*", "func/net/c2/bias"]))
    for name, value in loaded.items():
        skipped = name in ("own/kernel", "own/bias", "func/net/c2/bias")
        np.testing.assert_array_equal(value, (before if skipped else values)[name], err_msg=name)
    assert "keep their initial values, as skip= says (3)" in caplog.text
    assert "got no value" not in caplog.text
    chained = load(SmartInit([SmartInit(values)], skip="own/.*"))
    np.testing.assert_array_equal(chained["own/kernel"], before["own/kernel"])
    with pytest.raises(CheckpointMismatchError, match=r"skip='fc/\.\*'\) matches no variable"):
        load(SmartInit(values, skip="fc/.*"))
