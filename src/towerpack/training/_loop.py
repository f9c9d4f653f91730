"""The loop: calls of many steps, and the hooks in their order."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from towerpack.callbacks import Callback
from towerpack.training._interrupt import StopTraining
from towerpack.training._pace import Pace
from towerpack.training._program import CallResult

if TYPE_CHECKING:
    from towerpack.training._trainer import Trainer


class Loop:
    """Runs epochs for a trainer.

    Args:
        trainer: Its counters (`global_step`, `epoch`, `local_step`) are moved here and only here.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._pace = Pace()
        callbacks = trainer.callbacks.callbacks
        self._callbacks = callbacks
        # Hooks that nobody overrides cost nothing.
        self._before_step = _acting(callbacks, "before_step")
        self._after_step = _acting(callbacks, "after_step")
        self._trigger_step = _acting(callbacks, "trigger_step")
        self._after_call = _acting(callbacks, "after_call")
        # The next step at which a callback has asked to act, and why one has stopped training.
        self._due: int | None = None
        self._reason: StopTraining | None = None
        self._single = trainer.program.one_step_only or any(c.acts_between_steps for c in callbacks)

    def run(self) -> None:
        """`before_train`, and all epochs that are left. Returns where training ended normally.

        Raises:
            StopTraining: A callback did, and the other callbacks of that moment have acted.
        """
        trainer = self._trainer
        self._each(self._callbacks, "before_train")
        trainer.check_interrupt()
        self._settle()
        if trainer.phase == "step triggers":
            self._trigger_step_that_is_due()
            self._settle()
        elif trainer.phase == "triggers":
            self._end_epoch()
        while trainer.epoch < trainer.max_epoch or trainer.in_epoch:
            if trainer.stopping:
                return
            if not trainer.in_epoch:
                trainer.settled = False
                trainer.begin_epoch()
                self._each(self._callbacks, "before_epoch")
                self._settle()
            if not self._steps():
                return
            self._end_epoch()

    def _steps(self) -> bool:
        """The steps that are left of this epoch; False where training ends inside it."""
        trainer = self._trainer
        while trainer.local_step < trainer.steps_per_epoch:
            trainer.check_interrupt()
            if trainer.stopping:
                return False
            if not self._call():
                trainer.say_data_ended()
                return False
        return True

    def _call(self) -> bool:
        """One call with the hooks of its steps; False at the end of the data."""
        trainer = self._trainer
        wanted, heavy = self._how_many()
        waiting = time.perf_counter()
        steps = trainer.source.reserve(wanted, trainer.check_interrupt)
        started = time.perf_counter()
        trainer.clock.waited(started - waiting)
        if steps == 0:
            return False
        # Until counters, hooks and data position have caught up with the weights, there is nothing
        # that could be saved.
        trainer.settled = False
        if steps == 1:
            self._each(self._before_step, "before_step")
            if self._reason is not None:
                self._settle()
        program, after = trainer.program, trainer.global_step
        try:
            result = program.run_heavy(after=after) if heavy else program.run(steps, after=after)
        except tf.errors.OpError as error:
            raise trainer.failed_step(error) from None
        seconds = time.perf_counter() - started
        trainer.clock.ran(result.steps, seconds)
        if not heavy:
            self._pace.ran(result.steps, seconds)
        trainer.source.consumed(result.steps)
        trainer.last_nonfinite = result.nonfinite
        trainer.report_steps(result)
        self._step_hooks(result, before=self._before_step if steps > 1 else [])
        self._settle()
        self._each(self._after_call, "after_call")
        if result.nonfinite is not None:
            # Nobody minded. Its batch is passed over.
            trainer.source.consumed(1)
        self._settle()
        return True

    def _settle(self) -> None:
        """Everything has caught up: save what was asked for, end if a callback wants to."""
        self._trainer.settled = True
        self._trainer.write_saves()
        if self._reason is not None:
            raise self._reason

    def _how_many(self) -> tuple[int, bool]:
        """Steps for the next call at most, and whether it is the one with heavy summaries."""
        trainer = self._trainer
        now = trainer.global_step
        stops = [c.next_stop(now) for c in self._callbacks]
        self._due = min((max(now + 1, stop) for stop in stops if stop is not None), default=None)
        left = trainer.steps_per_epoch - trainer.local_step
        if trainer.program.has_heavy:
            if left == 1:
                return 1, True
            left -= 1
        if self._due is not None:
            left = min(left, self._due - now)
        return (1 if self._single else min(left, self._pace.steps)), False

    def _step_hooks(self, result: CallResult, before: list[Callback]) -> None:
        trainer = self._trainer
        if not (before or self._after_step or self._trigger_step):
            trainer.advance(result.steps)
            return
        for i in range(result.steps):
            self._each(before, "before_step")
            trainer.advance(1)
            for callback in self._after_step:
                try:
                    callback.after_step(_of_step(result.outputs, callback, i))
                except StopTraining as reason:
                    self._reason = self._reason or reason
            if i == result.steps - 1 and trainer.global_step == self._due:
                self._trigger_step_that_is_due()
            else:
                self._each(self._trigger_step, "trigger_step")

    def _trigger_step_that_is_due(self) -> None:
        """`trigger_step` where a callback asked to act: it may take long, and be interrupted."""
        trainer = self._trainer
        trainer.begin_triggers("step triggers")
        self._each(self._trigger_step, "trigger_step", poll=True)
        trainer.end_triggers()

    def _end_epoch(self) -> None:
        trainer = self._trainer
        trainer.begin_triggers("triggers")
        trainer.put_epoch_numbers()
        self._each(self._callbacks, "after_epoch")
        self._each(self._callbacks, "trigger_epoch", poll=True)
        trainer.end_triggers()
        trainer.end_epoch()
        self._settle()

    def _each(self, callbacks: list[Callback], hook: str, *args: Any, poll: bool = False) -> None:
        """Fire a hook of some callbacks. One that stops training stops no other callback."""
        for callback in callbacks:
            if poll:
                self._trainer.check_interrupt()
            try:
                getattr(callback, hook)(*args)
            except StopTraining as reason:
                self._reason = self._reason or reason


def _of_step(outputs: Mapping[str, Any], callback: Callback, i: int) -> dict[str, Any]:
    return {name: outputs[name][i] for name in callback.fetches}


def _acting(callbacks: list[Callback], hook: str) -> list[Callback]:
    return [callback for callback in callbacks if callback.acts_in(hook)]
