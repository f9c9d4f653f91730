from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from small_host import Note, PutValues, SmallHost
from towerpack import CallbackError
from towerpack.callbacks import Callback, Callbacks, MaxSaver, MinSaver, ModelSaver


def test_a_need_must_be_met_by_an_earlier_callback(tmp_path: Path) -> None:
    producer, saver = PutValues("val/error", []), MinSaver("val/error")
    SmallHost(tmp_path, [producer, saver]).setup()
    with pytest.raises(CallbackError, match=r"(?s)after it.*put PutValues before"):
        SmallHost(tmp_path, [saver, producer]).setup()
    with pytest.raises(CallbackError, match=r"(?s)nothing produces.*Did you mean 'val/error'"):
        SmallHost(tmp_path, [producer, MinSaver("val/errors")]).setup()


def test_two_callbacks_may_not_produce_one_name(tmp_path: Path) -> None:
    twice = [PutValues("val/error", []), PutValues("val/error", [])]
    with pytest.raises(CallbackError, match="both produce 'val/error'"):
        SmallHost(tmp_path, twice).setup()


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
