"""Callbacks around callbacks, out of functions, and the end of a run."""

from __future__ import annotations

import io
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from small_host import Note, SmallHost
from towerpack import CallbackError, ConfigError
from towerpack.callbacks import (
    CallbackFactory,
    EnableCallbackIf,
    InjectShell,
    PeriodicCallback,
    PeriodicTrigger,
    ProxyCallback,
    RunOp,
    StopAfter,
)


def fired(note: Note, hook: str) -> list[int]:
    return [step for name, step in note.log if name == hook]


def test_a_proxy_changes_nothing(tmp_path: Path) -> None:
    alone, wrapped = Note(), Note()
    SmallHost(tmp_path, [alone]).run()
    SmallHost(tmp_path, [ProxyCallback(EnableCallbackIf(wrapped, lambda _: True))]).run()
    assert wrapped.log == alone.log


def test_a_condition_decides_about_each_hook(tmp_path: Path) -> None:
    note = Note()
    gated = EnableCallbackIf(note, lambda self: self.epoch_num == 2)
    SmallHost(tmp_path, [gated]).run()
    assert fired(note, "before_train") == [0] and fired(note, "after_train") == [12]
    assert fired(note, "before_step") == [4, 5, 6, 7] and fired(note, "trigger") == [8]
    both = EnableCallbackIf(note := Note(), lambda self: self.epoch_num != 2)
    SmallHost(tmp_path, [PeriodicTrigger(both, every_k_steps=3)]).run()
    assert fired(note, "trigger") == [3, 9, 12]


@pytest.mark.parametrize(
    ("periods", "steps", "triggers"),
    [
        ({"every_k_steps": 6}, [6, 12], [12]),
        ({"every_k_epochs": 2}, [5, 6, 7, 8, 9, 10, 11, 12], [8, 12]),
        ({"every_k_epochs": 3, "every_k_steps": 4}, [4, 8, 9, 10, 11, 12], [4, 8, 12]),
    ],
)
def test_periods_make_it_rarer(
    tmp_path: Path, periods: dict[str, int], steps: list[int], triggers: list[int]
) -> None:
    note = Note()
    host = SmallHost(tmp_path, [PeriodicCallback(note, **periods)]).run()
    assert fired(note, "trigger_step") == steps == [s + 1 for s in fired(note, "before_step")]
    assert fired(note, "trigger") == triggers
    if periods == {"every_k_steps": 6}:
        assert host.calls == [4, 2, 2, 4]


def test_what_cannot_be_wrapped(tmp_path: Path) -> None:
    with pytest.raises(CallbackError, match="call the class"):
        EnableCallbackIf(Note, lambda _: True)  # type: ignore[arg-type]
    for periods in ({}, {"every_k_steps": 0}):
        with pytest.raises(ConfigError, match="PeriodicCallback"):
            PeriodicCallback(Note(), **periods)


def test_functions_as_a_callback(tmp_path: Path) -> None:
    seen: list[Any] = []
    made = CallbackFactory(
        setup=lambda self, trainer: self.fetch("cost"),
        after_step=lambda self, outputs: seen.append(outputs["cost"]),
        trigger=lambda self: seen.append(f"epoch {self.epoch_num}"),
    )
    SmallHost(tmp_path, [made], max_epoch=1, outputs=lambda step: {"cost": step}).run()
    assert seen == [1, 2, 3, 4, "epoch 1"]
    assert not made.acts_in("before_step")
    with pytest.raises(ConfigError, match="Did you mean 'trigger'"):
        CallbackFactory(triggers=print)
    with pytest.raises(ConfigError, match="needs a hook"):
        CallbackFactory()


def test_a_function_is_called_when_it_is_asked_for(tmp_path: Path) -> None:
    calls: list[str] = []
    usual = RunOp(lambda: calls.append("usual"))
    step = RunOp(lambda: calls.append("step"), False, False, run_step=True)
    SmallHost(tmp_path, [usual, step], max_epoch=2, steps_per_call=1).run()
    assert calls == ["usual", *["step"] * 4, "usual", *["step"] * 4, "usual"]
    with pytest.raises(ConfigError, match="needs a hook"):
        RunOp(print, False, False)


def test_it_stops_after_steps_and_after_seconds(tmp_path: Path) -> None:
    host = SmallHost(tmp_path, [StopAfter(steps=6)]).run()
    assert host.global_step == 6
    now = [0.0]
    tick = CallbackFactory(after_step=lambda self, outputs: now.append(now.pop() + 1.0))
    clock = StopAfter(time=5, clock=lambda: now[0])
    assert SmallHost(tmp_path, [tick, clock], steps_per_call=1).run().global_step == 5
    # What was used is kept, and a run that had ended does not start again.
    state = clock.state()
    for limit, steps in ((5, 0), (8, 3)):
        anew = StopAfter(time=limit, clock=lambda: now[0])
        anew.restore(state)
        assert SmallHost(tmp_path, [tick, anew], steps_per_call=1).run().global_step == steps
    for wrong in ({}, {"steps": 0}, {"time": -1.0}):
        with pytest.raises(ConfigError, match="StopAfter"):
            StopAfter(**wrong)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_shell_opens_where_its_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "shell"
    touch = CallbackFactory(
        before_epoch=lambda self: file.touch() if self.epoch_num < 3 else None,
    )
    typed = "trainer.seen = self.epoch_num * 10\nexit()\n"
    monkeypatch.setattr(sys, "stdin", Terminal(typed + typed))
    host = SmallHost(tmp_path, [touch, InjectShell()]).run()
    assert host.seen == 20 and host.global_step == 12 and not file.exists()  # type: ignore[attr-defined]
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    with caplog.at_level(logging.WARNING):
        SmallHost(tmp_path, [touch, InjectShell()]).run()
    assert "the input is not a terminal" in caplog.text
    with pytest.raises(ConfigError, match="InjectShell"):
        InjectShell(shell="bash")  # type: ignore[arg-type]
