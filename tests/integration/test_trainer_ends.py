"""Ends of a training: end of the data, callbacks that stop, failures in hooks."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from own_threads import threads
from scaling import sample
from small_training import (
    LINE,
    Do,
    Recorded,
    assert_same,
    fail,
    flow,
    stop,
    train,
)
from towerpack.callbacks import (
    Callback,
    MinSaver,
    ModelSaver,
    PeriodicTrigger,
)
from towerpack.checkpoint import list_checkpoints, load_checkpoint
from towerpack.inputs import (
    QueueInput,
)
from towerpack.training import SimpleTrainer

pytestmark = pytest.mark.usefixtures("nothing_to_collect", "no_thread_is_left")


def test_the_end_of_the_data_ends_normally(tmp_path: Path) -> None:
    def run() -> SimpleTrainer:
        return train(
            tmp_path,
            [PeriodicTrigger(ModelSaver(), every_k_steps=2)],
            model=LINE,
            data=QueueInput(flow(), infinite=False),
            steps_per_epoch=4,
            max_epoch=9,
        )

    first = run()
    assert (first.global_step, first.epoch, first.local_step) == (6, 2, 2)
    assert not first.complete
    assert load_checkpoint(tmp_path).step == 6
    again = run()
    assert again.global_step == 6
    assert_same(again.get_weights(), first.get_weights())


@pytest.mark.parametrize(
    ("saver", "every", "end"),
    [
        (ModelSaver(), {"every_k_steps": 5}, "the data's"),
        (ModelSaver(), {"every_k_epochs": 4}, "a failure's"),
        (MinSaver("val/none"), {"every_k_steps": 1000}, "the last epoch's"),
        (MinSaver("val/none"), {"every_k_steps": 1000}, "a callback's"),
    ],
)
def test_the_end_is_saved_though_no_save_was_due(
    paced: Any, tmp_path: Path, saver: Callback, every: dict[str, Any], end: str
) -> None:
    paced(4)
    kwargs: dict[str, Any] = {"model": LINE, "steps_per_epoch": 6}
    if end == "the data's":
        kwargs["data"] = QueueInput(flow(), infinite=False)
    best = Do("trigger", lambda self: None)
    best.produces = lambda: ["val/none"]  # type: ignore[method-assign]
    callbacks = [best, PeriodicTrigger(saver, **every)]
    if end == "a callback's":
        callbacks.append(Do("after_step", stop, 3))
    if end == "a failure's":
        callbacks.append(Do("after_call", fail, 4))
    with pytest.raises(KeyError) if end == "a failure's" else contextlib.nullcontext():
        train(tmp_path, callbacks, **kwargs)
    steps = {"the data's": [5, 6], "the last epoch's": [12]}.get(end, [4])
    assert [row.step for row in list_checkpoints(tmp_path)] == steps


def ask_to_stop(callback: Callback) -> None:
    callback.trainer.request_stop()


ENDS = [("before_train", 0, 0), ("before_epoch", 6, 6), ("after_step", 2, 4),
        ("trigger_step", 2, 4), ("after_call", 4, 4), ("after_epoch", 6, 6),
        ("trigger", 6, 6)]  # fmt: skip


@pytest.mark.parametrize(
    ("how", "hook", "at", "end"),
    sample([(how, *end) for how in (stop, ask_to_stop) for end in ENDS], at_least=5),
)
def test_a_callback_ends_training(
    paced: Any, tmp_path: Path, how: Any, hook: str, at: int, end: int
) -> None:
    paced(4)
    recorded = Recorded()
    trainer = train(tmp_path, [Do(hook, how, at), recorded, ModelSaver()], model=LINE)
    assert trainer.global_step == end
    assert int(trainer._run.opened.step_variable.numpy()) == end
    assert not trainer.complete
    assert recorded.log[-1][0] == "after_train"
    # The others have seen every step that was made.
    assert [step for hook, _, step in recorded.log if hook == "after_step"] == [*range(1, end + 1)]
    if end == 6:
        assert ("trigger", 1, 6) in recorded.log
        assert load_checkpoint(tmp_path).step == 6


HOOKS = ["before_train", "before_epoch", "before_step", "after_step", "trigger_step", "after_call",
         "after_epoch", "trigger", "after_train"]  # fmt: skip


@pytest.mark.parametrize("hook", sample(["setup", *HOOKS], at_least=5))
def test_an_exception_in_any_hook_goes_up_once(tmp_path: Path, hook: str) -> None:
    class Fails(Do):
        def setup(self, trainer: Any) -> None:
            self.on("setup")

        def _run(self, hook: str) -> None:
            if hook == self._hook:
                fail(self)

    recorded = Recorded()
    with pytest.raises(KeyError, match="on purpose") as caught:
        train(tmp_path, [Fails(hook, fail), recorded], model=LINE)
    assert caught.value.__context__ is None
    assert threads() == []
    if hook != "setup":
        assert recorded.log[-1][0] == "after_train"
    if hook in ("setup", "trigger"):  # Nothing is locked.
        train(tmp_path, model=LINE, max_epoch=1)


def test_what_ended_the_training_goes_up_before_what_failed_after_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail_again(callback: Callback) -> None:
        raise OSError("the second")

    recorded = Recorded()
    callbacks = [Do("after_step", fail), Do("after_train", fail_again), recorded]
    with pytest.raises(KeyError, match="on purpose"):
        train(tmp_path, callbacks, model=LINE)
    assert "the second" in caplog.text
    assert recorded.log[-1][0] == "after_train"


def test_control_c(tmp_path: Path) -> None:
    def press(callback: Callback) -> None:
        raise KeyboardInterrupt

    recorded = Recorded()
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, [Do("trigger_step", press, 3), recorded], model=LINE)
    assert recorded.log[-1][0] == "after_train"


@pytest.mark.parametrize("hook", sample(["after_call", "trigger", "after_epoch"]))
def test_a_failure_between_steps_costs_no_step(
    undisturbed: SimpleTrainer, paced: Any, tmp_path: Path, hook: str
) -> None:
    paced(2)
    at = {"after_call": 10}.get(hook, 12)
    with pytest.raises(KeyError):
        train(tmp_path, [Do(hook, fail, at), ModelSaver(keep=1)], max_epoch=3)
    # The one before is still there, whatever `keep` says: the fault may lie before the failure.
    assert [row.step for row in list_checkpoints(tmp_path)] == [6, at]
    parts = train(tmp_path, [ModelSaver()], max_epoch=3)
    assert_same(parts.get_weights(), undisturbed.get_weights())
    assert parts.monitors.latest("mean") == undisturbed.monitors.latest("mean")
