"""What a prediction and an evaluation cost besides the model: Towerpack, a `tf.function`, Keras.

    python benchmarks/inference.py [--quick] [--rounds N] [--out DIR]

A network so small that nearly everything is overhead, 8 → 32 → 10. NumPy goes in and NumPy comes
out of `Predictor`, and of a `tf.function` of the same computation on variables of its own. An
`InferenceRunner` evaluates 200 batches of 64; so does a loop by hand around another `tf.function`.
All take turns in one process; what counts are ratios within a round. Aim: at most 1.1 times the
time of the bare function.

32 threads ask a `BatchingPredictor` for a datapoint each, as soon as they have their last answer;
then they call the `Predictor` itself, one by one. Once on the small network, and once on one of 6
million weights, 784 → 2048 → 2048 → 10, which a datapoint alone has to read as well as 32 together.
Aim: 5 times as many answers, and that the slowest of a hundred comes no later.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _measure as measure
import keras
import numpy as np
import tensorflow as tf

from towerpack.callbacks import (
    Callback,
    ClassificationError,
    InferenceRunner,
    ModelSaver,
    ScalarStats,
)
from towerpack.dataflow import DataFromList
from towerpack.inference import BatchingPredictor, Predictor
from towerpack.model import ModelDesc
from towerpack.nn import FullyConnected, expose
from towerpack.tower import TowerFunction
from towerpack.training import SimpleTrainer, TrainConfig

REPORTS = Path(__file__).parent / "reports"
AIM = 1.1
AIM_BATCHING = 5
OTHERS = [("bare", "a bare `tf.function`", AIM), ("keras", "Keras `predict`", 1.0)]
THREADS = 32
BATCH = 64
BATCHES = 200
PARTS = ("kernel", "bias")
SPECS = [tf.TensorSpec([None, 8], tf.float32, "x"), tf.TensorSpec([None], tf.int64, "y")]


class Model(ModelDesc):
    """Two layers."""

    def inputs(self) -> list[tf.TensorSpec]:
        return SPECS

    def build_graph(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        logits = FullyConnected("fc1", FullyConnected("fc0", x, 32, activation=tf.nn.relu), 10)
        expose("prob", tf.nn.softmax(logits))
        expose("incorrect", tf.argmax(logits, 1) != y)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))

    def optimizer(self) -> keras.optimizers.Optimizer:
        return keras.optimizers.Adam(1e-3)


class Bare:
    """The same by hand.

    Args:
        weights: Of the trained model, by name.
    """

    def __init__(self, weights: dict[str, np.ndarray]) -> None:
        self._w = {name: tf.Variable(value) for name, value in weights.items()}

    def _logits(self, x: tf.Tensor) -> tf.Tensor:
        hidden = tf.nn.relu(x @ self._w["fc0/kernel"] + self._w["fc0/bias"])
        return hidden @ self._w["fc1/kernel"] + self._w["fc1/bias"]

    @tf.function(input_signature=SPECS[:1])
    def prob(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.softmax(self._logits(x))

    @tf.function(input_signature=SPECS)
    def measures(self, x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        logits = self._logits(x)
        costs = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
        return tf.reduce_mean(costs), tf.argmax(logits, 1) != y

    def evaluate(self, batches: list[tuple[np.ndarray, np.ndarray]]) -> tuple[float, float]:
        cost = wrong = count = 0.0
        for x, y in batches:
            mean, incorrect = self.measures(x, y)
            cost += float(mean) * len(x)
            wrong += np.count_nonzero(incorrect.numpy())
            count += len(x)
        return cost / count, wrong / count


def keras_model(weights: dict[str, np.ndarray]) -> keras.Model:
    """The same as a model of Keras."""
    dense = keras.layers.Dense
    model = keras.Sequential([keras.Input([8]), dense(32, "relu"), dense(10, "softmax")])
    model.set_weights([weights[f"{layer}/{part}"] for layer in ("fc0", "fc1") for part in PARTS])
    return model


def seconds_of(call: Callable[[], Any], times: int) -> float:
    """Of one call, on average."""
    began = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - began) / times


def alternate(
    contenders: dict[str, Callable[[], Any]], *, rounds: int, times: int
) -> dict[str, list[float]]:
    """Seconds of each in each round; who begins changes."""
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(-1, rounds):  # the first one warms up
        for name, call in [*contenders.items()][:: 1 if number % 2 else -1]:
            # A call of Keras takes as long as a hundred others.
            seconds = seconds_of(call, max(1, times // 20) if name == "keras" else times)
            if number >= 0:
                found[name].append(seconds)
    return found


class Evaluations(Callback):
    """Lets both evaluate, once the model has been trained.

    Args:
        rounds: How often.
    """

    def __init__(self, batches: list[tuple[np.ndarray, np.ndarray]], rounds: int) -> None:
        self._batches = batches
        self._rounds = rounds
        self.runner = InferenceRunner(batches, [ScalarStats("cost"), ClassificationError()])
        self.found: dict[str, list[float]] = {}

    def trigger(self) -> None:
        bare = Bare(self.trainer.get_weights())
        self.runner.trigger()
        latest = self.trainer.monitors.latest
        both = latest("val/cost"), latest("val/error")
        np.testing.assert_allclose(both, bare.evaluate(self._batches), rtol=1e-5)
        ways = {"towerpack": self.runner.trigger, "bare": lambda: bare.evaluate(self._batches)}
        self.found = alternate(ways, rounds=self._rounds, times=1)


def measured(
    rounds: int, times: int, batches: int
) -> tuple[dict[str, dict[str, list[float]]], Predictor]:
    """Seconds of both contenders in each round, by what was done; and the predictor."""
    rng = np.random.default_rng(0)
    data = [
        (rng.normal(size=(BATCH, 8)).astype(np.float32), rng.integers(0, 10, BATCH))
        for _ in range(batches)
    ]
    evaluations = Evaluations(data, rounds)
    with tempfile.TemporaryDirectory() as directory:
        config = TrainConfig(
            model=Model(),
            dataflow=DataFromList(data),
            callbacks=[evaluations.runner, evaluations, ModelSaver()],
            extra_callbacks=[],
            monitors=[],
            steps_per_epoch=min(batches, 20),
            max_epoch=1,
            seed=0,
            run_dir=directory,
        )
        trainer = SimpleTrainer(config)
        trainer.train()
        predictor = Predictor(Model(), directory, outputs="prob")
    weights = trainer.get_weights()
    bare, of_keras = Bare(weights), keras_model(weights)
    found = {}
    for size in (1, BATCH):
        x = data[0][0][:size].copy()
        ways: dict[str, Callable[[], Any]] = {
            "towerpack": lambda x=x: predictor(x),
            "bare": lambda x=x: bare.prob(x).numpy(),
            "keras": lambda x=x, size=size: of_keras.predict(x, batch_size=size, verbose="0"),
        }
        for way in ways.values():
            np.testing.assert_allclose(way(), ways["bare"](), rtol=1e-5)
        found[f"`Predictor`, batch {size}"] = alternate(ways, rounds=rounds, times=times)
    found[f"`InferenceRunner`, {batches} batches of {BATCH}"] = evaluations.found
    return found, predictor


def large(width: int = 2048) -> Predictor:
    """A network whose weights do not fit into a cache."""

    def tower(x: tf.Tensor) -> tf.Tensor:
        for i in range(2):
            x = FullyConnected(f"fc{i}", x, width, activation=tf.nn.relu)
        expose("prob", tf.nn.softmax(FullyConnected("fc2", x, 10)))
        return tf.reduce_mean(x)

    specs = [tf.TensorSpec([None, 784], tf.float32, "x")]
    return Predictor.of_tower(TowerFunction(tower, specs), outputs="prob")


def asked(call: Callable[[np.ndarray], Any], size: int, seconds: float) -> dict[str, float]:
    """Answers a second to all threads, and after how long 99 of 100 were there."""
    x = np.random.default_rng(0).normal(size=(THREADS, size)).astype(np.float32)
    waits: list[list[float]] = [[] for _ in range(THREADS)]
    end = time.perf_counter() + seconds

    def client(number: int) -> None:
        began = 0.0
        while began < end:  # on a busy machine once, at least
            began = time.perf_counter()
            call(x[number])
            waits[number].append(time.perf_counter() - began)

    clients = [threading.Thread(target=client, args=(i,)) for i in range(THREADS)]
    began = time.perf_counter()
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    every = [wait for own in waits for wait in own]
    rate = len(every) / (time.perf_counter() - began)
    return {"rate": rate, "p50_s": np.quantile(every, 0.5), "p99_s": np.quantile(every, 0.99)}


def batched(small: Predictor, rounds: int, seconds: float) -> dict[str, dict[str, list[Any]]]:
    """What 32 threads see of both ways, in each round; who begins changes."""
    found: dict[str, dict[str, list[Any]]] = {}
    for name, predictor in (("8 → 32 → 10", small), ("784 → 2048 → 2048 → 10", large())):
        size = int(predictor.specs[0].shape[1])
        own = found[name] = {"batched": [], "one by one": []}
        with BatchingPredictor(predictor, max_batch=THREADS, example=()) as predict:
            ways = {"batched": predict, "one by one": lambda x, p=predictor: p(x[None])}
            for number in range(rounds):
                for way in [*ways][:: 1 if number % 2 else -1]:
                    own[way].append(asked(ways[way], size, seconds))
    return found


def report(found: dict[str, Any]) -> str:
    """Everything in words and a table."""
    rows, verdicts = [], []
    for name, seconds in found["seconds"].items():
        row = [name, measure.digits(1e6 * statistics.median(seconds["towerpack"]))]
        for other, title, aim in OTHERS:
            if other not in seconds:
                row += ["", ""]
                continue
            pairs = zip(seconds["towerpack"], seconds[other], strict=True)
            ratios = [ours / theirs for ours, theirs in pairs]
            ratio = measure.Ratio(statistics.median(ratios), min(ratios), max(ratios))
            row += [measure.digits(1e6 * statistics.median(seconds[other])), str(ratio)]
            met = "met" if ratio.median <= aim else "**not met**"
            verdicts.append(f"- {met}: time ≤ {aim:g} × {title}: {name}: {ratio}")
        rows.append(row)
    rounds = len(next(iter(found["seconds"].values()))["bare"])
    threaded, threaded_verdicts = _threads_report(found["threads"])
    parts = [
        "# What a prediction costs besides the model",
        f"`{found['command']}`",
        measure.described(found["circumstances"]),
        f"One process, in turns, {rounds} rounds. Medians; ratios are taken within a round and "
        "given as median (lowest–highest). NumPy in, NumPy out.",
        measure.table(
            ["", "Towerpack, µs", *(cell for _, t, _ in OTHERS for cell in (f"{t}, µs", "ratio"))],
            rows,
        ),
        "\n".join(verdicts),
        f"{THREADS} threads, each of which asks for one datapoint after the other: answers a "
        "second and, in milliseconds, the wait for half and for 99 of 100 of them.",
        threaded,
        "\n".join(threaded_verdicts),
    ]
    return "\n\n".join(parts) + "\n"


def _threads_report(found: dict[str, dict[str, list[Any]]]) -> tuple[str, list[str]]:
    rows, verdicts = [], []
    for name, ways in found.items():
        ratios = {}
        for key in ("rate", "p99_s"):
            pairs = zip(ways["batched"], ways["one by one"], strict=True)
            values = [ours[key] / theirs[key] for ours, theirs in pairs]
            ratios[key] = measure.Ratio(statistics.median(values), min(values), max(values))
        for way, turns in ways.items():
            medians = {key: statistics.median(turn[key] for turn in turns) for key in turns[0]}
            waits = [measure.digits(1e3 * medians[key]) for key in ("p50_s", "p99_s")]
            rows.append([f"{name}, {way}", measure.digits(medians["rate"]), *waits])
        met = "met" if ratios["rate"].median >= AIM_BATCHING else "**not met**"
        verdicts.append(f"- {met}: answers ≥ {AIM_BATCHING} × one by one: {name}: {ratios['rate']}")
        met = "met" if ratios["p99_s"].median <= 1 else "**not met**"
        verdicts.append(f"- {met}: 99 of 100 answers ≤ as late: {name}: {ratios['p99_s']}")
    return measure.table(["", "answers/s", "p50, ms", "p99, ms"], rows), verdicts


def main() -> None:
    """Measure, print, write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="does it run?")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--out", type=Path, default=REPORTS, help="directory for the report")
    options = parser.parse_args()
    circumstances = measure.circumstances(["tensorflow", "keras", "numpy"])
    rounds, times, batches = (2, 2, 3) if options.quick else (options.rounds, 200, BATCHES)
    seconds, predictor = measured(rounds, times, batches)
    threads = batched(predictor, min(rounds, 9), 0.05 if options.quick else 1.0)
    found = {
        "command": shlex.join(["python", "benchmarks/inference.py", *sys.argv[1:]]),
        "circumstances": circumstances,
        "seconds": seconds,
        "threads": threads,
    }
    text = report(found)
    print(text)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "inference.md").write_text(text)
    (options.out / "inference.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
