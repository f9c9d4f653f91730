"""What a training is put together of, and what it goes through: build, restore, run, end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack._core.errors import ConfigError, StateError
from towerpack._core.logs import console, get_logger
from towerpack._core.native_log import quiet_start
from towerpack._core.randomness import derive_seed
from towerpack.callbacks import Callback, Callbacks, CheckNumerics, ProgressBar
from towerpack.callbacks.monitors import Monitors
from towerpack.checkpoint import Checkpoint
from towerpack.inputs import as_input
from towerpack.model import as_model
from towerpack.nn import global_step
from towerpack.tower import TowerFunction
from towerpack.training._assembly import Assembly, Materials
from towerpack.training._clock import Clock
from towerpack.training._config import TrainConfig
from towerpack.training._distribution import Distribution, SharedVariables
from towerpack.training._executor import Executor
from towerpack.training._hyper import VariableParam
from towerpack.training._hyper_params import HyperParams
from towerpack.training._interrupt import Interrupted, InterruptFlag, StopTraining
from towerpack.training._ledger import Ledger
from towerpack.training._loop import Loop
from towerpack.training._practice import as_practice
from towerpack.training._run_state import RunState, ShowsState
from towerpack.training._saves import Saves
from towerpack.training._starting import open_run, steps_of_one_pass, usual_monitors
from towerpack.training._step import SupervisedStep, TrainStep
from towerpack.training._tables import say_ending, say_spending
from towerpack.training._team import Agreement, Ending

_LOG = get_logger(__name__)


class Trainer(ShowsState):
    """Trains a model as a `TrainConfig` says. Use `SimpleTrainer` or another one by name.

    Args:
        config: What to train; None to leave that to `launch_train_with_config`.
        step: What one step is; None for one cost and one optimizer.
        distribution: Where the replicas run; None for one on the device that TensorFlow chooses.

    Attributes:
        seed: The run's seed.
        run_dir: Where everything of this run is.
        tower: The tower function, with its variables.
        monitors: Takes numbers and pictures; keeps their history.
        complete: True once the last epoch is done.
        was_complete: The run was complete already when it was started.
    """

    seed: int
    run_dir: Path
    tower: TowerFunction
    monitors: Monitors
    _executor: Callable[..., Any] = Executor

    def __init__(
        self,
        config: TrainConfig | None = None,
        *,
        step: TrainStep | None = None,
        distribution: Distribution | None = None,
    ) -> None:
        self._step = step or SupervisedStep()
        self._distribution = distribution or SharedVariables()
        self._trained = False
        self.complete = self.was_complete = False
        if config is not None:
            self.configure(config)

    def configure(self, config: TrainConfig) -> None:
        """Say what to train, to a trainer that was made without a configuration.

        Raises:
            ConfigError: It has one already, or the configuration makes no sense.
        """
        if hasattr(self, "config"):
            raise ConfigError(
                f"This {type(self).__name__} has a configuration already.",
                fix=f"{type(self).__name__}() for launch_train_with_config(config, trainer)",
            )
        # What was set after it was made is checked as well: `config.session_init = …`.
        self.config = config = as_practice(dataclasses.replace(config))
        self.model = as_model(config.model)
        team = self._distribution.team
        data = config.data if config.dataflow is None else config.dataflow
        self.source = as_input(team.share(data))
        extra = config.extra_callbacks
        usual = [CheckNumerics(), ProgressBar()] if extra is None else list(extra)
        callbacks = Callbacks([Callbacks(_as_list(config.callbacks)), *usual]).callbacks
        self.callbacks = Callbacks([c for c in callbacks if team.is_chief or not c.chief_only])
        replicas = self._distribution.local_replicas
        steps = config.steps_per_epoch or steps_of_one_pass(self.source, replicas)
        self._state = RunState(steps_per_epoch=steps, max_epoch=config.max_epoch)
        self._hyper_params = HyperParams()
        self._saves = Saves(lambda name: self.monitors.latest(name), writes=team.is_chief)
        self._interrupt = InterruptFlag()
        self._agreement = Agreement(team, self._hyper_params, self._interrupt)
        self._ending = "Stopped"

    # ------------------------------------------------------------------ what programs ask

    def hyper_param(self, name: str) -> VariableParam:
        """A number that the running graph reads: the learning rate, or a scalar variable.

        Raises:
            ConfigError: There is none of this name.
        """
        return self._hyper_params.get(name)

    def hyper_param_names(self) -> list[str]:
        """Names that `hyper_param` knows."""
        return self._hyper_params.names()

    def get_weights(self, *, ema: bool = False) -> dict[str, np.ndarray]:
        """The model's variables by name, as copies.

        Args:
            ema: Those that `WeightEMA` averages as their averages.

        Raises:
            ConfigError: The trainer has not been started, or keeps no averages.
        """
        if not self._trained:
            raise ConfigError("A trainer has no weights before train().")
        return self._parts.context.get_weights(ema=ema)

    # ------------------------------------------------------------------ lifecycle

    def train(self) -> None:
        """Train to the last epoch, or until the data or a callback end it.

        Raises:
            SystemExit: SIGTERM (code 143) or Ctrl-C (130) came; the run has been saved and can be
                continued.
            Exception: Whatever failed, in the model, a callback, a feeding thread or on the disk.
        """
        if not hasattr(self, "config"):
            raise ConfigError(
                f"This {type(self).__name__} has no configuration.",
                fix=f"{type(self).__name__}(config).train(), or "
                "launch_train_with_config(config, trainer)",
            )
        if self._trained:
            raise ConfigError(
                "This trainer has been used.", fix="make a new one to train again or to continue"
            )
        self._trained = True
        self._clock = Clock()
        console()
        try:
            with ExitStack() as stack:
                stack.enter_context(self._interrupt.listening())
                with quiet_start():
                    tf.config.list_logical_devices()
                self._run(stack)
            # It may have come after the last step: the run is complete, but the program is to end.
            self._interrupt.check()
        except Interrupted:
            raise SystemExit(self._interrupt.exit_code) from None

    def _run(self, stack: ExitStack) -> None:
        config, state = self.config, self._state
        team = self._distribution.team
        directory, checkpoint, self.seed = open_run(config, state, team, stack)
        self.run_dir = directory.path
        resumed_at = None if checkpoint is None else checkpoint.step
        self._ledger = stack.enter_context(
            Ledger(directory.ledger, self._clock, step=lambda: state.step, resumed_at=resumed_at)
        )
        if config.deterministic:
            tf.config.experimental.enable_op_determinism()
        tf.random.set_seed(derive_seed(self.seed, "tensorflow") >> 32)
        given = usual_monitors(directory) if config.monitors is None else config.monitors
        self.monitors = Monitors(given if team.is_chief else [])
        stack.callback(self.monitors.close)
        self._step_variable = stack.enter_context(global_step())
        self._step_variable.assign(0)
        # Nothing has happened yet that would have to be saved.
        with self._interrupt.at_once() if team.size == 1 else nullcontext():
            self._parts = parts = Assembly(self._materials(), resumed=checkpoint is not None)
        self.tower = parts.tower
        store = self._saves.open(directory.checkpoints, parts.contents, self._ledger)
        stack.push(self._say_ending)
        stack.callback(self._saves.close)
        data_state = None if checkpoint is None else self._restore(checkpoint)
        # What lies in the directory after this point belongs to another course of events.
        store.abandon_after(state.step if checkpoint is not None else -1)
        self.monitors.resume(state.step)
        if state.at_the_end:
            self.complete = self.was_complete = True
            return
        self._start_data(data_state)
        stack.callback(self.source.stop)
        failure: BaseException | None = None
        try:
            self._train(parts.loop)
        except BaseException as error:  # noqa: BLE001 - raised below
            failure = error
        failure = self._after_train(failure)
        if failure is not None:
            raise failure

    def _materials(self) -> Materials:
        return Materials(
            config=self.config,
            model=self.model,
            source=self.source,
            callbacks=self.callbacks,
            step=self._step,
            distribution=self._distribution,
            executor=self._executor,
            state=self._state,
            hyper_params=self._hyper_params,
            saves=self._saves,
            monitors=self.monitors,
            ledger=self._ledger,
            run_dir=self.run_dir,
            seed=self.seed,
            step_variable=self._step_variable,
            check_interrupt=self._check_interrupt,
            agreement=self._agreement,
        )

    def _train(self, loop: Loop) -> None:
        state = self._state
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
            self._agreement.leave(Ending.DONE if state.at_the_end else Ending.STOPPED)
            self._saves.at_the_end(state.place)
            self.complete = state.at_the_end
        except Interrupted:
            self._agreement.leave(Ending.NOT_YET)
            self._saves.at_last()
            _LOG.warning("Saved at step %d in %s.", state.step, self.run_dir)
            raise
        except Exception as error:
            if state.settled:
                self._saves.before_failure(error, state.place)
            self._agreement.fail()
            raise

    def _check_interrupt(self) -> None:
        """Leave the run here if SIGTERM or Ctrl-C has come.

        Inside the hooks of single steps it does nothing: they are as good as done. Where it leaves
        a callback's `trigger`, that is called again when the run is continued.
        """
        self._ledger.beat()
        if self._state.settled:
            self._interrupt.check()

    def _say_ending(self, failure: type[BaseException] | None, *_: object) -> None:
        if failure is not None:
            return
        self._ledger.ending = "Complete" if self.complete else self._ending
        if self._distribution.team.is_chief:
            say_spending(self._ledger.totals(), self._ledger.lives)
            say_ending(
                self._ledger.ending,
                epoch=self.epoch,
                max_epoch=self.max_epoch,
                step=self.global_step,
                run_dir=self.run_dir,
            )

    def _after_train(self, failure: BaseException | None) -> BaseException | None:
        """Each callback gets its turn, whatever the others do; gives what ended the training."""
        for callback in self.callbacks.callbacks:
            try:
                callback.after_train()
            except Exception as error:  # noqa: BLE001 - raised by the caller, or logged
                if failure is None:
                    failure = error
                else:
                    _LOG.exception("%r failed too, after the training:", callback)
        return failure

    # ------------------------------------------------------------------ restoring

    def _restore(self, checkpoint: Checkpoint) -> Any:
        """Take a checkpoint over; gives the data's state."""
        if not checkpoint.model.keys() <= self.tower.store.named_variables().keys():
            # Evaluation may have made variables that training does not have.
            self._parts.context.trace_inference()
        data_state = self._saves.contents.restore(checkpoint)
        self._step_variable.assign(self._state.step)
        self._saves.resumed_from(checkpoint.path, self._state.place)
        return data_state

    def _start_data(self, state: Any) -> None:
        try:
            self.source.start(state)
        except StateError as error:
            error.fix = (
                f"{error.fix}; or begin a new run with these weights and other data: "
                f"TrainConfig(resume='never', init={str(self.run_dir)!r}, …)"
            )
            raise


def _as_list(callbacks: Sequence[Callback] | Callbacks) -> list[Callback]:
    return [callbacks] if isinstance(callbacks, Callbacks) else list(callbacks)
