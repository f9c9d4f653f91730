"""Life cycle of a run: open, assemble, restore, train, close."""

from __future__ import annotations

import functools
from contextlib import ExitStack
from typing import Any

from towerpack._core.errors import StateError
from towerpack._core.logs import get_logger
from towerpack.checkpoint import Checkpoint
from towerpack.dataflow.pipeline_names import without_sizes
from towerpack.training.distribution.team import Ending
from towerpack.training.interrupt import Interrupted, StopTraining
from towerpack.training.loop.loop import Loop
from towerpack.training.run.assembly import AssembledRun, assemble
from towerpack.training.run.opening import OpenRun, open_run
from towerpack.training.run.parts import RunParts
from towerpack.training.run.regroup import regroup
from towerpack.training.state.checkpoint_contents import restoring
from towerpack.training.state.clock import COMPILE
from towerpack.training.state.counters import Phase
from towerpack.training.state.data_log import start_of
from towerpack.training.state.report import log_ending, log_slow_callbacks, log_spending
from towerpack.training.state.skipped_steps import warn_if_trained

_LOG = get_logger(__name__)


class Run:
    """Run of a training, from its configuration to its end."""

    def __init__(self, parts: RunParts) -> None:
        self._parts = parts
        self._ending = "Stopped"
        self.opened: OpenRun | None = None
        self.assembled: AssembledRun | None = None
        self.complete = self.was_complete = False

    def execute(self, stack: ExitStack) -> None:
        """Run the training; `stack` closes the opened resources."""
        parts, state, team = self._parts, self._parts.state, self._parts.distribution.team
        stack.enter_context(parts.agreement.until_the_end())
        stack.enter_context(team.ended_by_sigterm())
        run = self.opened = open_run(parts, stack)
        checkpoint = run.checkpoint
        parts = self._parts = regroup(parts, checkpoint)
        # There is nothing to save yet, so a signal may interrupt anything.
        with parts.interrupt.raised_immediately() if team.size == 1 else team.collective():
            assembled = self.assembled = assemble(parts, run)
        run.directory.record_settings(assembled.settings)
        stack.callback(parts.distribution.release, assembled.tower)
        stack.push(assembled.finalize)
        store = parts.saves.open(run.directory.checkpoints, assembled.contents, run.ledger)
        stack.push(functools.partial(self._report_ending, run, assembled.loop))
        stack.callback(parts.saves.close)
        data_state = None if checkpoint is None else self._restore(run, assembled, checkpoint)
        # Later checkpoints in the directory belong to an abandoned course of training.
        store.abandon_after(state.step if checkpoint is not None else -1)
        if run.mirror is not None:
            delete = parts.config.on_existing == "delete"
            run.mirror.start(store, -1 if checkpoint is None else state.step, delete=delete)
        run.monitors.resume(state.step)
        run.costs.resume(state.step)
        if state.at_the_end:
            self.complete = self.was_complete = True
            return
        self._start_data(data_state, run)
        start = start_of(
            parts.source,
            assembled.tower.specs,
            seed=run.seed,
            replicas=parts.distribution.local_replicas,
            workers=team.size,
            asynchronous=parts.asynchronous,
            skip_steps=parts.config.skip_steps,
            settings=assembled.data_settings,
        )
        run.ledger.note("data", start=start)
        stack.callback(parts.source.stop)
        failure: BaseException | None = None
        try:
            self._train(run, assembled.loop)
        except BaseException as error:  # noqa: BLE001 - raised below
            failure = error
        failure = self._after_train(failure)
        if failure is not None:
            raise failure

    def _train(self, run: OpenRun, loop: Loop) -> None:
        parts, state = self._parts, self._parts.state
        try:
            try:
                loop.run()
            except StopTraining as reason:
                self._ending = f"Stopped ({reason})" if str(reason) else "Stopped"
            if loop.data_ended:
                self._ending = "The data ended"
            elif state.stop_reason:
                self._ending = f"Stopped ({state.stop_reason})"
            run.check_interrupt()
            parts.agreement.leave(Ending.DONE if state.at_the_end else Ending.STOPPED)
            parts.saves.at_the_end(state.place)
            self.complete = state.at_the_end
        except Interrupted:
            parts.agreement.leave()
            parts.saves.save_now()
            if parts.distribution.team.is_chief:
                _LOG.warning("Saved at step %d in %s.", state.step, run.run_dir)
            raise
        except Exception as error:
            if state.settled:
                parts.saves.before_failure(error, state.place)
            parts.agreement.fail(error)
            raise

    def _report_ending(
        self, run: OpenRun, loop: Loop, failure: type[BaseException] | None, *_: object
    ) -> None:
        if failure is not None:
            return
        run.ledger.ending = "Complete" if self.complete else self._ending
        if self._parts.distribution.team.is_chief:
            log_spending(run.ledger.totals(), run.ledger.lives)
            spent = run.ledger.clock.seconds()
            log_slow_callbacks(loop.spent(), sum(spent.values()) - spent[COMPILE])
            log_ending(
                run.ledger.ending,
                epoch=self._parts.state.epoch,
                max_epoch=self._parts.state.max_epoch,
                step=self._parts.state.step,
                run_dir=run.run_dir,
            )

    def _after_train(self, failure: BaseException | None) -> BaseException | None:
        """Call `after_train` of every callback, even if others fail. Return the first error."""
        for callback in self._parts.callbacks.callbacks:
            try:
                callback.after_train()
            except Exception as error:  # noqa: BLE001 - raised by the caller, or logged
                if failure is None:
                    failure = error
                else:
                    _LOG.exception("%r also failed, in after_train:", callback)
        return failure

    def _restore(self, run: OpenRun, assembled: AssembledRun, checkpoint: Checkpoint) -> Any:
        if not checkpoint.model.keys() <= assembled.tower.store.named_variables().keys():
            # Create the variables that only evaluation uses.
            assembled.context.trace_inference()
        with restoring(checkpoint):
            data_state = self._parts.saves.contents.restore(checkpoint)
            saved = checkpoint.state.get("settings", {})
            warn_if_trained(self._parts.config.skip_steps, self._parts.state.step, saved)
            left = self._parts.source.steps_left(data_state)
        run.step_variable.assign(self._parts.state.step)
        if left is not None:
            self._parts.state.end_after(left)
        self._parts.saves.resumed_from(checkpoint, self._parts.state.place)
        return data_state

    def _start_data(self, state: Any, run: OpenRun) -> None:
        """Start the data source at the position of the checkpoint.

        At the end of an epoch, a run may continue with other rows or another number of replicas.
        """
        source, position = self._parts.source, self._parts.state
        here = self._parts.batches or self._parts.distribution.replicas
        checkpoint = run.checkpoint
        saved = {} if checkpoint is None else checkpoint.state.get("settings", {})
        replicas = saved.get("replicas", here)
        try:
            source.start(state)
        except StateError as error:
            at_an_end = not position.in_epoch or position.phase is Phase.TRIGGERS
            pipelines = [without_sizes(text) for text in (error.got, error.expected) if text]
            other_rows = len(pipelines) == 2 and pipelines[0] == pipelines[1]
            if at_an_end and (replicas != here or other_rows):
                _LOG.warning(
                    "The run continues with %s, so the data start from the beginning.",
                    f"{here} replicas instead of {replicas}"
                    if replicas != here
                    else f"other rows ({error.expected} instead of {error.got})",
                )
                source.start(None)
                return
            if other_rows and checkpoint is not None:
                error.fix = (
                    f"restore the previous rows until epoch {position.epoch} has ended; or remove "
                    f"{checkpoint.path} to continue from the end of an earlier epoch, where other "
                    "rows are allowed"
                )
            if replicas != here:
                error.fix = (
                    f"train to the end of epoch {position.epoch} with {replicas} replicas, after "
                    "which the number may change; or resume from a checkpoint of the end of an "
                    "epoch with TrainConfig(resume=PATH, …); or use SplitInput, with which the "
                    "number may change at any step"
                )
            error.fix = (
                f"{error.fix}; or start a new run with these weights and other data: "
                f"TrainConfig(resume='never', init={str(run.run_dir)!r}, …)"
            )
            raise
