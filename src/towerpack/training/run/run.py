"""A run from its start to its end: opened, built, restored, trained, closed."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import tensorflow as tf

from towerpack._core.errors import StateError
from towerpack._core.logs import get_logger
from towerpack._core.randomness import derive_seed
from towerpack.callbacks.monitors import Monitors
from towerpack.checkpoint import Checkpoint
from towerpack.dataflow._pipeline_names import without_sizes
from towerpack.nn import global_step
from towerpack.training.distribution.team import Ending
from towerpack.training.interrupt import Interrupted, StopTraining
from towerpack.training.loop.loop import Loop
from towerpack.training.run.assembly import Assembly, Materials, Opened
from towerpack.training.run.opening import monitors_of, open_run
from towerpack.training.state.clock import COMPILE, Clock
from towerpack.training.state.ledger import Ledger
from towerpack.training.state.report import say_ending, say_slow, say_spending
from towerpack.training.state.run_state import Phase

_LOG = get_logger(__name__)


class Run:
    """Take a training from its configuration to its end.

    Args:
        of: What it is made of.

    Attributes:
        opened: What is known once its directory is open.
        parts: What has been built.
        complete: True once the last epoch is done.
        was_complete: The run was complete already when it was started.
    """

    opened: Opened
    parts: Assembly

    def __init__(self, of: Materials) -> None:
        self._of = of
        self._clock = Clock()
        self._ending = "Stopped"
        self.complete = self.was_complete = False

    def execute(self, stack: ExitStack) -> None:
        """From the start to the end; `stack` closes what has been opened.

        Raises:
            Interrupted: SIGTERM or Ctrl-C came, and the run has been saved.
        """
        of, state, team = self._of, self._of.state, self._of.distribution.team
        stack.enter_context(of.agreement.until_the_end())
        stack.enter_context(team.ended_by_sigterm())
        directory, checkpoint, seed = open_run(of.config, state, team, stack)
        resumed_at = None if checkpoint is None else checkpoint.step
        ledger = stack.enter_context(
            Ledger(directory.ledger, self._clock, step=lambda: state.step, resumed_at=resumed_at)
        )
        if of.config.deterministic:
            tf.config.experimental.enable_op_determinism()
        tf.random.set_seed(derive_seed(seed, "tensorflow") >> 32)
        monitors = Monitors(monitors_of(of.config, directory) if team.is_chief else [])
        stack.callback(monitors.close)
        step = stack.enter_context(global_step())
        step.assign(0)
        self.opened = Opened(directory.path, seed, monitors, ledger, step, self._check_interrupt)
        # Nothing has happened yet that would have to be saved.
        with of.interrupt.at_once() if team.size == 1 else team.collective():
            self.parts = Assembly(of, self.opened, resumed=checkpoint is not None)
        directory.record_settings(self.parts.settings)
        stack.callback(of.distribution.release, self.parts.tower)
        stack.push(self.parts.finalize)
        store = of.saves.open(directory.checkpoints, self.parts.contents, ledger)
        stack.push(self._say_ending)
        stack.callback(of.saves.close)
        data_state = None if checkpoint is None else self._restore(checkpoint)
        # What lies in the directory after this point belongs to another course of events.
        store.abandon_after(state.step if checkpoint is not None else -1)
        monitors.resume(state.step)
        if state.at_the_end:
            self.complete = self.was_complete = True
            return
        saved = {} if checkpoint is None else checkpoint.state.get("settings", {})
        self._start_data(data_state, saved.get("replicas", of.distribution.replicas), checkpoint)
        stack.callback(of.source.stop)
        failure: BaseException | None = None
        try:
            self._train(self.parts.loop)
        except BaseException as error:  # noqa: BLE001 - raised below
            failure = error
        failure = self._after_train(failure)
        if failure is not None:
            raise failure

    def _train(self, loop: Loop) -> None:
        of, state = self._of, self._of.state
        try:
            try:
                loop.run()
            except StopTraining as reason:
                self._ending = f"Stopped ({reason})" if str(reason) else "Stopped"
            if loop.data_ended:
                self._ending = "The data ended"
            elif state.reason:
                self._ending = f"Stopped ({state.reason})"
            self._check_interrupt()
            of.agreement.leave(Ending.DONE if state.at_the_end else Ending.STOPPED)
            of.saves.at_the_end(state.place)
            self.complete = state.at_the_end
        except Interrupted:
            of.agreement.leave()
            of.saves.save_now()
            if of.distribution.team.is_chief:
                _LOG.warning("Saved at step %d in %s.", state.step, self.opened.run_dir)
            raise
        except Exception as error:
            if state.settled:
                of.saves.before_failure(error, state.place)
            of.agreement.fail(error)
            raise

    def _check_interrupt(self) -> None:
        """Leave the run here if SIGTERM or Ctrl-C has come.

        Inside the hooks of single steps it does nothing: they are as good as done. Where it leaves
        a callback's `trigger`, that is called again when the run is continued.
        """
        self.opened.ledger.beat()
        self._of.watch()
        if self._of.state.settled:
            self._of.interrupt.check()

    def _say_ending(self, failure: type[BaseException] | None, *_: object) -> None:
        if failure is not None:
            return
        self.opened.ledger.ending = "Complete" if self.complete else self._ending
        if self._of.distribution.team.is_chief:
            say_spending(self.opened.ledger.totals(), self.opened.ledger.lives)
            spent = self.opened.ledger.clock.seconds()
            say_slow(self.parts.loop.spent(), sum(spent.values()) - spent[COMPILE])
            say_ending(
                self.opened.ledger.ending,
                epoch=self._of.state.epoch,
                max_epoch=self._of.state.max_epoch,
                step=self._of.state.step,
                run_dir=self.opened.run_dir,
            )

    def _after_train(self, failure: BaseException | None) -> BaseException | None:
        """Call each callback's `after_train`, even if others fail; gives what ended training."""
        for callback in self._of.callbacks.callbacks:
            try:
                callback.after_train()
            except Exception as error:  # noqa: BLE001 - raised by the caller, or logged
                if failure is None:
                    failure = error
                else:
                    _LOG.exception("%r failed too, after the training:", callback)
        return failure

    def _restore(self, checkpoint: Checkpoint) -> Any:
        """Take a checkpoint over; gives the data's state."""
        if not checkpoint.model.keys() <= self.parts.tower.store.named_variables().keys():
            # Evaluation may have made variables that training does not have.
            self.parts.context.trace_inference()
        data_state = self._of.saves.contents.restore(checkpoint)
        self.opened.step_variable.assign(self._of.state.step)
        left = self._of.source.steps_left(data_state)
        if left is not None:
            self._of.state.end_after(left)
        self._of.saves.resumed_from(checkpoint, self._of.state.place)
        return data_state

    def _start_data(self, state: Any, replicas: int, checkpoint: Checkpoint | None) -> None:
        """Continue in the data; `replicas` is their number when the state was saved.

        At the end of an epoch, a run can continue with other rows or another number of replicas.
        """
        source, run, here = self._of.source, self._of.state, self._of.distribution.replicas
        try:
            source.start(state)
        except StateError as error:
            at_an_end = not run.in_epoch or run.phase is Phase.TRIGGERS
            pipelines = [without_sizes(text) for text in (error.got, error.expected) if text]
            other_rows = len(pipelines) == 2 and pipelines[0] == pipelines[1]
            if at_an_end and (replicas != here or other_rows):
                _LOG.warning(
                    "The run goes on with %s: the data start anew.",
                    f"{here} replicas instead of {replicas}"
                    if replicas != here
                    else f"other rows ({error.expected} instead of {error.got})",
                )
                source.start(None)
                return
            if other_rows and checkpoint is not None:
                error.fix = (
                    f"restore the previous rows until epoch {run.epoch} has ended; or remove "
                    f"{checkpoint.path}, so that the run continues at the end of an earlier epoch, "
                    "where other rows are allowed"
                )
            if replicas != here:
                error.fix = (
                    f"run to the end of epoch {run.epoch} with {replicas} replicas as before, from "
                    "there on any number will do; or resume from a checkpoint that was saved at "
                    "the end of an epoch: TrainConfig(resume=PATH, …). With SplitInput the number "
                    "can change at any step"
                )
            error.fix = (
                f"{error.fix}; or begin a new run with these weights and other data: "
                f"TrainConfig(resume='never', init={str(self.opened.run_dir)!r}, …)"
            )
            raise
