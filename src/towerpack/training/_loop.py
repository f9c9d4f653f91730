"""The loop: calls of many steps, and the hooks in their order."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from towerpack.callbacks import Callback
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
        self._single = trainer.program.one_step_only or any(c.acts_between_steps for c in callbacks)

    def run(self) -> None:
        """All epochs that are left. Returns where training ended normally."""
        trainer = self._trainer
        if trainer.phase == "triggers":
            self._end_epoch()
        while trainer.epoch < trainer.max_epoch or trainer.in_epoch:
            if trainer.stopping:
                return
            if not trainer.in_epoch:
                trainer.begin_epoch()
                self._each("before_epoch")
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
            result = self._call()
            if result is None:
                trainer.say_data_ended()
                return False
            self._hooks(result)
            trainer.write_saves()
        return True

    def _call(self) -> CallResult | None:
        trainer = self._trainer
        wanted, heavy = self._how_many()
        waiting = time.perf_counter()
        steps = trainer.source.reserve(wanted, trainer.check_interrupt)
        started = time.perf_counter()
        trainer.clock.waited(started - waiting)
        if steps == 0:
            return None
        if steps == 1:
            for callback in self._before_step:
                callback.before_step()
        result = trainer.program.run_heavy() if heavy else trainer.program.run(steps)
        seconds = time.perf_counter() - started
        trainer.clock.ran(result.steps, seconds)
        if not heavy:
            self._pace.ran(result.steps, seconds)
        trainer.source.consumed(result.steps if result.nonfinite is None else result.steps + 1)
        trainer.last_nonfinite = result.nonfinite
        return result

    def _how_many(self) -> tuple[int, bool]:
        """Steps for the next call at most, and whether it is the one with heavy summaries."""
        trainer = self._trainer
        left = trainer.steps_per_epoch - trainer.local_step
        if trainer.program.has_heavy:
            if left == 1:
                return 1, True
            left -= 1
        for callback in self._callbacks:
            stop = callback.next_stop(trainer.global_step)
            if stop is not None:
                left = min(left, max(1, stop - trainer.global_step))
        return (1 if self._single else min(left, self._pace.steps)), False

    def _hooks(self, result: CallResult) -> None:
        trainer = self._trainer
        trainer.report_steps(result)
        if not (self._before_step or self._after_step or self._trigger_step):
            trainer.advance(result.steps)
        else:
            for i in range(result.steps):
                if result.steps > 1:
                    for callback in self._before_step:
                        callback.before_step()
                trainer.advance(1)
                for callback in self._after_step:
                    callback.after_step(_of_step(result.outputs, callback, i))
                for callback in self._trigger_step:
                    callback.trigger_step()
        for callback in self._after_call:
            callback.after_call()

    def _end_epoch(self) -> None:
        trainer = self._trainer
        trainer.begin_triggers()
        self._each("after_epoch")
        for callback in self._callbacks:
            trainer.check_interrupt()
            callback.trigger_epoch()
        trainer.end_epoch()

    def _each(self, hook: str) -> None:
        for callback in self._callbacks:
            getattr(callback, hook)()


def _of_step(outputs: Mapping[str, Any], callback: Callback, i: int) -> dict[str, Any]:
    return {name: outputs[name][i] for name in callback.fetches}


def _acting(callbacks: list[Callback], hook: str) -> list[Callback]:
    return [callback for callback in callbacks if callback.acts_in(hook)]
