"""What a training is put together of, and what it goes through: build, restore, run, end."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow.python.eager.context import eager_mode

from towerpack._core.errors import ConfigError, PeerError
from towerpack._core.logs import console, get_logger
from towerpack._core.native_log import quiet_start
from towerpack.callbacks.monitors import Monitors
from towerpack.inference import Predictor
from towerpack.inputs import as_input
from towerpack.model import as_model
from towerpack.tower import TowerFunction
from towerpack.training.config import TrainConfig
from towerpack.training.distribution.base import Distribution, SharedVariables
from towerpack.training.distribution.peers import leave_at_once_at_exit
from towerpack.training.interrupt import Interrupted, InterruptFlag
from towerpack.training.loop.agreement import Agreement
from towerpack.training.loop.executor import Executor, StepParts
from towerpack.training.optim.hyper_params import HyperParams
from towerpack.training.optim.variable_param import VariableParam
from towerpack.training.run.assembly import AssembledRun
from towerpack.training.run.opening import OpenRun, callbacks_of, steps_of_one_pass
from towerpack.training.run.parts import RunParts
from towerpack.training.run.practice import as_practice
from towerpack.training.run.run import Run
from towerpack.training.state.counters import RunState, RunStateView
from towerpack.training.state.saver import Saves
from towerpack.training.steps.step import SupervisedStep, TrainStep
from towerpack.training.steps.step_runner import StepRunner

_LOG = get_logger(__name__)


class Trainer(RunStateView):
    """Train a model as a `TrainConfig` says. Use `SimpleTrainer` or another one by name.

    Args:
        config: What to train; None to leave that to `launch_train_with_config`.
        step: What one step is; None for one cost and one optimizer.
        distribution: Where the replicas run; None for one on the device that TensorFlow chooses.
    """

    def __init__(
        self,
        config: TrainConfig | None = None,
        *,
        step: TrainStep | None = None,
        distribution: Distribution | None = None,
    ) -> None:
        self._step = step or SupervisedStep()
        self._distribution = distribution or SharedVariables()
        self._run: Run | None = None
        self._configured = False
        if config is not None:
            self.configure(config)

    def configure(self, config: TrainConfig) -> None:
        """Say what to train, to a trainer that was made without a configuration.

        Raises:
            ConfigError: It has one already, or the configuration makes no sense.
        """
        if self._configured:
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
        self.callbacks = callbacks_of(config, team)
        replicas = self._distribution.local_replicas
        steps = config.steps_per_epoch or steps_of_one_pass(self.source, replicas)
        self._state = RunState(steps_per_epoch=steps, max_epoch=config.max_epoch)
        self._hyper_params = HyperParams()
        self._interrupt = InterruptFlag()
        self._configured = True

    # ------------------------------------------------------------------ what programs ask

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self._opened("seed").seed

    @property
    def run_dir(self) -> Path:
        """Where everything of this run is."""
        return self._opened("run_dir").run_dir

    @property
    def monitors(self) -> Monitors:
        """Take numbers and pictures; keep their history."""
        return self._opened("monitors").monitors

    @property
    def tower(self) -> TowerFunction:
        """The tower function, with its variables."""
        return self._assembled("tower").tower

    @property
    def complete(self) -> bool:
        """True once the last epoch is done."""
        return self._run is not None and self._run.complete

    @property
    def was_complete(self) -> bool:
        """The run was complete already when it was started."""
        return self._run is not None and self._run.was_complete

    def _opened(self, name: str) -> OpenRun:
        opened = None if self._run is None else self._run.opened
        if opened is None:
            raise ConfigError(f"A trainer has no {name} before train().")
        return opened

    def _assembled(self, name: str) -> AssembledRun:
        assembled = None if self._run is None else self._run.assembled
        if assembled is None:
            raise ConfigError(f"A trainer has no {name} before train().")
        return assembled

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
        return self._assembled("weights").context.get_weights(ema=ema)

    def get_predictor(
        self, inputs: Sequence[str] | None = None, outputs: Sequence[str] | str = ()
    ) -> Predictor:
        """Predict with the weights of this training, as they are at each call.

        Args:
            inputs: Names of the inputs that will be given, in order; None for those needed.
            outputs: Names of what is wanted, or one name.

        Raises:
            ConfigError: The trainer has not been started.
        """
        return self._assembled("predictor").context.get_predictor(inputs, outputs)

    # ------------------------------------------------------------------ lifecycle

    def train(self) -> None:
        """Train to the last epoch, or until the data or a callback end it.

        Raises:
            SystemExit: SIGTERM (code 143) or Ctrl-C (130) came; the run has been saved and can be
                continued.
            Exception: Whatever failed, in the model, a callback, a feeding thread or on the disk.
        """
        if not self._configured:
            raise ConfigError(
                f"This {type(self).__name__} has no configuration.",
                fix=f"{type(self).__name__}(config).train(), or "
                "launch_train_with_config(config, trainer)",
            )
        if self._run is not None:
            raise ConfigError(
                "This trainer has been used.", fix="make a new one to train again or to continue"
            )
        self._run = run = Run(self._parts())
        console()
        try:
            with ExitStack() as stack:
                stack.enter_context(self._interrupt.listening())
                with quiet_start():
                    tf.config.list_logical_devices()
                run.execute(stack)
            # It may have come after the last step: the run is complete, but the program is to end.
            self._interrupt.check()
        except Interrupted:
            raise self._interrupt.ending() from None
        except PeerError as error:
            if not self._interrupt.signal:
                raise
            _LOG.error("%s", error)
            leave_at_once_at_exit(self._interrupt.exit_code)
            raise SystemExit(self._interrupt.exit_code) from None

    def _parts(self) -> RunParts:
        team = self._distribution.team
        return RunParts(
            config=self.config,
            model=self.model,
            source=self.source,
            callbacks=self.callbacks,
            step=self._step,
            distribution=self._distribution,
            make_runner=self._make_runner,
            state=self._state,
            hyper_params=self._hyper_params,
            saves=Saves(lambda name: self.monitors.latest(name), writes=team.is_chief),
            interrupt=self._interrupt,
            agreement=Agreement(team, self._hyper_params, self._interrupt),
            watch=self._watch,
        )

    def _make_runner(self, parts: StepParts) -> StepRunner:
        """Make the object that runs many steps in one call."""
        return Executor(parts)

    def _watch(self) -> None:
        """Several times a second: raise what a trainer of its own kind has noticed."""


class SimpleTrainer(Trainer):
    """Train one replica of the model, on the device that TensorFlow chooses.

    Args:
        config: What to train; None to leave that to `launch_train_with_config`.
        step: What one step is; None for one cost and one optimizer.
    """

    def __init__(self, config: TrainConfig | None = None, *, step: TrainStep | None = None) -> None:
        super().__init__(config, step=step)


def launch_train_with_config(config: TrainConfig, trainer: Trainer | type[Trainer]) -> None:
    """Train: with `SimpleTrainer()` it is `SimpleTrainer(config).train()`.

    Args:
        config: What to train.
        trainer: One that was made without a configuration, or a class of trainers.

    Raises:
        ConfigError: The trainer has a configuration of its own.
    """
    trainer = trainer() if isinstance(trainer, type) else trainer
    trainer.configure(config)
    # Programs of the predecessor do all this inside of `with tf.Graph().as_default()`.
    with eager_mode():
        trainer.train()
