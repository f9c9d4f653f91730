"""Asynchronous trainings on two logical CPU devices, which only a process of its own can have.

    python async_program.py DIRECTORY

Each case is a function; it says its name on stdout when it has passed.
"""

# ruff: noqa: E402 - devices are made before anything uses TensorFlow

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from own_threads import threads
from small_training import Do, Recorded, assert_same, config
from towerpack import ConfigError, NumericsError, StepError
from towerpack.callbacks import Callback, ModelSaver
from towerpack.checkpoint import load_checkpoint
from towerpack.dataflow import BatchData, DataFromArrays, RepeatedData
from towerpack.inputs import QueueInput
from towerpack.nn import FullyConnected, expose
from towerpack.training import AsyncMultiGPUTrainer, SimpleTrainer, StopTraining
from towerpack.training.loop.executor import Executor

NUMBERS = np.arange(600, dtype=np.float32)
BATCHES = (NUMBERS[::2] + 0.5).tolist()


def build(x: tf.Tensor) -> tf.Tensor:
    """Learns that every number is 3, whatever it is given; says what that was."""
    tf.debugging.Assert(tf.reduce_all(tf.not_equal(x, 1e7)), [x])
    expose("seen", tf.reduce_mean(x))
    guess = FullyConnected("fc", tf.zeros_like(x)[:, None], 1)
    return tf.reduce_mean(tf.square(guess - 3.0)) + 0.0 * tf.reduce_sum(x)


def linear(x: tf.Tensor) -> tf.Tensor:
    """Its gradient is 1 whatever the weight is."""
    return tf.reduce_mean(FullyConnected("fc", tf.zeros_like(x)[:, None], 1))


def run(run_dir: Path, *callbacks: Callback, **kwargs: Any) -> AsyncMultiGPUTrainer:
    flow = BatchData(RepeatedData(DataFromArrays(kwargs.pop("numbers", NUMBERS)), 1), 2)
    func, optimizer = kwargs.pop("func", build), kwargs.pop("optimizer", keras.optimizers.Adam(0.1))
    settings: dict[str, Any] = {
        "data": QueueInput(flow, infinite=False),
        "model": ([tf.TensorSpec([None], tf.float32, "x")], func, optimizer),
        "max_epoch": 10,
        "steps_per_epoch": 150,
    }
    settings.update(kwargs)
    trainer = AsyncMultiGPUTrainer(config(run_dir, callbacks, **settings), ["CPU:0", "CPU:1"])
    trainer.train()
    return trainer


def seen(*recorded: Recorded) -> list[float]:
    return sorted(float(outputs["seen"]) for r in recorded for outputs in r.outputs)


def bad(at: int, value: float) -> np.ndarray:
    numbers = NUMBERS.copy()
    numbers[at] = value
    return numbers


def both_devices_learn_and_every_step_counts(where: Path) -> None:
    recorded, working, original = Recorded("seen"), set[str](), Executor.run

    def noted(self: Executor, *args: Any, **kwargs: Any) -> Any:
        working.add(threading.current_thread().name)
        return original(self, *args, **kwargs)

    # So many, since Keras loses counts where two devices write at once.
    numbers = np.arange(4000, dtype=np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Executor, "run", noted)
        trainer = run(where, ModelSaver(), recorded, numbers=numbers, steps_per_epoch=600)
    assert trainer.global_step == 2000 and seen(recorded) == (numbers[::2] + 0.5).tolist()
    assert load_checkpoint(where).group("optimizer")["iteration"] == 2000
    assert len(working) == 2 and not threads()
    assert trainer.get_weights()["fc/bias"] == pytest.approx(3.0, abs=0.1)


def gradients_are_scaled(where: Path) -> None:
    trainer = run(where, func=linear, optimizer=keras.optimizers.SGD(0.1))
    assert trainer.get_weights()["fc/bias"] == pytest.approx(-0.1 * 300 / 2, rel=1e-4)


class Scheduled(Callback):
    """Sets the rate once, after step 60, and looks at it after each call."""

    def __init__(self) -> None:
        self.rates: list[tuple[int, float]] = []

    def setup(self, trainer: Any) -> None:
        trainer.schedule("learning_rate", lambda step: 0.5 if step == 60 else None)

    def after_call(self) -> None:
        rate = self.trainer.hyper_param("learning_rate").get()
        self.rates.append((self.trainer.global_step, rate))


def a_schedule_holds_though_steps_overtake_one_another(where: Path) -> None:
    scheduled = Scheduled()
    run(where, scheduled)
    for step, rate in scheduled.rates:
        assert rate == pytest.approx(0.5 if step >= 60 else 0.1), scheduled.rates


def it_goes_on_where_it_was(where: Path) -> None:
    def stop(_: Callback) -> None:
        raise StopTraining

    first, second = Recorded("seen"), Recorded("seen")
    before = run(where, ModelSaver(), first, Do("trigger_step", stop, 70))
    assert 70 <= before.global_step < 300
    assert run(where, ModelSaver(), second).global_step == 300
    assert len(first.outputs) == before.global_step and seen(first, second) == BATCHES


def a_cost_that_is_not_finite_ends_the_call_of_all(where: Path) -> None:
    with pytest.raises(NumericsError, match="input 'x' has 1 such"):
        run(where, ModelSaver(), numbers=bad(201, np.nan))
    (kept,) = where.glob("nonfinite-step-*.npz")
    with np.load(kept) as batch:
        assert batch["x"][0] == 200.0
    step = load_checkpoint(where).step
    assert 95 <= step < 150
    # Nobody minds: such batches are passed over, several at once, and every other one is taken.
    numbers = NUMBERS.copy()
    numbers[200:260] = np.nan
    recorded, counts, original = Recorded("seen"), [0], Executor.run

    def counted(self: Executor, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        counts[-1] += result.nonfinite is not None
        return result

    callbacks = [recorded, Do("after_call", lambda _: counts.append(0))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Executor, "run", counted)
        passed = run(where / "on", *callbacks, numbers=numbers, extra_callbacks=[Minds()])
    assert passed.global_step == 270
    # Each device ends a call at most once, and takes nothing more of it.
    assert sum(counts) == 30 and max(counts) <= 2, counts
    assert seen(recorded) == BATCHES[:100] + BATCHES[130:]


class Minds(Callback):
    """Has calls end at a cost that is not finite, and lets the run go on."""

    def setup(self, trainer: Any) -> None:
        trainer.stop_on_nonfinite()


def a_device_that_fails_ends_the_others(where: Path) -> None:
    with pytest.raises(StepError, match=r"One of the steps after step .*on CPU:[01]"):
        run(where, numbers=bad(201, 1e7))
    assert not threads()


def on_one_device_it_is_a_simple_trainer(where: Path) -> None:
    alone = AsyncMultiGPUTrainer(config(where / "async", [ModelSaver()]), devices=["CPU:0"])
    alone.train()
    simple = SimpleTrainer(config(where / "simple"))
    simple.train()
    assert_same(alone.get_weights(), simple.get_weights())
    # Either goes on with the other's checkpoints.
    on = SimpleTrainer(config(where / "async", [ModelSaver()], max_epoch=3))
    on.train()
    assert on.global_step == 18


def a_deterministic_run_is_refused(where: Path) -> None:
    with pytest.raises(ConfigError, match="deterministic"):
        AsyncMultiGPUTrainer(config(where, deterministic=True), ["CPU:0", "CPU:1"])


CASES = [
    both_devices_learn_and_every_step_counts,
    gradients_are_scaled,
    a_schedule_holds_though_steps_overtake_one_another,
    it_goes_on_where_it_was,
    a_cost_that_is_not_finite_ends_the_call_of_all,
    a_device_that_fails_ends_the_others,
    on_one_device_it_is_a_simple_trainer,
    a_deterministic_run_is_refused,
]

if __name__ == "__main__":
    for case in CASES:
        case(Path(sys.argv[1]) / case.__name__)
        print(case.__name__, flush=True)
