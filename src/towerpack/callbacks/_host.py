"""Protocols of the trainer and its hyper-parameters, as callbacks see them."""

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
    """A number that can be changed while training goes on."""

    def get(self) -> float:
        """Its value now."""
        ...

    def set(self, value: float) -> None:
        """Change it from the next step on."""
        ...


class TrainerHost(Protocol):
    """The trainer, as callbacks see it.

    Attributes:
        global_step: Steps done since the very start.
        epoch: Number of the current epoch, from 1; 0 before the first.
        local_step: Steps done in the current epoch.
        in_epoch: An epoch has begun, and its last triggers are not over.
        steps_per_epoch: Steps in an epoch.
        max_epoch: Number of the last epoch.
        seed: The run's seed.
        given_anew: Hyper-parameters for which the program of a continued run gives a new value.
        run_dir: Where everything of this run is.
        tower: The tower function, with its variables.
        monitors: Takes numbers and pictures; keeps their history.
        fast_dev_run: In a run that only tries everything, batches of an evaluation; else 0.
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

    def overfitted(self) -> list[Any] | None:
        """The batches of `overfit_batches`, which evaluations read instead of their own."""
        ...

    def save(self, *, keep: int | None = None, best: str | None = None) -> None:
        """Have a checkpoint written once all callbacks of this moment have acted.

        Args:
            keep: How many ordinary checkpoints to keep; None for all.
            best: Also keep it as the best by this monitored name.
        """
        ...

    def will_save(self) -> None:
        """During setup: this run is to be saved, its end included, even if no save is ever due."""
        ...

    def hyper_param(self, name: str) -> HyperParam:
        """A number that the running graph reads, for example `'learning_rate'`.

        Raises:
            ConfigError: There is none of this name.
        """
        ...

    def hold(self, name: str, value: float | None) -> None:
        """Set a hyper-parameter against schedules and other callbacks, until None lets it go."""
        ...

    def hyper_param_names(self) -> Sequence[str]:
        """Names that `hyper_param` knows."""
        ...

    def schedule(self, name: str, schedule: Callable[[int], float | None]) -> None:
        """During setup: have a hyper-parameter set after each step, without ending the call.

        Args:
            name: Of the hyper-parameter.
            schedule: Takes the number of steps done; gives the value for the next step, or None to
                leave it as it is. Asked for several steps ahead, so the number must be all that it
                depends on.
        """
        ...

    def predict_function(
        self, outputs: Sequence[str], *, ema: bool = False, device: str | None = None
    ) -> tuple[Callable[..., list[Any]], list[str]]:
        """The tower in inference mode, on the current weights, cut to some outputs.

        Args:
            outputs: Their names.
            ema: Take the averages of `WeightEMA` for the weights.
            device: Compute there, `'GPU:1'`, with copies of the weights that this call makes, or
                brings up to date.

        Returns:
            A function over arrays that gives tensors, and the names of its arguments in order.
        """
        ...

    def get_predictor(
        self, inputs: Sequence[str] | None = None, outputs: Sequence[str] | str = ()
    ) -> Predictor:
        """Predict with the weights of this training; see `Trainer.get_predictor`."""
        ...

    def stop_on_nonfinite(self) -> None:
        """During setup: end a call of several steps at a cost that is not finite.

        The step that gave it is not applied. See `nonfinite`.
        """
        ...

    @property
    def is_alone(self) -> bool:
        """No other process takes part in the steps."""
        ...

    def nonfinite(self) -> Mapping[str, Any] | None:
        """The inputs of the step whose cost was not finite, by name, if there was one."""
        ...

    def nonfinite_gradients(self) -> Sequence[str]:
        """Variables for whose gradients `CheckGradient` has forbidden that step."""
        ...

    def get_weights(self, *, ema: bool = False) -> Mapping[str, np.ndarray]:
        """The model's variables by name, as copies; with `ema` averages where there are some."""
        ...

    def request_stop(self, reason: str = "") -> None:
        """End training normally after the current step or epoch's triggers; say why."""
        ...

    def check_interrupt(self) -> None:
        """To be called in long work of a callback: leaves it where the run is to end early."""
        ...
