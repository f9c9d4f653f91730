"""Statistics of batch normalisation that stay, of every kind of layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from scaling import sample
from small_training import Model, train
from towerpack import LayerError
from towerpack.nn import BatchNorm, BatchRenorm, FullyConnected, SpectralNorm, frozen_statistics
from towers import MODES, fill, numbers, runner, spec, tower_of, variables

HANGING = keras.layers.BatchNormalization(name="hanging")
LAYERS = {
    "named": lambda x: BatchNorm("named", x),
    "ghosts": lambda x: BatchNorm("ghosts", x, virtual_batch_size=4),
    "renorm": lambda x: BatchRenorm("renorm", x, 3.0, 5.0),
    "spot": lambda x: keras.layers.BatchNormalization(name="spot")(x),
    "hanging": lambda x: HANGING(x),
}
X = numbers(8, 6)


@pytest.mark.parametrize("mode", [m for m in MODES if m != "xla"])
@pytest.mark.parametrize("name", LAYERS)
def test_it_works_as_in_a_prediction(name: str, mode: str) -> None:
    layer = LAYERS[name]

    def build(x: tf.Tensor, regex: str = ".*moving_mean") -> Any:
        with frozen_statistics([regex]):
            return layer(x)

    frozen, free = tower_of(build, spec(8, 6)), tower_of(lambda x: build(x, "no"), spec(8, 6))
    for tower in (frozen, free):
        tower.trace(is_training=True)
        fill(tower)
    before = variables(frozen)
    predicted = runner(frozen, mode)(X)["y"]
    np.testing.assert_array_equal(runner(frozen, mode, is_training=True)(X)["y"], predicted)
    after = variables(frozen)
    assert all(np.array_equal(before[n], after[n]) for n in before)
    assert np.abs(runner(free, mode, is_training=True)(X)["y"] - predicted).max() > 0.1


class Backbone(Model):
    def __init__(self) -> None:
        super().__init__()
        layers = [keras.layers.Dense(4, name="dense"), keras.layers.BatchNormalization(name="bn")]
        self.net = keras.Sequential(layers)

    def build_graph(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        h = BatchNorm("base/bn", FullyConnected("base/fc", self.net(x), 4))
        out = FullyConnected("head", BatchNorm("bn", h), 1)
        return tf.reduce_mean((tf.squeeze(out, -1) - y) ** 2)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    return train(tmp_path_factory.mktemp("first"), model=Backbone(), max_epoch=1).get_weights()


@pytest.mark.parametrize(
    ("choice", "stays"),
    sample(
        [
            ({"frozen": ["net/.*", "base/.*"]}, ("net/", "base/")),
            ({"trainable": ["bn/.*", "head/.*"]}, ("net/", "base/")),
            ({"frozen": r"base/.*/(kernel|bias|gamma|beta)"}, ("base/fc", "base/bn/gamma")),
        ],
        at_least=2,
    ),
)
def test_a_run_leaves_what_is_frozen_bit_equal(
    choice: dict[str, Any],
    stays: tuple[str, ...],
    first: dict[str, np.ndarray],
    tmp_path: Path,
) -> None:
    trainer = train(tmp_path, init=first, model=Backbone(), max_epoch=1, **choice)
    after = trainer.get_weights()
    same = {name for name in first if np.array_equal(first[name], after[name])}
    assert same >= {name for name in first if name.startswith(stays)}
    moves = {"bn/moving_mean", "head/kernel"} | set(
        ["base/bn/moving_mean"] if "base/" not in stays else []
    )
    assert not same & moves


def test_what_cannot_be_frozen_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Spectral(Model):
        def build_graph(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            h = FullyConnected("fc", x, 3)
            bound = SpectralNorm("sn", h.variables.kernel)
            out = FullyConnected("head", x @ bound, 1)
            return tf.reduce_mean((tf.squeeze(out, -1) - y) ** 2)

    train(tmp_path / "a", model=Spectral(), max_epoch=1, frozen="(fc|sn)/.*")
    assert "Frozen variables that their layers still update: sn/u" in caplog.text
    with pytest.raises(LayerError, match=r"TrainConfig\(trainable=…\).*'haed/"):
        train(tmp_path / "b", model=Backbone(), max_epoch=1, trainable="haed/.*")
