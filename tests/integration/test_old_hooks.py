"""Callbacks, inferencers and monitors by the predecessor's names: called, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from small_training import train
from towerpack import CallbackError
from towerpack.callbacks import Callback, Inferencer, PeriodicTrigger
from towerpack.callbacks.monitors import Monitor

HOOKS = [
    "setup_graph",
    "before_train",
    "before_epoch",
    "trigger_step",
    "after_epoch",
    "trigger_epoch",
    "after_train",
]


class Log(Callback):
    """Hooks by our names."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []

    def note(self, hook: str) -> None:
        self.log.append((hook, self.epoch_num, self.global_step, self.local_step))

    def setup(self, trainer: Any) -> None:
        assert trainer is self.trainer
        self.note("setup_graph")

    def before_train(self) -> None:
        self.note("before_train")

    def before_epoch(self) -> None:
        self.note("before_epoch")

    def trigger_step(self) -> None:
        self.note("trigger_step")

    def after_epoch(self) -> None:
        self.note("after_epoch")

    def trigger_epoch(self) -> None:
        self.note("trigger_epoch")

    def after_train(self) -> None:
        self.note("after_train")


# The same hooks, under the old names; nothing else overrides anything.
Old = type(
    "Old",
    (Callback,),
    {
        "__init__": Log.__init__,
        "note": Log.note,
        **{f"_{hook}": lambda self, hook=hook: self.note(hook) for hook in HOOKS},
    },
)


class Younger(Old):  # type: ignore[misc, valid-type]
    """Calls what it overrides, by the old name."""

    def _trigger_step(self) -> None:
        super()._trigger_step()

    def after_epoch(self) -> None:
        super().after_epoch()


@pytest.mark.parametrize("kind", [Old, Younger, type("Mixed", (type("Mixin", (), {}), Old), {})])
def test_hooks_by_old_names_are_called_as_ours(tmp_path: Path, kind: Any) -> None:
    old, new = kind(), Log()
    train(tmp_path, [old, new])
    assert [entry[0] for entry in old.log if entry[0] != "trigger_step"][:4] == [
        "setup_graph",
        "before_train",
        "before_epoch",
        "after_epoch",
    ]
    assert old.log == new.log
    assert len(old.log) == 2 * 6 + 2 * 3 + 3
    assert not Old().acts_in("after_step")


def test_an_old_trigger_can_be_given_another_rhythm(tmp_path: Path) -> None:
    steps: list[int] = []

    class Mixin:
        def _trigger(self: Any) -> None:
            steps.append(self.global_step)

    class Old(Mixin, Callback):
        pass

    train(tmp_path, [Old(), PeriodicTrigger(Old(), every_k_steps=5)])
    assert steps == [5, 6, 10, 12]


def defining(base: type, *names: str, **more: Any) -> type:
    return type("Ported", (base,), {**{name: lambda self, *_: None for name in names}, **more})


@pytest.mark.parametrize(
    ("base", "hook", "instead"),
    [
        (Callback, "_before_run", "self.fetch"),
        (Callback, "_after_run", "after_step"),
        (Inferencer, "_before_inference", "begin"),
        (Inferencer, "_get_fetches", "outputs"),
        (Inferencer, "_on_fetches", "update"),
        (Inferencer, "_after_inference", "finish"),
        (Monitor, "process_image", "put_image"),
        (Monitor, "process_event", "put_scalar"),
        (Monitor, "_trigger_epoch", "end_epoch"),
    ],
)
def test_others_are_refused_with_what_to_write(base: type, hook: str, instead: str) -> None:
    for kind in (defining(base, hook), type("Younger", (defining(base, hook),), {})):
        with pytest.raises(CallbackError, match=f"(?s)never called: {hook}.*{hook}: .*{instead}"):
            kind()


def test_both_names_of_one_hook_are_refused() -> None:
    kind = defining(Callback, "_trigger", "trigger", "_before_run")
    with pytest.raises(CallbackError, match=r"(?s)_before_run, _trigger.*_trigger: remove"):
        kind()
    # What calls its successor is an ordinary override.
    assert type("Younger", (defining(Callback, "_trigger"),), {"trigger": print})()
    with pytest.raises(TypeError):
        defining(Callback, "_trigger")("an argument that nothing takes")


def test_an_old_monitor_gets_numbers(tmp_path: Path) -> None:
    got: list[tuple[str, float]] = []

    class Old(Monitor):
        def process_scalar(self, name: str, value: float) -> None:
            got.append((name, value))

    train(tmp_path, monitors=[Old()])
    assert [name for name, _ in got].count("cost") == 2
