"""Base class of trainers, which build, restore, run and end a training."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

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
from towerpack.training.run.opening import callbacks_of, steps_of_one_pass
from towerpack.training.run.parts import RunParts
from towerpack.training.run.practice import as_practice
from towerpack.training.run.run import Run
from towerpack.training.state.counters import RunState, RunStateView
from towerpack.training.state.saver import Saves
from towerpack.training.steps.step import SupervisedStep, TrainStep
from towerpack.training.steps.step_runner import StepRunner

_LOG = get_logger(__name__)


class Trainer(RunStateView):
    """Base class of trainers. Programs use a subclass, or this class with their own `step`.

    Args:
        config: Configuration; None if `launch_train_with_config` passes it later.
        step: Definition of a step; None for one cost and one optimizer.
        distribution: Placement of the replicas; None for one replica on TensorFlow's default
            device.
    """

    _asynchronous = False  # whether the order of updates varies

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
        """Set the configuration of a trainer that was created without one.

        Args:
            config: Configuration of the training.

        Raises:
            ConfigError: The trainer has a configuration already, or `config` is invalid.
        """
        if self._configured:
            raise ConfigError(
                f"This {type(self).__name__} already has a configuration.",
                fix=f"pass {type(self).__name__}() to launch_train_with_config(config, trainer)",
            )
        # Check settings that were assigned after construction too: `config.session_init = …`.
        self.config = config = as_practice(dataclasses.replace(config))
        if self._asynchronous and config.deterministic:
            raise ConfigError(
                f"{type(self).__name__} does not support deterministic=True, because the order of "
                "asynchronous updates varies.",
                fix="use SyncMultiGPUTrainer or MultiWorkerTrainer",
            )
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

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return self._part("opened", "seed").seed

    @property
    def run_dir(self) -> Path:
        """Path of the run directory."""
        return self._part("opened", "run_dir").run_dir

    @property
    def monitors(self) -> Monitors:
        """Monitors, which receive numbers and images and keep the history of numbers."""
        return self._part("opened", "monitors").monitors

    @property
    def tower(self) -> TowerFunction:
        """Tower function, with its variables."""
        return self._part("assembled", "tower").tower

    @property
    def complete(self) -> bool:
        """Whether the last epoch is done."""
        return self._run is not None and self._run.complete

    @property
    def was_complete(self) -> bool:
        """Whether the run was complete before this start."""
        return self._run is not None and self._run.was_complete

    def _part(self, part: str, name: str) -> Any:
        value = getattr(self._run, part, None)
        if value is None:
            raise ConfigError(f"trainer.{name} is available only after train() has started.")
        return value

    def hyper_param(self, name: str) -> VariableParam:
        """Return a hyper-parameter that the graph reads: a learning rate or a scalar variable.

        Args:
            name: One of `hyper_param_names()`, or the learning rate of a schedule. `get` returns
                the schedule's rate of the last step, and `set` raises an error.

        Raises:
            ConfigError: There is no hyper-parameter with this name.
        """
        return self._hyper_params.read(name)

    def hyper_param_names(self) -> list[str]:
        """Return the names of all hyper-parameters."""
        return self._hyper_params.names()

    def get_weights(self, *, ema: bool = False) -> dict[str, np.ndarray]:
        """Return copies of the model's variables by name.

        Args:
            ema: Return the averages of the variables that `WeightEMA` averages.

        Raises:
            ConfigError: The trainer has not been started, or keeps no averages.
        """
        return self._part("assembled", "weights").context.get_weights(ema=ema)

    def get_predictor(
        self, inputs: Sequence[str] | None = None, outputs: Sequence[str] | str = ()
    ) -> Predictor:
        """Create a predictor that uses the current weights of the training at each call.

        Args:
            inputs: Names of the inputs in the order of the predictor's arguments; None for all
                that the outputs need.
            outputs: Names of the outputs, or one name.

        Raises:
            ConfigError: The trainer has not been started.
        """
        return self._part("assembled", "predictor").context.get_predictor(inputs, outputs)

    def train(self) -> None:
        """Train to the last epoch, or until the data end or a callback stops training.

        Raises:
            ConfigError: The trainer has no configuration, or `train` was called before.
            SystemExit: The process received SIGTERM (code 143) or Ctrl-C (code 130). The run has
                been saved and can be continued.
            KeyboardInterrupt: The same for Ctrl-C in a notebook or at a Python prompt.
            Exception: An error in the model, a callback or an input thread, or on the disk.
        """
        if not self._configured:
            raise ConfigError(
                f"This {type(self).__name__} has no configuration.",
                fix=f"call {type(self).__name__}(config).train(), or "
                "launch_train_with_config(config, trainer)",
            )
        if self._run is not None:
            raise ConfigError(
                "A trainer can train only once, and this trainer has been used.",
                fix="create a new trainer to train again or to continue the run",
            )
        self._run = run = Run(self._parts())
        console()
        try:
            with ExitStack() as stack:
                stack.enter_context(self._interrupt.listening())
                with quiet_start():
                    tf.config.list_logical_devices()
                run.execute(stack)
            # A signal after the last step still ends the program, though the run is complete.
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
            asynchronous=self._asynchronous,
            watch=self._watch,
        )

    def _make_runner(self, parts: StepParts) -> StepRunner:
        return Executor(parts)

    def _watch(self) -> None:
        """Raise errors that a subclass has noticed. Called several times a second."""


class SimpleTrainer(Trainer):
    """Trainer of one replica on TensorFlow's default device.

    Args:
        config: Configuration; None if `launch_train_with_config` passes it later.
        step: Definition of a step; None for one cost and one optimizer.
    """

    def __init__(self, config: TrainConfig | None = None, *, step: TrainStep | None = None) -> None:
        super().__init__(config, step=step)


def launch_train_with_config(config: TrainConfig, trainer: Trainer | type[Trainer]) -> None:
    """Pass the configuration to a trainer and train.

    Args:
        config: Configuration of the training.
        trainer: A trainer that was created without a configuration, or a class of trainers.

    Raises:
        ConfigError: The trainer has a configuration already.
    """
    trainer = trainer() if isinstance(trainer, type) else trainer
    trainer.configure(config)
    # Programs for Tensorpack call this inside `with tf.Graph().as_default()`.
    with eager_mode():
        trainer.train()
