from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from small_host import Note, PutValues, SmallHost
from towerpack import CallbackError
from towerpack.callbacks import (
    Callback,
    Callbacks,
    EnableCallbackIf,
    HumanHyperParamSetter,
    HyperParamSetterWithFunc,
    LearningRateFinder,
    MaxSaver,
    MinSaver,
    ModelSaver,
    PeriodicTrigger,
    ScheduledHyperParamSetter,
    StatMonitorParamSetter,
    cosine_schedule,
    piecewise_schedule,
)


def test_a_need_must_be_met_by_an_earlier_callback(tmp_path: Path) -> None:
    producer, saver = PutValues("val/error", []), MinSaver("val/error")
    SmallHost(tmp_path, [producer, saver]).setup()
    with pytest.raises(CallbackError, match=r"(?s)only later.*put PutValues before"):
        SmallHost(tmp_path, [saver, producer]).setup()
    with pytest.raises(
        CallbackError, match=r"(?s)no callback produces it.*Did you mean 'val/error'"
    ):
        SmallHost(tmp_path, [producer, MinSaver("val/errors")]).setup()


def test_two_callbacks_may_not_produce_one_name(tmp_path: Path) -> None:
    twice = [PutValues("val/error", []), PutValues("val/error", [])]
    with pytest.raises(CallbackError, match="both produce 'val/error'"):
        SmallHost(tmp_path, twice).setup()


LR = "learning_rate"
COSINE = cosine_schedule(0.1, steps=40)


@pytest.mark.parametrize(
    ("other", "fits"),
    [
        (ScheduledHyperParamSetter(LR, [(0, 0.5), (2, 0.7)]), False),
        (ScheduledHyperParamSetter(LR, [(10, 0.5)]), True),  # after 40 steps
        (piecewise_schedule([(0, 0.1)]), False),
        (PeriodicTrigger(StatMonitorParamSetter(LR, "cost", lambda v: v, 0, 1), 2), False),
        (LearningRateFinder(steps=30), False),
        (EnableCallbackIf(HyperParamSetterWithFunc(LR, max), lambda c: c.epoch_num > 10), True),
        (HumanHyperParamSetter(LR), True),
    ],
)
def test_a_schedule_by_steps_lets_no_other_set(tmp_path: Path, other: Callback, fits: bool) -> None:
    for both in ([COSINE, other], [other, COSINE]):
        with (
            contextlib.nullcontext()
            if fits
            else pytest.raises(CallbackError, match=f"{re.escape(repr(both[0]))} and .* both set")
        ):
            SmallHost(tmp_path, both).setup()


def test_keys_stay_the_same_when_others_come_and_go() -> None:
    best = [MinSaver("a"), MaxSaver("b"), ModelSaver(), ModelSaver(keep=None)]
    assert Callbacks(best).keys() == [
        "MinSaver('a')#0",
        "MaxSaver('b')#0",
        "ModelSaver#0",
        "ModelSaver#1",
    ]


def test_hooks_that_are_not_overridden_are_known() -> None:
    class Quiet(Callback):
        def trigger(self) -> None:
            pass

    assert [h for h in ("after_step", "trigger_step", "after_call") if Quiet().acts_in(h)] == []
    assert Quiet().acts_in("trigger")
    assert Quiet().acts_in("trigger_epoch")
    assert not Callback().acts_in("trigger_epoch")
    assert Note().acts_in("after_step")


def test_callbacks_load_without_tensorflow() -> None:
    code = "import sys, towerpack.callbacks; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
