"""SIGTERM at each moment of a run."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from processes import stopwatch
from scaling import only_in_full, sample
from small_training import (
    SPECS,
    Counts,
    Do,
    Model,
    X,
    Y,
    assert_same,
    flow,
    train,
)
from towerpack.callbacks import (
    Callback,
    InferenceRunner,
    ModelSaver,
    PeriodicTrigger,
    ScalarStats,
)
from towerpack.checkpoint import load_checkpoint
from towerpack.dataflow import DataFlow
from towerpack.inputs import (
    FeedInput,
    QueueInput,
)
from towerpack.nn import (
    FullyConnected,
)
from towerpack.training import SimpleTrainer

pytestmark = pytest.mark.usefixtures("nothing_to_collect", "no_thread_is_left")


def terminate(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


class TerminatesInEvaluation(DataFlow):
    """Sends SIGTERM with its second batch, then is slow."""

    def __iter__(self) -> Iterator[Any]:
        yield X[:8], Y[:8]
        terminate()
        for _ in range(100):
            time.sleep(0.05)
            yield X[:8], Y[:8]


class Slow(DataFlow):
    """Terminates the process, then gives nothing for a long time."""

    def __init__(self, at: int, gone: threading.Event) -> None:
        self._at, self._gone = at, gone

    def __iter__(self) -> Iterator[Any]:
        for i in range(6):
            if i == self._at:
                terminate()
                self._gone.wait(60)
            yield X[8 * i : 8 * i + 8], Y[8 * i : 8 * i + 8]


def ended(tmp_path: Path, callbacks: Sequence[Callback], **kwargs: Any) -> int:
    """Trains until SIGTERM, which must take effect at once; gives the step that was saved."""
    with stopwatch() as watch, pytest.raises(SystemExit) as caught:
        train(tmp_path, callbacks, max_epoch=3, **kwargs)
    assert caught.value.code == 143
    assert watch.seconds < 20
    return load_checkpoint(tmp_path).step


@only_in_full  # test_callbacks_training.py and test_signals.py end runs there, too
@pytest.mark.parametrize("every", [{"every_k_steps": 4}, {"every_k_epochs": 1}])
def test_sigterm_in_an_evaluation(
    undisturbed: SimpleTrainer, paced: Any, tmp_path: Path, every: dict[str, int]
) -> None:
    paced(3)
    evaluation = InferenceRunner(TerminatesInEvaluation(), ScalarStats("cost"))
    counts = Counts()
    step = ended(tmp_path, [counts, PeriodicTrigger(evaluation, **every)])
    assert step == (6 if "every_k_epochs" in every else 4)
    counts = Counts()
    better = InferenceRunner(flow(), ScalarStats("cost"))
    parts = train(tmp_path, [counts, PeriodicTrigger(better, **every)], max_epoch=3)
    assert_same(parts.get_weights(), undisturbed.get_weights())
    assert parts.monitors.history("val/cost")[0][0] == step
    assert counts.count == 18


@pytest.mark.parametrize(("source", "at"), [(FeedInput, 0), (QueueInput, 4)])
def test_sigterm_while_data_are_waited_for(
    undisturbed: SimpleTrainer, tmp_path: Path, source: Any, at: int
) -> None:
    gone = threading.Event()
    if source is FeedInput:
        gone.set()  # Its flow runs in this thread, where only the flow itself could be interrupted.
    release = Do("after_train", lambda _: gone.set())
    assert ended(tmp_path, [release], data=source(Slow(at, gone)), steps_per_epoch=6) <= at + 1
    parts = train(tmp_path, data=source(Slow(-1, gone)), steps_per_epoch=6, max_epoch=3)
    assert_same(parts.get_weights(), undisturbed.get_weights())


def test_sigterm_while_the_model_is_built(tmp_path: Path) -> None:
    built: list[str] = []

    def build(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        built.append("began")
        terminate()
        for _ in range(100):
            time.sleep(0.05)
        built.append("ended")
        return tf.reduce_mean(FullyConnected("fc", x, 1))

    with pytest.raises(SystemExit) as caught:
        train(tmp_path, model=(SPECS, build, lambda: keras.optimizers.SGD(0.1)))
    assert caught.value.code == 143
    assert built == ["began"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_sigterm_in_every_hook_of_a_run(
    undisturbed: SimpleTrainer, paced: Any, tmp_path: Path
) -> None:
    def interrupted(callback: Callback) -> None:
        terminate()
        callback.trainer.check_interrupt()

    paced(2)
    # The step in whose hook the signal comes, and the one that is saved.
    ends = [("before_train", 0, 0), ("after_step", 1, 2), ("after_call", 4, 4),
            ("after_epoch", 6, 6), ("before_epoch", 6, 6), ("before_step", 7, 8),
            ("trigger_step", 9, 10), ("trigger", 12, 12), ("after_train", 18, 18)]  # fmt: skip
    for hook, at, saved in [*sample(ends[:-1], at_least=4), ends[-1]]:
        # Not QueueInput, whose thread may be behind: then a call has fewer steps.
        data = FeedInput(flow())
        callbacks = [Do(hook, interrupted, at), Counts(), ModelSaver()]
        assert ended(tmp_path, callbacks, data=data) == saved, hook
    counts = Counts()
    parts = train(tmp_path, [counts, ModelSaver()], max_epoch=3)
    assert_same(parts.get_weights(), undisturbed.get_weights())
    assert counts.count == 18
    assert parts.monitors.names() == []


@pytest.mark.parametrize("place", [0, 2])
def test_sigterm_between_two_callbacks_at_the_end_of_an_epoch(
    undisturbed: SimpleTrainer, paced: Any, tmp_path: Path, place: int
) -> None:
    """Those that follow do not act; all of them act once the run is continued."""
    paced(2)
    acted: list[tuple[int, int]] = []

    def triggers(interrupt: bool) -> list[Callback]:
        def act(number: int) -> Callable[[Callback], None]:
            def trigger(callback: Callback) -> None:
                acted.append((number, callback.trainer.global_step))
                if interrupt and number == place and callback.trainer.global_step == 12:
                    terminate()  # and nobody asks: the loop does, before the next callback

            return trigger

        return [Do("trigger", act(number)) for number in range(4)]

    assert ended(tmp_path, [*triggers(True), ModelSaver()]) == 12
    assert acted == [(n, 6) for n in range(4)] + [(n, 12) for n in range(place + 1)]
    acted.clear()
    parts = train(tmp_path, [*triggers(False), ModelSaver()], max_epoch=3)
    assert acted == [(n, step) for step in (12, 18) for n in range(4)]
    assert_same(parts.get_weights(), undisturbed.get_weights())


def test_a_parameter_that_is_changed_before_an_interrupted_trigger_is_changed_once(
    tmp_path: Path,
) -> None:
    class Weighted(Model):
        def __init__(self) -> None:
            super().__init__()
            self.weight = tf.Variable(1.0, trainable=False)

        def build_graph(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            return super().build_graph(x, y) * self.weight

    class Halve(Callback):
        def trigger(self) -> None:
            param = self.trainer.hyper_param("weight")
            param.set(param.get() / 2)

    def interrupted(callback: Callback) -> None:
        terminate()
        callback.trainer.check_interrupt()

    ended(tmp_path, [Halve(), Do("trigger", interrupted, 6)], model=Weighted())
    parts = train(tmp_path, [Halve(), ModelSaver()], model=Weighted(), max_epoch=3)
    assert parts.hyper_param("weight").get() == 0.125
