"""The loop: calls of many steps, and the hooks in their order."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from towerpack.callbacks import Callback
from towerpack.callbacks.monitors import Monitors
from towerpack.inputs import InputSource
from towerpack.training.interrupt import StopTraining
from towerpack.training.loop.agreement import Agreement
from towerpack.training.loop.executor import Pace
from towerpack.training.state.clock import DATA_WAIT, PRODUCTIVE
from towerpack.training.state.counters import Phase, RunState
from towerpack.training.state.saver import Saves
from towerpack.training.state.step_metrics import Numbers
from towerpack.training.steps.step_runner import CallResult, StepRunner


class Loop:
    """Run epochs: calls of many steps, and the hooks of callbacks.

        settled ──before_step, call, hooks of its steps──▶ unsettled ──_settle──▶ settled
           │
           ├─ a callback raised StopTraining (`_reason`) ──▶ `run` raises it
           ├─ a callback called request_stop (`state.stop_reason`) ──▶ `run` returns
           ├─ no process has data for another step (`data_ended`) ──▶ `run` returns
           ├─ a signal came (`poll` raises Interrupted) ──▶ `run` raises it
           └─ the last epoch is over ──▶ `run` returns

    While `state.settled` is False, counters, callbacks and data position have not caught up with
    the weights: no checkpoint is written and the loop is not left, unless something fails.

    Args:
        executor: Runs the steps.
        source: Gives them their data.
        callbacks: In their order.
        state: Moved here and only here.
        saver: Writes what callbacks want saved.
        numbers: Takes in what the steps report.
        monitors: Receive values.
        poll: Leaves the loop if the run is to end early.
        explain: Makes an error of one of TensorFlow's that ended a call.
        agreement: With the other processes of the run, on how many steps a call has.
    """

    def __init__(
        self,
        executor: StepRunner,
        source: InputSource,
        callbacks: Sequence[Callback],
        state: RunState,
        saver: Saves,
        *,
        numbers: Numbers,
        monitors: Monitors,
        poll: Callable[[], None],
        explain: Callable[[tf.errors.OpError], Exception],
        agreement: Agreement,
    ) -> None:
        self._executor = executor
        self._source = source
        self._callbacks = list(callbacks)
        self._spent = {id(callback): 0.0 for callback in callbacks}
        self._state = state
        self._saver = saver
        self._numbers = numbers
        self._monitors = monitors
        self._poll = poll
        self._explain = explain
        self._agreement = agreement
        self._pace = Pace(executor.budget_s)
        # Hooks that nobody overrides cost nothing.
        self._before_step = self._acting("before_step")
        self._after_step = self._acting("after_step")
        self._trigger_step = self._acting("trigger_step")
        self._after_call = self._acting("after_call")
        # The next step at which a callback has asked to act, and why one has stopped training.
        self._due: int | None = None
        self._reason: StopTraining | None = None
        acting = any(callback.acts_between_steps for callback in callbacks)
        self._single = executor.one_step_only or acting
        self.data_ended = False

    def run(self) -> None:
        """`before_train`, and all epochs that are left. Returns where training ended normally."""
        state = self._state
        self._each(self._callbacks, "before_train")
        self._spent = dict.fromkeys(self._spent, 0.0)
        self._poll()
        self._settle()
        if state.phase is Phase.STEP_TRIGGERS:
            self._trigger_step_that_is_due()
            self._settle()
        elif state.phase is Phase.TRIGGERS:
            self._end_epoch()
        while state.epoch < state.max_epoch or state.in_epoch:
            if state.stop_reason is not None:
                return
            if not state.in_epoch:
                state.settled = False
                state.begin_epoch()
                self._numbers.begin_epoch()
                self._each(self._callbacks, "before_epoch")
                self._settle()
            if not self._steps():
                return
            self._end_epoch()

    def spent(self) -> list[tuple[Callback, float]]:
        """Seconds that each callback's hooks have taken since `before_train`."""
        return [(callback, self._spent[id(callback)]) for callback in self._callbacks]

    def _steps(self) -> bool:
        """The steps that are left of this epoch; False where training ends inside it."""
        state = self._state
        while state.local_step < state.steps_per_epoch:
            self._poll()
            if state.stop_reason is not None:
                return False
            if not self._call():
                self.data_ended = True
                return False
        return True

    def _call(self) -> bool:
        """One call with the hooks of its steps; False at the end of the data."""
        state = self._state
        wanted, heavy = self._how_many()
        clock = self._numbers.clock
        with clock.during(DATA_WAIT):
            ready = self._source.reserve(wanted, self._poll)
        if ready == 1:
            # Before all processes are bound to run the step: a callback may stop training here.
            state.settled = False
            self._each(self._before_step, "before_step")
            state.settled = True
            if self._reason is not None:
                self._settle()
        with clock.during(DATA_WAIT):
            steps = self._agreement.steps(ready)
        if steps == 0:
            return False
        # Until counters, hooks and data position have caught up with the weights, there is nothing
        # that could be saved.
        state.settled = False
        started = time.perf_counter()
        try:
            with clock.during(PRODUCTIVE), self._agreement.team.collective():
                if heavy:
                    result = self._executor.run_heavy(after=state.step)
                else:
                    result = self._executor.run(steps, after=state.step)
        except tf.errors.OpError as error:
            raise self._explain(error) from None
        seconds = time.perf_counter() - started
        clock.ran(result.steps)
        if not heavy:
            self._pace.ran(result.steps, seconds)
        self._source.consumed(result.steps)
        state.nonfinite = result.nonfinite
        self._numbers.add(result, state.step + result.steps)
        self._step_hooks(result, before=self._before_step if ready > 1 else [])
        self._settle()
        self._each(self._after_call, "after_call")
        if result.nonfinite is not None:
            # Nobody minded. Its batch is passed over.
            self._source.consumed(1)
        self._settle()
        return True

    def _settle(self) -> None:
        """Everything has caught up: save what was asked for, end if a callback wants to."""
        self._state.settled = True
        self._saver.write()
        if self._reason is not None:
            raise self._reason

    def _how_many(self) -> tuple[int, bool]:
        """Steps for the next call at most, and whether it is the one with heavy summaries."""
        state = self._state
        stops = [c.next_stop(state.step) for c in self._callbacks]
        due = (max(state.step + 1, stop) for stop in stops if stop is not None)
        self._due = min(due, default=None)
        left = state.steps_per_epoch - state.local_step
        if self._executor.has_heavy:
            if left == 1:
                return 1, True
            left -= 1
        if self._due is not None:
            left = min(left, self._due - state.step)
        return (1 if self._single else min(left, self._pace.steps)), False

    def _step_hooks(self, result: CallResult, before: list[Callback]) -> None:
        state = self._state
        if not (before or self._after_step or self._trigger_step):
            state.advance(result.steps)
            return
        for i in range(result.steps):
            self._each(before, "before_step")
            state.advance(1)
            for callback in self._after_step:
                self._fire(callback, "after_step", _of_step(result.outputs, callback, i))
            if i == result.steps - 1 and state.step == self._due:
                self._trigger_step_that_is_due()
            else:
                self._each(self._trigger_step, "trigger_step")

    def _trigger_step_that_is_due(self) -> None:
        """`trigger_step` where a callback asked to act: it may take long, and be interrupted."""
        self._begin_triggers(Phase.STEP_TRIGGERS)
        self._each(self._trigger_step, "trigger_step", poll=True)
        self._end_triggers()

    def _end_epoch(self) -> None:
        self._begin_triggers(Phase.TRIGGERS)
        self._numbers.put()
        self._each(self._callbacks, "after_epoch")
        self._each(self._callbacks, "trigger_epoch", poll=True)
        self._end_triggers()
        self._state.in_epoch = False
        self._monitors.end_epoch()
        self._settle()

    def _begin_triggers(self, phase: Phase) -> None:
        """Callbacks will be triggered, which may take long.

        A run that is interrupted among them is saved as of now, and goes through all of them again
        when it is continued.
        """
        self._saver.contents.hold()
        self._state.phase = phase
        self._state.settled = True
        self._monitors.at(self._state.step, self._state.epoch)

    def _end_triggers(self) -> None:
        self._state.settled = False
        self._state.phase = Phase.STEPS
        self._saver.contents.let_go()

    def _acting(self, hook: str) -> list[Callback]:
        return [callback for callback in self._callbacks if callback.acts_in(hook)]

    def _each(self, callbacks: list[Callback], hook: str, *, poll: bool = False) -> None:
        for callback in callbacks:
            if poll:
                self._poll()
            self._fire(callback, hook)

    def _fire(self, callback: Callback, hook: str, *args: Any) -> None:
        """Fire a hook. A callback that stops training stops no other callback."""
        began = time.perf_counter()
        try:
            getattr(callback, hook)(*args)
        except StopTraining as reason:
            self._reason = self._reason or reason
        self._spent[id(callback)] += time.perf_counter() - began


def _of_step(outputs: Mapping[str, Any], callback: Callback, i: int) -> dict[str, Any]:
    return {name: outputs[name][i] for name in callback.fetches}
