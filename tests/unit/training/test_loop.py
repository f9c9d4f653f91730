"""The loop, over a step runner that computes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from small_training import Do, Recorded, fail, stop
from towerpack import StepError
from towerpack.callbacks import Callback
from towerpack.callbacks.monitors import Monitors
from towerpack.inputs import InputSource
from towerpack.training import StopTraining
from towerpack.training.distribution.team import Team
from towerpack.training.interrupt import InterruptFlag
from towerpack.training.loop.agreement import Agreement
from towerpack.training.loop.loop import Loop
from towerpack.training.optim.hyper_params import HyperParams
from towerpack.training.optim.schedules import Schedules
from towerpack.training.state.clock import Clock
from towerpack.training.state.counters import Phase, RunState
from towerpack.training.state.skipped_steps import SkippedSteps
from towerpack.training.steps.step_runner import CallResult


class Runner:
    """Notes each call; step `nonfinite` is not applied with its first batch, `failing` fails."""

    budget_s = 1e9  # as many steps as possible

    def __init__(
        self, state: RunState, *, heavy: bool = False, nonfinite: int = 0, failing: int = 0
    ) -> None:
        self.one_step_only, self.has_heavy = False, heavy
        self.calls: list[tuple[int, int]] = []
        self.heavy: list[int] = []
        self._state, self._nonfinite, self._failing = state, nonfinite, failing

    def compile(self) -> None:
        pass

    def run(self, steps: int, *, after: int) -> CallResult:
        assert not self._state.settled
        self.calls.append((after, steps))
        if after < self._failing <= after + steps:
            raise tf.errors.InvalidArgumentError(None, None, "on purpose")
        bad = after < self._nonfinite <= after + steps
        done = self._nonfinite - 1 - after if bad else steps
        self._nonfinite = 0 if bad else self._nonfinite
        return CallResult(done, {"cost": np.zeros(done)}, {}, {}, [np.zeros(1)] if bad else None)

    def run_heavy(self, *, after: int) -> CallResult:
        self.heavy.append(after + 1)
        return self.run(1, after=after)


class Source(InputSource):
    """A number of batches, of which so many are ready at once."""

    def __init__(self, batches: int = 100, ready: int = 100) -> None:
        self.left, self._ready = batches, ready

    def setup(self, specs: Any, *, seed: int, replicas: int = 1) -> None:
        pass

    def get(self, step: Any) -> list[tf.Tensor]:
        raise NotImplementedError

    def reserve(self, steps: int, poll: Any) -> int:
        return min(steps, self._ready, self.left)

    def consumed(self, steps: int) -> None:
        self.left -= steps


class Saver:
    """Notes the places of the run at which something may be saved."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self.contents = self.ledger = self
        self.held = False
        self.places: list[tuple[int, bool]] = []

    def hold(self) -> None:
        self.held = True

    def let_go(self) -> None:
        self.held = False

    def note(self, event: str) -> None:
        assert (event, self._state.step) == ("passed over", 3)

    def write(self) -> None:
        assert self._state.settled
        assert not self.held
        self.places.append((self._state.step, self._state.in_epoch))


class Numbers:
    """Takes in everything and gives nothing."""

    clock = Clock()

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


class Trained:
    """A loop of two epochs of six steps, and its parts."""

    def __init__(
        self, *callbacks: Callback, source: Source | None = None, poll: Any = None, **runner: Any
    ) -> None:
        self.state = RunState(steps_per_epoch=6, max_epoch=2)
        self.runner = Runner(self.state, **runner)
        self.source = Source() if source is None else source
        self.saver = Saver(self.state)
        monitors: Any = Monitors()
        for callback in callbacks:
            callback.trainer = self  # type: ignore[assignment]
        self.loop = Loop(
            self.runner,
            self.source,
            callbacks,
            self.state,
            self.saver,  # type: ignore[arg-type]
            numbers=Numbers(),  # type: ignore[arg-type]
            monitors=monitors,
            poll=poll or (lambda: None),
            explain=lambda error: StepError(str(error.message)),
            agreement=Agreement(Team(), HyperParams(), InterruptFlag()),
            skipped=SkippedSteps([], self.source, 1, tf.Variable(0), Schedules(), []),
        )

    @property
    def global_step(self) -> int:
        return self.state.step

    @property
    def epoch(self) -> int:
        return self.state.epoch

    def run(self) -> Trained:
        self.loop.run()
        return self


def test_calls_follow_each_other_and_none_crosses_the_end_of_an_epoch() -> None:
    done = Trained().run()
    ends = [after + steps for after, steps in done.runner.calls]
    assert [after for after, _ in done.runner.calls] == [0, *ends[:-1]]
    assert {6, 12} <= {*ends}
    assert ends[-1] == 12
    assert done.state.at_the_end


def test_a_call_has_no_more_steps_than_have_their_data() -> None:
    done = Trained(source=Source(ready=2)).run()
    assert max(steps for _, steps in done.runner.calls) == 2


def test_a_call_ends_at_each_step_that_a_callback_waits_for() -> None:
    waits = Recorded()
    waits.next_stop = lambda step: next((s for s in (5, 8) if s > step), None)  # type: ignore[method-assign]
    done = Trained(waits).run()
    assert {5, 6, 8, 12} <= {after + steps for after, steps in done.runner.calls}


def test_only_the_last_step_of_an_epoch_has_heavy_summaries() -> None:
    assert Trained(heavy=True).run().runner.heavy == [6, 12]


def test_the_end_of_the_data_leaves_the_loop_settled_inside_an_epoch() -> None:
    done = Trained(source=Source(batches=8)).run()
    assert done.loop.data_ended
    assert (done.state.step, done.state.local_step, done.state.settled) == (8, 2, True)
    assert not done.state.at_the_end


def test_the_batch_of_a_step_that_was_not_applied_is_passed_over() -> None:
    done = Trained(source=Source(batches=20), nonfinite=4).run()
    assert done.state.step == 12
    assert done.source.left == 20 - 12 - 1
    assert 3 in [after for after, _ in done.runner.calls], "the next batch is that of step 4"


@pytest.mark.parametrize("hook", ["before_train", "before_epoch", "after_step", "trigger"])
def test_all_callbacks_act_and_the_state_may_be_saved_before_one_ends_training(hook: str) -> None:
    after = Recorded()
    trained = Trained(Do(hook, stop), after)
    with pytest.raises(StopTraining, match="enough"):
        trained.run()
    assert after.log[-1][0] in (hook, "after_call", "trigger_step")
    assert (hook, trained.epoch) in [(name, epoch) for name, epoch, _ in after.log]
    assert trained.saver.places[-1] == (trained.state.step, trained.state.in_epoch)


def test_a_request_to_stop_returns_before_the_next_call() -> None:
    def request(callback: Callback) -> None:
        callback.trainer.state.stop_reason = ""  # type: ignore[attr-defined]

    done = Trained(Do("after_call", request)).run()
    assert len(done.runner.calls) == 1
    assert done.state.settled


def test_a_failed_call_is_explained_and_leaves_the_state_unsettled() -> None:
    trained = Trained(failing=2)
    with pytest.raises(StepError, match="on purpose") as caught:
        trained.run()
    assert caught.value.__cause__ is None
    assert not trained.state.settled
    assert trained.source.left == 100 - trained.state.step


def test_a_signal_among_triggers_leaves_what_a_resumed_run_goes_through_again() -> None:
    asked: list[Phase] = []

    def poll() -> None:
        asked.append(trained.state.phase)
        if asked[-1] is Phase.TRIGGERS:
            raise KeyboardInterrupt

    second = Recorded()
    trained = Trained(second, poll=poll)
    with pytest.raises(KeyboardInterrupt):
        trained.run()
    assert ("trigger", 1, 6) not in second.log
    assert (trained.state.settled, trained.saver.held) == (True, True)
    assert trained.state.place == (6, True, Phase.TRIGGERS)


def test_an_exception_in_a_hook_leaves_the_loop_at_once() -> None:
    after = Recorded()
    with pytest.raises(KeyError, match="on purpose"):
        Trained(Do("before_epoch", fail), after).run()
    assert [hook for hook, _, _ in after.log] == ["before_train"]
