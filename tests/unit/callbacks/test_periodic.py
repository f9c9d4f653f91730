from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from small_host import Note, SmallHost, round_trip
from towerpack import CallbackError, ConfigError
from towerpack.callbacks import Callback, MinSaver, ModelSaver, PeriodicTrigger


def triggers(note: Note) -> list[int]:
    return [step for hook, step in note.log if hook == "trigger"]


@pytest.mark.parametrize(
    ("kwargs", "steps"),
    [
        ({"every_k_steps": 3}, [3, 6, 9, 12]),
        ({"every_k_steps": 5}, [5, 10]),
        ({"every_k_epochs": 2}, [8]),
        ({"every_k_epochs": 1, "every_k_steps": 6}, [4, 6, 8, 12]),
        ({"before_train": True}, [0]),
        ({"before_train": True, "every_k_epochs": 3}, [0, 12]),
    ],
)
def test_periods(tmp_path: Path, kwargs: dict[str, Any], steps: list[int]) -> None:
    note = Note()
    SmallHost(tmp_path, [PeriodicTrigger(note, **kwargs)]).run()
    assert triggers(note) == steps


def test_other_hooks_pass_through(tmp_path: Path) -> None:
    alone, wrapped = Note(), Note()
    SmallHost(tmp_path, [alone]).run()
    SmallHost(tmp_path, [PeriodicTrigger(wrapped, every_k_epochs=1)]).run()
    assert wrapped.log == alone.log
    assert len(alone.log) > 40


def test_the_loop_stops_where_a_period_ends(tmp_path: Path) -> None:
    periodic = PeriodicTrigger(Note(), every_k_steps=3)
    assert [periodic.next_stop(step) for step in (0, 2, 3, 4)] == [3, 3, 6, 6]
    host = SmallHost(tmp_path, [periodic], steps_per_epoch=10, max_epoch=1, steps_per_call=8)
    assert host.run().calls == [3, 3, 3, 1]
    assert PeriodicTrigger(Note(), every_k_epochs=1).next_stop(5) is None


def test_the_nearer_stop_counts() -> None:
    class Stops(Note):
        def next_stop(self, step: int) -> int:
            return step + 2

    assert PeriodicTrigger(Stops(), every_k_steps=5).next_stop(0) == 2
    assert PeriodicTrigger(Stops(), every_k_steps=5).next_stop(4) == 5
    assert PeriodicTrigger(Stops(), every_k_epochs=5).next_stop(4) == 6


def test_it_passes_for_the_callback_it_wraps(tmp_path: Path) -> None:
    class Busy(Note):
        acts_between_steps = True
        needs = ("cost",)

        def produces(self) -> list[str]:
            return ["busy"]

        def setup(self, trainer: Any) -> None:
            self.fetch("logits")

        def state(self) -> dict[str, int]:
            return {"n": 7}

        def restore(self, state: Any) -> None:
            self.restored = state

    busy = Busy()
    periodic = PeriodicTrigger(busy, every_k_epochs=1)
    SmallHost(tmp_path, [periodic]).setup()
    assert periodic.acts_between_steps
    assert (periodic.needs, periodic.produces()) == (("cost",), ["busy"])
    assert list(periodic.fetches) == ["logits"]
    periodic.restore(round_trip(periodic.state()))
    assert busy.restored == {"n": 7}


def test_steps_cost_nothing_that_nobody_uses() -> None:
    hooks = ("before_step", "after_step", "trigger_step", "after_call")
    by_epochs = PeriodicTrigger(ModelSaver(), every_k_epochs=2)
    assert [hook for hook in hooks if by_epochs.acts_in(hook)] == []
    by_steps = PeriodicTrigger(ModelSaver(), every_k_steps=2)
    assert [hook for hook in hooks if by_steps.acts_in(hook)] == ["trigger_step"]


def test_nonsense_is_refused() -> None:
    with pytest.raises(ConfigError, match="would never trigger"):
        PeriodicTrigger(ModelSaver())
    with pytest.raises(ConfigError, match="every_k_steps must be at least 1, got 0"):
        PeriodicTrigger(ModelSaver(), every_k_steps=0)
    with pytest.raises(CallbackError, match="call the class"):
        PeriodicTrigger(ModelSaver, every_k_steps=1)  # type: ignore[arg-type]

    class NoTrigger(Callback):
        def after_epoch(self) -> None:
            pass

    with pytest.raises(CallbackError, match=r"needs a callback that overrides trigger\(\)"):
        PeriodicTrigger(NoTrigger(), every_k_steps=1)


def test_needs_are_checked_through_it(tmp_path: Path) -> None:
    with pytest.raises(CallbackError, match=r"MinSaver\('e'\) needs 'e'"):
        SmallHost(tmp_path, [PeriodicTrigger(MinSaver("e"), every_k_epochs=1)]).setup()
