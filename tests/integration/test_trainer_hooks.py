"""Hooks of callbacks, their order, and calls of many steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from small_training import (
    LINE,
    Recorded,
    assert_same,
    flow,
    train,
)
from towerpack import LayerError
from towerpack.training import SimpleTrainer

pytestmark = pytest.mark.usefixtures("nothing_to_collect", "no_thread_is_left")


def hooks_of(first_step: int, last_step: int, epoch: int, call: int) -> list[tuple[str, int, int]]:
    """The hooks of an epoch whose calls run `call` steps."""
    found: list[tuple[str, int, int]] = [("before_epoch", epoch, first_step)]
    for start in range(first_step, last_step, call):
        end = min(start + call, last_step)
        for step in range(start, end):
            found.append(("before_step", epoch, step))
            found += [("after_step", epoch, step + 1), ("trigger_step", epoch, step + 1)]
        found.append(("after_call", epoch, end))
    return [*found, ("after_epoch", epoch, last_step), ("trigger", epoch, last_step)]


@pytest.mark.parametrize("steps", [1, 4])
def test_hooks_fire_in_their_order_and_callbacks_in_that_of_the_list(
    paced: Any, tmp_path: Path, steps: int
) -> None:
    paced(steps)
    log: list[tuple[str, str, int, int]] = []
    pair = [Recorded(), Recorded()]
    for name, recorded in zip("ab", pair, strict=True):
        recorded.on = lambda hook, name=name, own=recorded: log.append(  # type: ignore[method-assign]
            (name, hook, own.trainer.epoch, own.trainer.global_step)
        )
    train(tmp_path, pair, model=LINE)
    expected = [("before_train", 0, 0), *hooks_of(0, 6, 1, steps), *hooks_of(6, 12, 2, steps)]
    expected.append(("after_train", 2, 12))
    assert log == [(name, *entry) for entry in expected for name in "ab"]


def test_one_that_acts_between_steps_forces_single_steps(paced: Any, tmp_path: Path) -> None:
    class Acts(Recorded):
        acts_between_steps = True

    paced(4)
    acts = Acts()
    train(tmp_path, [acts], model=LINE, max_epoch=1)
    assert [hook for hook, _, _ in acts.log].count("after_call") == 6


def test_a_call_ends_where_a_callback_must_act(paced: Any, tmp_path: Path) -> None:
    class Stops(Recorded):
        def next_stop(self, step: int) -> int | None:
            return next((s for s in (2, 3, 7) if s > step), None)

    paced(100)
    stops = Stops()
    train(tmp_path, [stops], model=LINE)
    calls = [step for hook, _, step in stops.log if hook == "after_call"]
    assert calls == [2, 3, 6, 7, 12]


def test_nothing_depends_on_how_many_steps_a_call_runs(paced: Any, tmp_path: Path) -> None:
    def run(steps: int) -> tuple[SimpleTrainer, Recorded]:
        paced(steps)
        recorded = Recorded("cost", "out", "fc0/output", "large", "drop/output")
        ragged = {"dataflow": flow(20, remainder=True), "steps_per_epoch": 5}
        return train(tmp_path / str(steps), [recorded], **ragged), recorded

    single, ones = run(1)
    assert [len(step["out"]) for step in ones.outputs] == [20, 20, 8, 20, 20, 8, 20, 20, 8, 20]
    shapes = {value["large"].shape for value in ones.outputs}
    assert len(shapes) > 2, "the size of 'large' should depend on the data"
    trainer, many = run(4)
    for one, other in zip(ones.outputs, many.outputs, strict=True):
        assert {k: v.shape for k, v in one.items()} == {k: v.shape for k, v in other.items()}
        assert_same(one, other)
    assert_same(trainer.get_weights(), single.get_weights())
    for name in ("cost", "mean", "last", "learning_rate"):
        assert trainer.monitors.history(name) == single.monitors.history(name)


def test_an_output_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LayerError, match="'fc0/outputt'") as caught:
        train(tmp_path, [Recorded("fc0/outputt")])
    assert "fc0/output" in str(caught.value.fix)
