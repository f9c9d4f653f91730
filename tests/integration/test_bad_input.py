"""Bad input: a clear error, nothing lost, nothing left behind, and the run can go on."""

from __future__ import annotations

import gc
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import keras
import numpy as np
import pytest
import tensorflow as tf

from own_threads import threads
from processes import wait_until
from scaling import sample
from small_training import LINE, SPECS, Model, PacedBy, Recorded, X, Y, assert_same, train
from towerpack import (
    CheckpointError,
    CheckpointMismatchError,
    LayerError,
    MapError,
    NumericsError,
    SpecError,
)
from towerpack.callbacks import (
    Callback,
    HumanHyperParamSetter,
    InferenceRunner,
    ModelSaver,
    PeriodicTrigger,
    ScalarStats,
)
from towerpack.callbacks.monitors import Monitor
from towerpack.checkpoint import list_checkpoints, load_checkpoint
from towerpack.dataflow import DataFromList, MapData
from towerpack.inputs import FeedInput, QueueInput, TFDatasetInput
from towerpack.nn import BatchNorm, FullyConnected, summary
from towerpack.training import SimpleTrainer
from warm_python import warm_python

pytestmark = pytest.mark.timeout(120)
STEPS, EPOCHS = 6, 3


@pytest.fixture(autouse=True, scope="module")
def nothing_to_collect() -> None:
    """Frees whole networks of tests before: else a thread of ours might, for half a minute."""
    gc.collect()


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert wait_until(lambda: not threads(), 60), threads()


def batches(x: np.ndarray = X, y: np.ndarray = Y) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(x[i : i + 8], y[i : i + 8]) for i in range(0, 48, 8)]


def with_bad_rows(array: np.ndarray, *rows: int, value: float = np.nan) -> np.ndarray:
    bad = array.copy()
    bad[list(rows)] = value
    return bad


def saver() -> list[Callback]:
    return [PeriodicTrigger(ModelSaver(), every_k_steps=2)]


def run(run_dir: Path, data: Any, **kwargs: Any) -> SimpleTrainer:
    return train(run_dir, saver(), data=data, steps_per_epoch=STEPS, max_epoch=EPOCHS, **kwargs)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> SimpleTrainer:
    return run(tmp_path_factory.mktemp("undisturbed"), FeedInput(DataFromList(batches())))


def assert_goes_on(run_dir: Path, undisturbed: SimpleTrainer, flow: Any = None) -> None:
    """What was saved is valid, and the run ends as if nothing had happened."""
    flow = DataFromList(batches()) if flow is None else flow
    if (run_dir / "checkpoints").exists():
        assert all(row.valid for row in list_checkpoints(run_dir))
    mended = run(run_dir, FeedInput(flow))
    assert_same(mended.get_weights(), undisturbed.get_weights())


def parts(error: BaseException) -> str:
    """The message, which must have all of its parts."""
    text = str(error)
    labels = [line[2:11].strip() for line in text.splitlines() if line.startswith("  ")]
    for label in ("got", "expected", "to fix"):
        assert label in labels, text
    return text


# What is wrong with the datapoint at position 4, the error and what its message names.
BAD: dict[str, tuple[Any, list[str]]] = {
    "shape": ((np.zeros((8, 4), np.float32), Y[:8]), ["Datapoint 4", "'x'", "[8, 4]", "[None, 3]"]),
    "rank": ((np.zeros(3, np.float32), Y[:8]), ["Datapoint 4", "'x'", "BatchData"]),
    "dtype": ((X[:8].astype(np.complex64), Y[:8]), ["complex64", "float32", "astype"]),
    "number": ((X[:8],), ["tuple of 1", "['x', 'y']", "SelectComponent"]),
    "name": ({"x": X[:8], "label": Y[:8]}, ["'y'", "label"]),
}


@pytest.mark.parametrize(
    ("fault", "source"), [*((fault, FeedInput) for fault in BAD), ("shape", QueueInput)]
)
def test_a_datapoint_that_does_not_fit(
    undisturbed: SimpleTrainer, tmp_path: Path, fault: str, source: Callable[[Any], Any]
) -> None:
    bad, words = BAD[fault]
    datapoints: list[Any] = batches()
    datapoints[4] = bad
    recorded = Recorded()
    with pytest.raises(SpecError) as caught:
        train(
            tmp_path,
            [*saver(), recorded],
            data=source(DataFromList(datapoints)),
            steps_per_epoch=STEPS,
            max_epoch=EPOCHS,
            model=Model() if fault == "shape" else LINE,
        )
    text = parts(caught.value)
    assert "pipeline  DataFromList" in text
    for word in words:
        assert word in text
    assert recorded.log[-1][0] == "after_train"
    if fault == "shape":
        assert_goes_on(tmp_path, undisturbed)


def broken(datapoint: Any) -> Any:
    x, _ = datapoint
    if x is batches_with_a_mark[4][0]:
        raise ZeroDivisionError("the user's own")
    return datapoint


batches_with_a_mark = batches()


@pytest.mark.parametrize("source", sample([QueueInput, FeedInput]))
def test_a_map_function_that_raises(
    undisturbed: SimpleTrainer, tmp_path: Path, source: Callable[[Any], Any]
) -> None:
    with pytest.raises(MapError, match="the user's own") as caught:
        run(tmp_path, source(MapData(DataFromList(batches_with_a_mark), broken)))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert "MapData(broken)" in str(caught.value)
    assert_goes_on(tmp_path, undisturbed, MapData(DataFromList(batches()), lambda batch: batch))


def test_a_bad_datapoint_in_an_evaluation(tmp_path: Path) -> None:
    bad = InferenceRunner(DataFromList([(X[:8, :2], Y[:8])]), ScalarStats("cost"))
    with pytest.raises(SpecError) as caught:
        train(tmp_path, [bad], model=LINE, dataflow=DataFromList(batches()))
    assert "pipeline" in parts(caught.value)


# ---------------------------------------------------------------------- NaN


class Normalised(Model):
    """Has variables that the forward pass itself changes."""

    def __init__(self) -> None:
        super().__init__()
        self.keras_part = keras.Sequential(
            [keras.Input([3]), keras.layers.BatchNormalization(), keras.layers.Dropout(0.1)]
        )

    def build_graph(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        # No relu: TensorFlow's gives 0 for NaN, and the cost would be finite.
        out = FullyConnected("fc", BatchNorm("bn", self.keras_part(x)), 1)
        return tf.reduce_mean(tf.square(tf.squeeze(out, -1) - y))


def a_dataset(flow: DataFromList) -> Any:
    return TFDatasetInput(
        tf.data.Dataset.from_tensor_slices(tuple(map(np.stack, zip(*flow, strict=True))))
    )


@pytest.mark.parametrize(
    ("steps", "source"), sample([(3, QueueInput), (1, QueueInput), (3, a_dataset)])
)
def test_a_cost_that_is_not_finite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, source: Any
) -> None:
    monkeypatch.setattr("towerpack.training.loop.loop.Pace", PacedBy)
    monkeypatch.setattr(PacedBy, "fixed", steps)
    bad = with_bad_rows(X, 35)  # In the fifth batch.
    flows = {"bad": DataFromList(batches(bad)), "good": DataFromList(batches())}
    whole = run(tmp_path / "whole", source(flows["good"]), model=Normalised())
    four = load_checkpoint(tmp_path / "whole/checkpoints/step-00000004").model
    trainer = SimpleTrainer(config_of(tmp_path / "run", source(flows["bad"]), model=Normalised()))
    with pytest.raises(NumericsError, match="NaN or infinite at step 5") as caught:
        trainer.train()
    text = parts(caught.value)
    assert "'x' has 3 such values" in text
    file = tmp_path / "run" / "nonfinite-step-00000005.npz"
    assert str(file) in text
    with np.load(file) as batch:
        np.testing.assert_array_equal(batch["x"], bad[32:40])
        np.testing.assert_array_equal(batch["y"], Y[32:40])
    # The bad step has changed nothing: no weight, no moving average, no random state.
    assert_same(trainer.get_weights(), four)
    assert int(trainer._run.opened.step_variable.numpy()) == trainer.global_step == 4
    # Nothing is lost: with the data mended the run goes on from there.
    assert load_checkpoint(tmp_path / "run").step == 4
    if source is a_dataset:  # The bad batch was in a buffer, and so in the checkpoint.
        return
    mended = run(tmp_path / "run", source(flows["good"]), model=Normalised())
    assert_same(mended.get_weights(), whole.get_weights())


def config_of(run_dir: Path, data: Any, callbacks: Any = None, **kwargs: Any) -> Any:
    from small_training import config

    given = saver() if callbacks is None else callbacks
    return config(run_dir, given, data=data, steps_per_epoch=STEPS, max_epoch=EPOCHS, **kwargs)


def test_the_first_cost_is_not_finite_and_outputs_are_asked_for(tmp_path: Path) -> None:
    recorded = Recorded("large", "out", "cost")
    with pytest.raises(NumericsError, match="step 1"):
        train(tmp_path, [recorded], dataflow=DataFromList(batches(y=with_bad_rows(Y, 0))))
    assert recorded.outputs == []
    assert [hook for hook, _, _ in recorded.log] == [
        "before_train", "before_epoch", "before_step", "after_call", "after_train"
    ]  # fmt: skip


def test_hooks_of_the_steps_before_one_that_is_not_finite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("towerpack.training.loop.loop.Pace", PacedBy)
    recorded = Recorded("cost", "out", "large", "fc0/output")
    with pytest.raises(NumericsError, match="step 2"):
        train(tmp_path, [recorded], dataflow=DataFromList(batches(y=with_bad_rows(Y, 8))))
    assert [hook for hook, _, _ in recorded.log] == [
        "before_train", "before_epoch", "before_step", "after_step", "trigger_step", "after_call",
        "after_train"
    ]  # fmt: skip


def test_who_does_not_mind_goes_on_without_the_batch(tmp_path: Path) -> None:
    class PassOver(Callback):
        bad = 0

        def setup(self, trainer: Any) -> None:
            trainer.stop_on_nonfinite()

        def after_call(self) -> None:
            self.bad += self.trainer.nonfinite() is not None

    bad = with_bad_rows(Y, 9, value=np.inf)
    good = [b for i, b in enumerate(batches()) if i != 1]
    left_out = train(tmp_path / "b", dataflow=DataFromList(good), steps_per_epoch=5)
    # The position in the data counts the batch that was passed over.
    for until in (1, 2):
        callback = PassOver()
        parts = train(
            tmp_path / "c",
            [callback, ModelSaver()],
            dataflow=DataFromList(batches(y=bad)),
            max_epoch=until,
            steps_per_epoch=5,
            extra_callbacks=[],
        )
        assert callback.bad == 1
    assert_same(parts.get_weights(), left_out.get_weights())


def test_histograms_of_a_step_that_was_not_applied_are_left_out(tmp_path: Path) -> None:
    class Drawn(Model):
        def build_graph(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            summary.histogram("y", y)
            return super().build_graph(x, y)

    class Histograms(Monitor):
        steps: ClassVar[list[int]] = []

        def put_histogram(self, name: str, values: np.ndarray, step: int) -> None:
            self.steps.append(step)

    bad = [*batches(), *batches(y=with_bad_rows(Y, 47))]
    with pytest.raises(NumericsError, match="step 12"):
        train(tmp_path, model=Drawn(), dataflow=DataFromList(bad), steps_per_epoch=6,
              monitors=[Histograms()])  # fmt: skip
    assert Histograms.steps == [6]


# ---------------------------------------------------------------------- checkpoints


def test_corrupt_checkpoints(
    undisturbed: SimpleTrainer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def stop(callback: Callback) -> None:
        raise KeyError

    from small_training import Do

    with pytest.raises(KeyError):
        train(tmp_path, [*saver(), Do("trigger_step", stop, 7)],
              dataflow=DataFromList(batches()), max_epoch=EPOCHS)  # fmt: skip
    steps = tmp_path / "checkpoints"
    assert [row.step for row in list_checkpoints(tmp_path)] == [2, 4, 6]
    # One bit, and half of a file.
    file = steps / "step-00000006" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 4
    file.write_bytes(content)
    state = steps / "step-00000004" / "state.json"
    os.truncate(state, state.stat().st_size // 2)
    (steps / "step-00000008.tmp-1").mkdir()  # Half written.
    mended = run(tmp_path, FeedInput(DataFromList(batches())))
    assert_same(mended.get_weights(), undisturbed.get_weights())
    for name in ("step-00000006", "step-00000004"):
        assert f"Skipped checkpoint {steps / name}" in caplog.text
    assert "Resumed at step 2" in caplog.text
    # None is valid: no silent start from nothing.
    for found in steps.glob("step-*/manifest.json"):
        found.write_text("{}")
    with pytest.raises(CheckpointError, match="contains no valid checkpoint") as caught:
        run(tmp_path, FeedInput(DataFromList(batches())))
    assert "resume='never'" in parts(caught.value)


def test_a_checkpoint_of_another_model(tmp_path: Path) -> None:
    train(tmp_path, [ModelSaver()], max_epoch=1)
    before = sorted(os.listdir(tmp_path / "checkpoints"))

    def other(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        h = FullyConnected("fc", FullyConnected("fc0", x, 5), 4)
        return tf.reduce_mean(tf.square(tf.squeeze(FullyConnected("fc1", h, 1), -1) - y))

    model = (SPECS, other, lambda: keras.optimizers.SGD(0.05))
    with pytest.raises(CheckpointMismatchError, match="belongs to another model") as caught:
        train(tmp_path, [ModelSaver()], model=model)
    text = parts(caught.value)
    assert "fc0/kernel: has float32 [3, 4], needs float32 [3, 5]" in text
    assert "fc/kernel" in text
    with pytest.raises(CheckpointMismatchError, match="optimizer"):
        train(tmp_path, model=Model(lambda: keras.optimizers.Adam(0.05)))
    assert sorted(os.listdir(tmp_path / "checkpoints")) == before
    assert train(tmp_path, [ModelSaver()], max_epoch=1).was_complete


# ---------------------------------------------------------------------- the model, the live file


def test_a_layer_name_used_twice(tmp_path: Path) -> None:
    def twice(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(FullyConnected("fc", FullyConnected("fc", x, 3), 3))

    with pytest.raises(LayerError, match="'fc'") as caught:
        train(tmp_path, model=(SPECS, twice, lambda: keras.optimizers.SGD(0.1)))
    assert "to fix" in str(caught.value)


def test_an_unknown_name_in_hyper_yaml(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "hyper.yaml").write_text("learning_rat: 0.5\nlearning_rate: 0.01\n")
    (tmp_path / "run.json").write_text(
        json.dumps({"starts": [{"unix_time": 0, "command": ["train.py"]}]})
    )
    trainer = train(tmp_path, [HumanHyperParamSetter()], model=LINE)
    assert trainer.complete
    assert trainer.hyper_param("learning_rate").get() == pytest.approx(0.01)
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    (warning,) = [w for w in warnings if "hyper.yaml" in w]
    assert "learning_rat" in warning
    assert "Did you mean 'learning_rate'?" in warning


# ---------------------------------------------------------------------- programs

PROGRAM = """
    import resource, signal, sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[1])
    import numpy as np
    import keras
    from small_training import *
    from towerpack.callbacks import ModelSaver
    from towerpack.dataflow import DataFromList
    where, how = Path(sys.argv[2]), sys.argv[3]
    batches = [(X[i : i + 8], Y[i : i + 8]) for i in range(0, 48, 8)]
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def limit(callback):
        callback.trainer._saves.store.wait()
        # Files may be as large as those of the first checkpoint without its data, no larger.
        resource.setrlimit(resource.RLIMIT_FSIZE, (600, resource.RLIM_INFINITY))

    callbacks = [ModelSaver()]
    if how == "full":
        callbacks.append(Do("after_step", limit, 8))
    if how == "nan":
        batches[4] = (batches[4][0], batches[4][1] * np.float32(np.nan))
    if how == "shape":
        batches[4] = (batches[4][0][:, :2], batches[4][1])
    trainer = train(where, callbacks, dataflow=DataFromList(batches), max_epoch=3)
    np.savez(where / "weights.npz", **trainer.get_weights())
"""


def program(run_dir: Path, how: str) -> subprocess.CompletedProcess[str]:
    import textwrap

    support = str(Path(__file__).parents[1] / "support")
    command = [*warm_python(), "-c", textwrap.dedent(PROGRAM), support, str(run_dir), how]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def test_a_full_disk_ends_the_program_with_an_error(
    undisturbed: SimpleTrainer, tmp_path: Path
) -> None:
    done = program(tmp_path, "full")
    assert done.returncode == 1, done.stderr
    assert "The checkpoint of step 12 was not saved" in done.stderr
    for part in ("  got  ", " MB to write, ", "  to fix  ", "Intact: step-00000006"):
        assert part in done.stderr
    assert [row.step for row in list_checkpoints(tmp_path) if row.valid] == [6]
    assert not list((tmp_path / "checkpoints").glob("*tmp*"))
    done = program(tmp_path, "mended")
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "weights.npz") as weights:
        assert_same(dict(weights), undisturbed.get_weights())


@pytest.mark.slow
@pytest.mark.parametrize("how", sample(["nan", "shape"]))
def test_exit_codes(tmp_path: Path, how: str) -> None:
    done = program(tmp_path, how)
    assert done.returncode == 1, done.stderr
    last = {"nan": "NumericsError: The cost is NaN", "shape": "SpecError: Datapoint 4"}[how]
    assert last in done.stderr
    assert done.stderr.count("Traceback (most recent call last)") == 1


def test_nan_weights_behind_a_finite_cost_are_not_saved(tmp_path: Path) -> None:
    # tf.nn.relu gives 0 for NaN on a CPU: the cost stays finite, the first weights become NaN.
    bad = with_bad_rows(X, 20)
    with pytest.raises(NumericsError) as caught:
        run(tmp_path, FeedInput(DataFromList(batches(bad))), model=Model(rate=0.0))
    assert "Weights are NaN" in str(caught.value)
    assert "fc0/kernel" in parts(caught.value)
    for row in list_checkpoints(tmp_path):
        saved = load_checkpoint(row.path).model
        assert not any(np.isnan(saved[name]).any() for name in saved)
