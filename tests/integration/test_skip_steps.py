"""`TrainConfig(skip_steps=)`: the data of these steps are consumed, and nothing else happens."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from scaling import sample
from small_training import (
    LINE,
    SPECS,
    Do,
    Model,
    Recorded,
    X,
    Y,
    assert_resumes,
    assert_same,
    stop,
    train,
)
from towerpack import ConfigError
from towerpack.callbacks import (
    MinSaver,
    ModelSaver,
    PeriodicTrigger,
    ScheduledHyperParamSetter,
)
from towerpack.checkpoint import load_checkpoint
from towerpack.dataflow import BatchData, DataFromArrays, FilterData, PrefetchData, ShuffleData
from towerpack.inputs import (
    FeedInput,
    QueueInput,
    SplitInput,
    StagingInput,
    TensorInput,
    TFDatasetInput,
)
from towerpack.nn import expose
from towerpack.training import (
    AccumulateGradients,
    NoOpTrainer,
    TrainConfig,
)
from warm_python import warm_python

pytestmark = pytest.mark.usefixtures("nothing_to_collect", "no_thread_is_left")
SKIPPED = [2, (5, 9), (12, 12)]  # in two epochs of six steps
LEFT = [1, 3, 4, 10, 11]


def shuffled() -> Any:
    return ShuffleData(DataFromArrays(X, Y))


SOURCES: dict[str, Callable[[], Any]] = {
    "feed": lambda: FeedInput(BatchData(shuffled(), 8)),
    "queue": lambda: QueueInput(BatchData(shuffled(), 8), 3),
    "workers": lambda: QueueInput(PrefetchData(BatchData(shuffled(), 8), 2)),
    "no plan": lambda: QueueInput(BatchData(FilterData(shuffled(), lambda dp: dp[1] < 1), 8), 3),
    "tensor": lambda: TensorInput(
        lambda step: [tf.random.stateless_normal([8, *d], [7, step]) for d in ([3], [])]
    ),
    "dataset": lambda: TFDatasetInput(
        tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(20, seed=1).batch(8)
    ),
    "staged": lambda: StagingInput(SOURCES["no plan"](), 2, "CPU:0"),
    "split": lambda: SplitInput(SOURCES["queue"]()),
}


def shown(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    expose("x", x)
    return LINE[1](x, y)


class Batches(Recorded):
    """The inputs of each step, by its number."""

    def __init__(self) -> None:
        super().__init__("x")

    def by_step(self) -> dict[int, np.ndarray]:
        steps = [step for hook, _, step in self.log if hook == "after_step"]
        return dict(zip(steps, [np.asarray(o["x"]) for o in self.outputs], strict=True))


def batches(run_dir: Path, **settings: Any) -> dict[int, np.ndarray]:
    seen = Batches()
    train(run_dir, [seen], steps_per_epoch=6, model=(SPECS, shown, LINE[2]), **settings)
    return seen.by_step()


@pytest.mark.parametrize("name", sample(list(SOURCES), at_least=4))
def test_other_steps_get_the_batches_that_they_would_have_got(tmp_path: Path, name: str) -> None:
    whole = batches(tmp_path / "a", data=SOURCES[name]())
    parts = batches(tmp_path / "b", data=SOURCES[name](), skip_steps=SKIPPED)
    gc.collect()  # the idle threads of PrefetchData
    assert [*parts] == LEFT and [*whole] == [*range(1, 13)]
    assert_same({str(s): parts[s] for s in LEFT}, {str(s): whole[s] for s in LEFT})


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"eager": True},
        {"xla": True},
        {"model": lambda: Model(lambda: AccumulateGradients(keras.optimizers.Adam(0.05), 3))},
        {"dataflow": BatchData(FilterData(shuffled(), lambda dp: dp[1] < 1), 8)},
    ],
)
def test_a_resumed_run_equals_an_undisturbed_one(tmp_path: Path, settings: Any) -> None:
    # It ends at step 7; then another time at the epoch's end within skipped steps.
    settings = {"steps_per_epoch": 6, "max_epoch": 3, **settings}
    assert_resumes(tmp_path, skip_steps=[(3, 5), (9, 14)], **settings)
    settings["model"] = settings.get("model", Model)()
    ends = Do("trigger", stop, 12)
    again = {"skip_steps": [(3, 5), (9, 14)], **settings}
    train(tmp_path / "twice", [ModelSaver(), ends], **again)
    assert load_checkpoint(tmp_path / "twice").step == 12


class Signalled(FeedInput):
    """Sends SIGTERM to the process within the skipped steps, which go by one by one."""

    calls = 0

    def reserve(self, steps: int, poll: Any) -> int:
        self.calls += 1
        if self.calls == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().reserve(1, poll)


def test_a_signal_within_skipped_steps_saves_there(tmp_path: Path) -> None:
    flow = BatchData(FilterData(shuffled(), lambda dp: True), 8)
    settings: dict[str, Any] = {"steps_per_epoch": 6, "skip_steps": [(3, 9)]}
    whole = train(tmp_path / "whole", [ModelSaver()], data=FeedInput(flow), **settings)
    with pytest.raises(SystemExit) as ended:
        train(tmp_path / "parts", [ModelSaver()], data=Signalled(flow), **settings)
    assert ended.value.code == 143
    assert 3 <= load_checkpoint(tmp_path / "parts").step <= 6
    parts = train(tmp_path / "parts", [ModelSaver()], data=FeedInput(flow), **settings)
    assert_same(parts.get_weights(), whole.get_weights())
    one, other = (load_checkpoint(tmp_path / name).state for name in ("whole", "parts"))
    assert one == other


RATES: dict[str, Callable[[], Any]] = {
    "number": lambda: keras.optimizers.SGD(0.1),
    "schedule": lambda: keras.optimizers.Adam(
        keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)
    ),
    "groups": lambda: AccumulateGradients(RATES["schedule"](), 2),
}


@pytest.mark.parametrize("name", RATES)
def test_schedules_go_on(tmp_path: Path, name: str) -> None:
    def rates(run: str, skipped: Any) -> list[tuple[int, float]]:
        linear = ScheduledHyperParamSetter(
            "learning_rate", [(0, 0.1), (12, 0.7)], interp="linear", step_based=True
        )
        trainer = train(
            tmp_path / run, [linear] if name == "number" else [], skip_steps=skipped,
            steps_per_epoch=4, max_epoch=4, model=(SPECS, LINE[1], RATES[name]),
        )  # fmt: skip
        return trainer.monitors.history("learning_rate")

    skipped, whole = rates("a", [(3, 7), 9]), rates("b", [])
    if name == "groups":  # which may be one group of steps behind
        assert all(
            b <= a < b / 0.5 ** (0.34) for (_, a), (_, b) in zip(skipped, whole, strict=True)
        )
    else:
        assert skipped == whole


def test_numbers_do_not_see_skipped_steps(tmp_path: Path) -> None:
    recorded = Recorded("cost")
    trainer = train(
        tmp_path, [MinSaver("cost"), recorded], skip_steps=[(1, 6), (9, 12)], max_epoch=3
    )
    costs = [float(o["cost"]) for o in recorded.outputs]
    assert len(costs) == 2 + 6
    assert trainer.monitors.history("cost") == [
        (12, np.mean(costs[:2])), (18, pytest.approx(np.mean(costs[2:]))),
    ]  # fmt: skip
    assert [step for step, _ in trainer.monitors.history("last")] == [12, 18]
    assert [s for hook, _, s in recorded.log if hook == "trigger"] == [6, 12, 18]


def test_the_end_of_the_data_within_skipped_steps(tmp_path: Path) -> None:
    for number, flow in enumerate([shuffled(), FilterData(shuffled(), lambda dp: True)]):
        data = QueueInput(BatchData(flow, 8), infinite=False)
        trainer = train(
            tmp_path / str(number), data=data, steps_per_epoch=9, skip_steps=[(4, 9)], model=LINE
        )
        assert trainer.global_step == 6 and not trainer.complete


def test_a_change_is_shown_and_steps_that_were_trained_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    saver = PeriodicTrigger(ModelSaver(), every_k_steps=4)
    for skipped, later in [((), 4), ([(6, 7)], 8), ([(6, 7), 3], 12), ([], 13)]:
        caplog.clear()
        end = Do("trigger_step", stop, later)
        train(tmp_path, [saver, end], skip_steps=skipped, model=LINE, max_epoch=9)
        if later == 8:
            assert "skip_steps" in caplog.text and "6-7" in caplog.text
            assert "Skipped the data up to step 7" in caplog.text
        assert ("Step 3 of skip_steps was trained" in caplog.text) == (later == 12)
    assert "3-3, 6-7" in caplog.text


@pytest.mark.parametrize("steps", [[0], [(5, 4)], [1.5], ["3"], "34", [(1, 2, 3)], [None]])
def test_wrong_steps(tmp_path: Path, steps: Any) -> None:
    with pytest.raises(ConfigError, match="skip_steps"):
        train(tmp_path, skip_steps=steps)


def test_ranges_are_joined_and_noop_counts_them(tmp_path: Path) -> None:
    config = TrainConfig(
        dataflow=BatchData(shuffled(), 8), model=LINE, run_dir=tmp_path, monitors=[], max_epoch=1,
        skip_steps=(np.int64(4), [1, 2], 3, (2, 2)),
    )  # fmt: skip
    assert config.skip_steps == [[1, 4]]
    trainer = NoOpTrainer(config)
    trainer.train()
    assert trainer.global_step == 6


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["SimpleTrainer", "SyncMultiGPUTrainer", "MultiWorkerTrainer"])
def test_kills(tmp_path: Path, kind: str) -> None:
    program = Path(__file__).with_name("every_step_program.py")
    # Steps 5 to 7, 14 to 23 and 38 to 40 are skipped; step 20 ends an epoch.
    steps = sample([1, 4, 8, 13, 20, 24, 30, 37])
    done = subprocess.run(
        [*warm_python(), str(program), str(tmp_path), f"{kind}-skipping", *map(str, steps)],
        capture_output=True, text=True, timeout=800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    runs = []
    for name in ("killed", "undisturbed"):
        with np.load(tmp_path / name / "out.npz") as saved:
            runs.append(dict(saved))
    assert_same(*runs)
