"""Protocols of trainers and hyper-parameters: the members that callbacks use."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from towerpack.callbacks.monitors import Monitors
    from towerpack.inference import Predictor
    from towerpack.tower import TowerFunction


class HyperParam(Protocol):
    """A number that can be changed during training, such as the learning rate.

    `get()` returns the current value; `set(value)` changes the value from the next step on.
    """

    def get(self) -> float: ...
    def set(self, value: float) -> None: ...


class TrainerHost(Protocol):
    """Protocol of trainers, with the members that callbacks use.

    Attributes:
        global_step, local_step: Number of steps done in the whole run, and in the current epoch.
        epoch, max_epoch: Numbers of the current and the last epoch, from 1; 0 before the first.
        in_epoch: Whether an epoch is in progress, including its triggers.
        steps_per_epoch: Number of steps in an epoch.
        seed: Random seed of the run.
        given_anew: Names of hyper-parameters whose initial value was changed in a resumed run.
        run_dir: Directory of the run's files.
        tower: The tower function, with its variables.
        monitors: Receiver of scalars and images, with their history.
        fast_dev_run: Number of batches of each evaluation in a trial run; 0 in an ordinary run.
        is_alone: Whether the run has a single process.
    """

    @property
    def global_step(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def local_step(self) -> int: ...
    @property
    def in_epoch(self) -> bool: ...
    @property
    def steps_per_epoch(self) -> int: ...
    @property
    def max_epoch(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def given_anew(self) -> Collection[str]: ...
    @property
    def run_dir(self) -> Path: ...
    @property
    def tower(self) -> TowerFunction: ...
    @property
    def monitors(self) -> Monitors: ...
    @property
    def fast_dev_run(self) -> int: ...
    @property
    def is_alone(self) -> bool: ...

    def overfitted(self) -> list[Any] | None:
        """Return the batches of `overfit_batches`, on which evaluations run too, or None."""
        ...

    def save(self, *, keep: int | None = None, best: str | None = None) -> None:
        """Request a checkpoint, which is written once all callbacks of this hook have acted.

        Args:
            keep: Number of ordinary checkpoints to keep; None for all.
            best: Name of a monitored value, by which the checkpoint is kept as the best instead.
        """

    def will_save(self) -> None:
        """Declare, during setup, that the run saves checkpoints and a final one when it ends."""

    def hyper_param(self, name: str) -> HyperParam:
        """Return a hyper-parameter. Raise `ConfigError` if the name is unknown.

        Args:
            name: Name of the hyper-parameter, for example `'learning_rate'`. If the rate is a
                schedule of the optimizer, `get` returns the rate of the last step, and `set`
                raises `ConfigError`.
        """
        ...

    def hold(self, name: str, value: float | None) -> None:
        """Fix a hyper-parameter, so that schedules and other callbacks do not change it.

        Args:
            name: Name of the hyper-parameter.
            value: The value to hold; None to release the hyper-parameter.
        """

    def hyper_param_names(self) -> Sequence[str]:
        """Return the names of the hyper-parameters that can be changed."""
        ...

    def schedule(self, name: str, schedule: Callable[[int], float | None]) -> None:
        """Set a hyper-parameter by a function, inside the compiled loop. Call during setup.

        Args:
            name: Name of the hyper-parameter.
            schedule: Takes the number of steps done and returns the value for the next step, or
                None to leave the value. Called in advance, so it must depend on that number alone.
        """

    def predict_function(
        self, outputs: Sequence[str], *, ema: bool = False, device: str | None = None
    ) -> tuple[Callable[..., list[Any]], list[str]]:
        """Return a function that runs the tower in inference mode with the current weights.

        Args:
            outputs: Names of the outputs.
            ema: Use the averages of `WeightEMA` instead of the weights.
            device: Device such as `'GPU:1'`. This call copies the weights there.

        Returns:
            A function that takes arrays and returns tensors, and the names of its arguments.
        """
        ...

    def get_predictor(
        self, inputs: Sequence[str] | None = None, outputs: Sequence[str] | str = ()
    ) -> Predictor:
        """Return a predictor with the weights of this run; see `Trainer.get_predictor`.

        Args:
            inputs, outputs: Names of the tower's inputs and outputs.
        """
        ...

    def stop_on_nonfinite(self) -> None:
        """Stop before a step whose cost is not finite; see `nonfinite`. Call during setup."""

    def nonfinite(self) -> Mapping[str, Any] | None:
        """Return the inputs of the step whose cost was not finite by name, or None."""
        ...

    def nonfinite_gradients(self) -> Sequence[str]:
        """Return the variables whose gradients `CheckGradient` rejected in the last step."""
        ...

    def get_weights(self, *, ema: bool = False) -> Mapping[str, np.ndarray]:
        """Return copies of the model's variables by name.

        Args:
            ema: Return the averages of `WeightEMA` for variables that have one.
        """
        ...

    def request_stop(self, reason: str = "") -> None:
        """End training normally, after the current step or the current epoch's triggers.

        Args:
            reason: Text for the log.
        """

    def check_interrupt(self) -> None:
        """Raise an exception if the run must end early. Call this often during long work."""
