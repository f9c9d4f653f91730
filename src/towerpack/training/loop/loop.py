"""Training loop: calls of many steps, and the hooks of callbacks in their order."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
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
from towerpack.training.state.skipped_steps import SkippedSteps
from towerpack.training.state.step_metrics import Numbers
from towerpack.training.steps.step_runner import CallResult, StepRunner


class Loop:
    """Training loop over epochs: calls of many steps, and the hooks of callbacks.

        settled ──before_step, call, hooks of its steps──▶ unsettled ──_settle──▶ settled
           │
           ├─ a callback raised StopTraining (`_reason`) ──▶ `run` raises it
           ├─ a callback called request_stop (`state.stop_reason`) ──▶ `run` returns
           ├─ no process has data for another step (`data_ended`) ──▶ `run` returns
           ├─ a signal was received (`poll` raises Interrupted) ──▶ `run` raises it
           └─ the last epoch is over ──▶ `run` returns

    While `state.settled` is False, counters, callbacks and data position do not match the weights
    yet. Until they do, no checkpoint is written and only an error ends the loop. `poll` raises an
    error if the run must end early; `explain` converts an error of TensorFlow that ended a call.
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
        skipped: SkippedSteps,
    ) -> None:
        self._executor, self._source, self._callbacks = executor, source, list(callbacks)
        self._state, self._saver, self._numbers = state, saver, numbers
        self._monitors, self._poll, self._explain = monitors, poll, explain
        self._agreement, self._skipped = agreement, skipped
        self._spent = {id(callback): 0.0 for callback in callbacks}
        self._pace = Pace(executor.budget_s)
        # Do not call hooks that no callback overrides.
        self._before_step = self._acting("before_step")
        self._after_step = self._acting("after_step")
        self._trigger_step = self._acting("trigger_step")
        self._after_call = self._acting("after_call")
        # The next step at which a callback asked to act, and the exception that stops training.
        self._due: int | None = None
        self._reason: StopTraining | None = None
        acting = any(callback.acts_between_steps for callback in callbacks)
        self._single = executor.one_step_only or acting
        self.data_ended = False

    def run(self) -> None:
        """Call `before_train` and run the remaining epochs. Return if training ends normally."""
        state = self._state
        self._each(self._callbacks, "before_train")
        self._spent = dict.fromkeys(self._spent, 0.0)
        self._poll()
        self._settle()
        if state.phase is Phase.STEP_TRIGGERS:
            self._trigger_due_step()
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
        """Return the seconds spent in each callback's hooks since `before_train`."""
        return [(callback, self._spent[id(callback)]) for callback in self._callbacks]

    def _steps(self) -> bool:
        """Run the remaining steps of this epoch. Return False if training must end earlier."""
        state = self._state
        while state.local_step < state.steps_per_epoch:
            self._poll()
            if state.stop_reason is not None:
                return False
            left = state.steps_per_epoch - state.local_step
            left, skipped = self._skipped.next(state.step, left)
            if not (self._skip(left) if skipped else self._call(left)):
                self.data_ended = True
                return False
        return True

    def _skip(self, left: int) -> bool:
        """Skip at most `left` steps. Return False at the end of the data.

        Processes do not agree on it, because all skip the same steps and none changes its weights.
        """
        with self._numbers.clock.during(DATA_WAIT):
            steps = self._skipped.skip(left, self._state.step, self._poll)
        self._state.advance(steps)
        return steps > 0

    def _call(self, left: int) -> bool:
        """Run at most `left` steps and their hooks. Return False at the end of the data."""
        state = self._state
        most, heavy = self._next_call(left)
        clock = self._numbers.clock
        with clock.during(DATA_WAIT):
            ready = self._source.reserve(most, self._poll)
        if ready == 1:
            # A callback may stop training here, so call it before all processes agree on the step.
            state.settled = False
            self._each(self._before_step, "before_step")
            state.settled = True
            if self._reason is not None:
                self._settle()
        with clock.during(DATA_WAIT):
            steps = self._agreement.steps(ready)
        if steps == 0:
            return False
        # No state can be saved until counters, hooks and data position match the weights.
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
            # No callback handled the non-finite cost, so skip this batch.
            self._source.consumed(1)
            self._saver.ledger.note("passed over")
        self._settle()
        return True

    def _settle(self) -> None:
        """Write requested checkpoints. Raise `StopTraining` if a callback has raised it."""
        self._state.settled = True
        self._saver.write()
        if self._reason is not None:
            raise self._reason

    def _next_call(self, left: int) -> tuple[int, bool]:
        """Return the largest number of steps of the next call, and whether it has histograms."""
        state = self._state
        stops = [c.next_stop(state.step) for c in self._callbacks]
        due = (max(state.step + 1, stop) for stop in stops if stop is not None)
        self._due = min(due, default=None)
        if self._executor.has_heavy and state.local_step + left == state.steps_per_epoch:
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
                outputs = {name: result.outputs[name][i] for name in callback.fetches}
                self._fire(callback, "after_step", outputs)
            if i == result.steps - 1 and state.step == self._due:
                self._trigger_due_step()
            else:
                self._each(self._trigger_step, "trigger_step")

    def _trigger_due_step(self) -> None:
        """Call `trigger_step` at a step for which a callback asked. Signals may interrupt it."""
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
        """Hold the present state for checkpoints that are saved while callbacks are triggered.

        A run that is interrupted meanwhile calls all triggers again when it continues.
        """
        self._saver.contents.hold()
        self._state.phase = phase
        self._state.settled = True
        self._monitors.set_step(self._state.step, self._state.epoch)

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
        """Call a hook of a callback. If it raises StopTraining, other hooks are still called."""
        began = time.perf_counter()
        try:
            getattr(callback, hook)(*args)
        except StopTraining as reason:
            self._reason = self._reason or reason
        self._spent[id(callback)] += time.perf_counter() - began
