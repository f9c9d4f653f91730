"""Requests of many threads, flows over several devices, the predecessor's predictors."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from own_threads import threads
from small_training import SPECS, Do, Model, X, Y, config, train
from towerpack import CheckpointMismatchError, ConfigError, SpecError
from towerpack.callbacks import ModelSaver
from towerpack.checkpoint import load_checkpoint
from towerpack.dataflow import BatchData, DataFromArrays
from towerpack.inference import (
    BatchingPredictor,
    DatasetPredictor,
    OfflinePredictor,
    PredictConfig,
    Predictor,
)
from towerpack.nn import expose
from towerpack.training import SimpleTrainer, SmartInit, load_weights


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("run")
    train(directory, [ModelSaver()])
    return directory


@pytest.fixture(scope="module")
def predictor(run: Path) -> Predictor:
    return Predictor(Model(), run, outputs="out")


class Watched:
    """A predictor that notes its batches, and waits in each until it may go on."""

    def __init__(self, predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self.began, self.go = threading.Event(), threading.Event()
        compute = predictor.compute

        def watched(batch: Any) -> list[np.ndarray]:
            self.sizes.append(len(batch[0]))
            self.began.set()
            self.go.wait(60)
            if np.any(batch[0] == 99):
                raise ArithmeticError("99")
            return compute(batch)

        monkeypatch.setattr(predictor, "compute", watched)

    def first(self, predict: BatchingPredictor) -> Future[Any]:
        """Submit a request, and wait until it is computed: what comes now gathers."""
        future = predict.submit(X[0])
        assert self.began.wait(60)
        return future


def test_each_of_many_threads_gets_its_own(predictor: Predictor) -> None:
    whole = predictor(X)
    wrong: list[int] = []

    def client(number: int) -> None:
        for turn in range(20):
            i = (7 * number + turn) % len(X)
            if abs(predict(X[i]) - whole[i]) > 1e-5:
                wrong.append(i)

    with BatchingPredictor(predictor, max_batch=8, example=()) as predict:
        clients = [threading.Thread(target=client, args=(i,)) for i in range(16)]
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join(60)
        assert not wrong
        np.testing.assert_allclose(predict.submit(x=X[3].tolist()).result(), whole[3], atol=1e-6)
    assert not threads()


def test_what_comes_during_a_batch_is_the_next(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(predictor, monkeypatch)
    with BatchingPredictor(predictor, sizes=[1, 3, 10]) as predict:
        futures = [watched.first(predict), *(predict.submit(x) for x in X[1:13])]
        assert futures[5].cancel()
        watched.go.set()
        got = [f.result(60) for f in futures if not f.cancelled()]
    assert watched.sizes == [1, 10, 3]  # 1; ten of twelve, one of them cancelled; two
    watched.go.set()
    np.testing.assert_allclose(got, np.delete(predictor(X[:13]), 5), atol=1e-5)
    with pytest.raises(CancelledError):
        futures[5].result()
    with pytest.raises(ConfigError, match="must not be called after close"):
        predict.submit(X[0])


def test_an_error_reaches_the_request_that_caused_it(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(predictor, monkeypatch)
    with BatchingPredictor(predictor, max_batch=16) as predict:
        watched.first(predict)
        futures = [predict.submit(x) for x in [*X[:7], np.full(3, 99, np.float32), *X[7:9]]]
        futures += [predict.submit(X[0, :2]), predict.submit(), predict.submit(x=X[0], z=1)]
        watched.go.set()
        errors = [type(future.exception(60)) for future in futures]
    assert errors[:10] == [type(None)] * 7 + [ArithmeticError] + [type(None)] * 2
    assert errors[10:] == [SpecError] * 3


def test_full_means_that_submit_waits(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(predictor, monkeypatch)
    with BatchingPredictor(predictor, max_waiting=2) as predict:
        watched.first(predict)
        done = threading.Event()

        def submit() -> None:
            for x in X[:3]:
                predict.submit(x)
            done.set()

        thread = threading.Thread(target=submit)
        thread.start()
        assert not done.wait(0.2)
        watched.go.set()
        assert done.wait(60)
        thread.join()


@pytest.mark.parametrize("places", [1, 2, 5])
@pytest.mark.parametrize("devices", [(), ("CPU:0", "CPU:0")], ids=["one", "two"])
def test_many_threads_share_few_places(
    predictor: Predictor, places: int, devices: tuple[str, ...]
) -> None:
    """Whoever waits for a place is woken: a lost wake-up would leave its thread for ever."""
    whole = predictor(X)
    wrong: list[int] = []

    def client(number: int) -> None:
        for turn in range(12):
            i = (5 * number + turn) % len(X)
            if abs(predict(X[i]) - whole[i]) > 1e-5:
                wrong.append(i)

    predict = BatchingPredictor(predictor, sizes=[1, 2], max_waiting=places, devices=devices)
    clients = [threading.Thread(target=client, args=(i,), daemon=True) for i in range(8)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join(10)
    assert not any(thread.is_alive() for thread in clients), "threads wait for ever"
    predict.close()
    assert not wrong


def test_closing_wakes_those_that_wait_for_a_place(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(predictor, monkeypatch)
    predict = BatchingPredictor(predictor, max_waiting=1)
    futures = [watched.first(predict), predict.submit(X[1])]
    refused = list[ConfigError]()

    def submit() -> None:
        try:
            futures.append(predict.submit(X[2]))
        except ConfigError as error:
            refused.append(error)

    clients = [threading.Thread(target=submit, daemon=True) for _ in range(4)]
    closing = threading.Thread(target=predict.close, daemon=True)
    for thread in clients:
        thread.start()
    time.sleep(0.2)  # until they wait
    closing.start()
    for thread in clients:
        thread.join(5)
    assert len(refused) == 4
    watched.go.set()
    closing.join(20)
    assert not closing.is_alive()
    assert all(np.isfinite(future.result(0)) for future in futures)


def test_sizes_that_are_too_slow_are_left_out(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = predictor.compute
    sizes: list[int] = []

    def slow(batch: Any) -> list[np.ndarray]:
        sizes.append(len(batch[0]))
        time.sleep(0.0 if len(batch[0]) < 8 else 0.3)
        return compute(batch)

    monkeypatch.setattr(predictor, "compute", slow)
    with BatchingPredictor(predictor, max_batch=8, latency_s=0.5, example=[X[0]]) as predict:
        sizes.clear()
        for future in [predict.submit(x) for x in X]:
            future.result(60)
    assert max(sizes) <= 4


@pytest.mark.parametrize("settings", [{"max_batch": 0}, {"sizes": [0]}, {"max_waiting": 0}])
def test_settings_without_sense(predictor: Predictor, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must be at least 1"):
        BatchingPredictor(predictor, **settings)


def test_outputs_and_inputs_without_rows(run: Path) -> None:
    with BatchingPredictor(Predictor(Model(), run, outputs="cost")) as predict:
        with pytest.raises(SpecError, match="'cost' must have one row for each"):
            predict(X[0], Y[0])

    class Scaled(Model):
        def inputs(self) -> list[tf.TensorSpec]:
            return [*SPECS, tf.TensorSpec([], tf.float32, "scale")]

        def build_graph(self, x: tf.Tensor, y: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
            expose("scaled", x * scale)
            return super().build_graph(x, y)

    with pytest.raises(ConfigError, match="'scale' must be None, for batches"):
        BatchingPredictor(Predictor(Scaled(), run, outputs="scaled"))


# DatasetPredictor


def test_a_flow_in_its_order(predictor: Predictor) -> None:
    flow = BatchData(DataFromArrays(X), 5, remainder=True)
    dataset = DatasetPredictor(predictor, flow)
    assert len(dataset) == 10
    for parts in (list(dataset), list(dataset.get_result()), dataset.get_all_result()):
        np.testing.assert_allclose(np.concatenate(parts), predictor(X), atol=1e-6)
    assert not threads()


def test_an_error_comes_where_its_datapoint_stands(predictor: Predictor) -> None:
    def flow() -> Iterator[Any]:
        yield from (X[:2], X[2:3], X[:2, :1], X[:4])

    results = iter(DatasetPredictor(predictor, flow()))
    assert [len(next(results)), len(next(results))] == [2, 1]
    with pytest.raises(SpecError, match="wrong shape") as caught:
        next(results)
    assert "Datapoint 2" in caught.value.__notes__[0]
    assert not threads()


def test_several_devices(predictor: Predictor) -> None:
    """Two copies on one device; docs/inference.md has two devices."""
    two_devices = ["CPU:0", "CPU:0"]
    one, two = (predictor.on(device) for device in two_devices)
    [tensor] = two.tensors(tf.constant(X)).values()
    assert tensor.shape == (48,)
    two.variables["fc1/bias"].assign_add([1.0])
    np.testing.assert_allclose(two(X) - 1, one(X), atol=1e-6)
    flow = [(x[None],) for x in X]
    parts = list(DatasetPredictor(predictor, flow, devices=two_devices))
    np.testing.assert_allclose(np.concatenate(parts), predictor(X), atol=1e-6)
    with BatchingPredictor(predictor, max_batch=4, devices=two_devices) as predict:
        got = [future.result(60) for future in [predict.submit(x) for x in X]]
    np.testing.assert_allclose(got, predictor(X), atol=1e-6)
    for wrong in (
        lambda: predictor.on("GPU:77"),
        lambda: DatasetPredictor(predictor, [], devices="CPU:0"),
        lambda: DatasetPredictor(predictor, 5),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigError):
            wrong()


# Weights of elsewhere


def weights(run: Path) -> dict[str, np.ndarray]:
    return dict(load_checkpoint(run).model)


def test_the_predecessors_predictor(run: Path, predictor: Predictor, tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", **weights(run))
    for source in (
        run,
        load_checkpoint(run),
        SmartInit(tmp_path / "w.npz"),
        SmartInit(weights(run)),
    ):
        wanted = PredictConfig(model=Model(), session_init=source, output_names=["out"])
        [out] = OfflinePredictor(wanted)(X)
        np.testing.assert_array_equal(out, predictor(X))
    wanted = PredictConfig(
        tower_func=Model().build_graph,
        input_signature=SPECS,
        session_init=SmartInit(weights(run)),
        output_names=["out"],
    )
    np.testing.assert_array_equal(OfflinePredictor(wanted)(X)[0], predictor(X))
    with pytest.raises(ConfigError, match="must get weights"):
        OfflinePredictor(PredictConfig(model=Model(), output_names=["out"]))


def test_a_weight_without_a_value_is_an_error(run: Path) -> None:
    some = {name: w for name, w in weights(run).items() if name != "fc1/bias"}
    with pytest.raises(CheckpointMismatchError, match="no values for 1 variables") as caught:
        Predictor(Model(), SmartInit(some), outputs="out")
    assert "fc1/bias" in str(caught.value)
    with pytest.raises(ConfigError, match="need a run directory or a checkpoint"):
        Predictor(Model(), SmartInit(some), outputs="out", ema=True)


def test_load_weights(run: Path, predictor: Predictor) -> None:
    own = Predictor(Model(), run, outputs="out").on("CPU:0")
    zeros = {name: np.zeros_like(v) for name, v in weights(run).items()}
    assert load_weights(own, zeros) == list(own.variables)
    assert not own(X).any()
    load_weights(own.variables, run)
    np.testing.assert_array_equal(own(X), predictor(X))

    model = keras.Sequential([keras.layers.Dense(4, name="fc0"), keras.layers.Dense(1, name="fc1")])
    with pytest.raises(ConfigError, match=r"model with variables, but .* has none yet"):
        load_weights(model, run)
    model(X)
    assert len(load_weights(model, run)) == 4
    np.testing.assert_array_equal(model.layers[0].kernel.numpy(), weights(run)["fc0/kernel"])
    wrong = {"fc0/kernel": np.zeros((9, 9), np.float32), "b": np.ones(1, np.float32)}
    with pytest.raises(CheckpointMismatchError, match="do not fit"):
        load_weights(model, wrong)
    assert load_weights(model, wrong, ignore_mismatch=True, rename={"b": "fc1/bias"}) == [
        "fc1/bias"
    ]
    with pytest.raises(CheckpointMismatchError, match="the name of a variable"):
        load_weights(model, {"b": wrong["b"]}, ignore_mismatch=True)
    with pytest.raises(ConfigError, match=r"model with variables, but .* has none"):
        load_weights(object(), run)


def test_a_trainers_predictor_has_its_newest_weights(tmp_path: Path) -> None:
    made: list[Any] = []
    seen: list[float] = []

    def look(callback: Any) -> None:
        if not made:
            made.append(callback.trainer.get_predictor(["x"], ["out"]))
        seen.append(float(made[0](X)[0].sum()))

    trainer = SimpleTrainer(config(tmp_path, [Do("trigger", look), ModelSaver()]))
    with pytest.raises(ConfigError, match="available only after train"):
        trainer.get_predictor(outputs="out")
    trainer.train()
    assert seen[0] != seen[1]
    assert seen[1] == pytest.approx(float(Predictor(Model(), tmp_path, outputs="out")(X).sum()))


def test_warm_up(run: Path, predictor: Predictor) -> None:
    seconds = predictor.warm_up(sizes=[1, 4])
    assert list(seconds) == [1, 4]
    assert all(value > 0 for value in seconds.values())
    assert list(predictor.warm_up(X[0], sizes=[2])) == [2]
    with pytest.raises(SpecError, match="wrong shape"):
        predictor.warm_up(X[0, :1])
