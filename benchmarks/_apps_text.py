"""Contenders of `apps.py` that are about text, one to a process: PART-ours or PART-theirs."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from _fitting import fit
from _measure import Gate

from towerpack.apps.text_generation import TextGenerationConfig, TextGenerationModeler, TextInputter
from towerpack.callbacks import Callback
from towerpack.dataflow import DataFromList
from towerpack.inference import Predictor
from towerpack.nn import expose
from towerpack.tower import TowerFunction
from towerpack.training import SimpleTrainer, TrainConfig

PART, CONTENDER = sys.argv[1].split("-")
VOCABULARY, UNITS, STREAMS, TIME, LENGTH = 87, 256, 50, 64, 200
STEPS = 10


def modeler(folder: Path) -> TextGenerationModeler:
    """Of a text that has so many characters."""
    text = "".join(map(chr, range(33, 33 + VOCABULARY - 3)))
    (folder / "text.txt").write_text(text * 200)
    data: dict[str, Any] = {"path": str(folder), "batch_size": STREAMS, "steps": TIME}
    config = TextGenerationConfig.model_validate(
        {
            "data": data,
            "optimizer": {"name": "adam", "learning_rate": 1e-3},
            "sample": {"length": LENGTH, "temperature": 1.0},
        }
    )
    return TextGenerationModeler(config, TextInputter(config))


def batch() -> np.ndarray:
    return np.random.default_rng(0).integers(3, VOCABULARY, (STREAMS, TIME + 1), np.int32)


def train_ours(folder: Path) -> None:
    gate = Gate(STEPS)

    class Turns(Callback):
        def before_train(self) -> None:
            gate.open()

        def trigger_epoch(self) -> None:
            if not gate.epoch_done(lambda: self.trainer.monitors.latest("cost")):
                self.trainer.request_stop()

    ids = batch()
    datapoint = (ids[:, :-1], ids[:, 1:], np.zeros(STREAMS, np.int32), np.ones(STREAMS, np.float32))
    config = TrainConfig(
        model=modeler(folder),
        dataflow=DataFromList([datapoint]),
        callbacks=[Turns()],
        steps_per_epoch=STEPS,
        max_epoch=10**9,
        seed=0,
        run_dir=folder / "run",
    )
    SimpleTrainer(config).train()


def train_theirs(folder: Path) -> None:
    del folder
    token = keras.Input(batch_shape=(STREAMS, TIME), dtype="int32")
    x = keras.layers.Embedding(VOCABULARY, UNITS)(token)
    for _ in range(2):
        x = keras.layers.LSTM(UNITS, return_sequences=True, stateful=True)(x)
    net = keras.Model(token, keras.layers.Dense(VOCABULARY)(x))
    net.compile(keras.optimizers.Adam(1e-3), keras.losses.SparseCategoricalCrossentropy(True))
    ids = batch()
    data = tf.data.Dataset.from_tensors((ids[:, :-1], ids[:, 1:])).repeat(STEPS).prefetch(2)
    fit(net, data, STEPS)


def sample(folder: Path, text: Callable[[TextGenerationModeler], Callable[[], float]]) -> None:
    """Answer turns of one text each."""
    gate, once = Gate(1), text(modeler(folder))
    going = gate.open()
    while going:
        found = once()
        going = gate.epoch_done(lambda found=found: found)


def text_ours(model: TextGenerationModeler) -> Callable[[], float]:
    sampler = model.for_inference()
    tower = TowerFunction(sampler.build_graph, sampler.inputs())
    predictor = Predictor.of_tower(tower, outputs="generated")
    return lambda: len(predictor(np.array([b"a"], object))[0].decode())


def text_theirs(model: TextGenerationModeler) -> Callable[[], float]:
    def step(token: tf.Tensor, c: tf.Tensor, h: tf.Tensor) -> None:
        before = {f"{name}{i}": x[:, i] for name, x in (("c", c), ("h", h)) for i in range(2)}
        logits, state = model.network.net(token, VOCABULARY, before)
        expose("probabilities", tf.nn.softmax(logits[:, 0]))
        expose("c_after", tf.stack([state["c0"], state["c1"]], 1))
        expose("h_after", tf.stack([state["h0"], state["h1"]], 1))

    shape = [None, 2, UNITS]
    specs = [tf.TensorSpec([None, 1], tf.int32, "token")]
    specs += [tf.TensorSpec(shape, tf.float32, name) for name in ("c", "h")]
    tower = TowerFunction(step, specs)
    predictor = Predictor.of_tower(tower, outputs=["probabilities", "c_after", "h_after"])
    rng = np.random.default_rng(0)

    def once() -> float:
        c = h = np.zeros([1, 2, UNITS], np.float32)
        ids = [3]
        for _ in range(LENGTH):
            probabilities, c, h = predictor(np.array([[ids[-1]]], np.int32), c, h)
            reached = np.cumsum(probabilities[0, 3:])
            ids.append(3 + int(np.searchsorted(reached, rng.random() * reached[-1])))
        return len("".join(model.inputter.vocabulary.tokens[i] for i in ids[1:]))

    return once


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        if PART == "lstm":
            {"ours": train_ours, "theirs": train_theirs}[CONTENDER](Path(name))
        else:
            sample(Path(name), {"ours": text_ours, "theirs": text_theirs}[CONTENDER])
