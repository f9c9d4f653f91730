"""What callbacks see of a training: `towerpack.callbacks.TrainerHost`, over the parts of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack.callbacks.monitors import Monitors
from towerpack.inference import Predictor
from towerpack.inference.predictor import checked_device, copies_on
from towerpack.nn import components_of
from towerpack.tower import TowerFunction, TowerTrace
from towerpack.training.distribution.replicas import arrays_of
from towerpack.training.loop.tensorflow_error import step_error
from towerpack.training.optim.adapter import OptimizerAdapter
from towerpack.training.optim.hyper_params import HyperParams
from towerpack.training.optim.schedules import Schedule
from towerpack.training.optim.variable_param import VariableParam
from towerpack.training.state.counters import RunState, RunStateView
from towerpack.training.state.saver import Saves
from towerpack.training.steps.graph_checks import check_summaries


class RunContext(RunStateView):
    """The run, for its callbacks.

    Args:
        tower: The tower function, with its variables.
        monitors: Takes numbers and pictures; keeps their history.
        run_dir: Where everything of this run is.
        seed: The run's seed.
        replicas: How many batches a step takes.
        alone: No other process takes part.
        state: Where the run stands.
        hyper_params: What can be changed.
        saves: Writes checkpoints.
        check_interrupt: Leaves a callback where the run is to end early.
        fast_dev_run: Batches of an evaluation in a run that only tries everything; else 0.
        overfitted: Gives the batches that evaluations read instead of their own, if any.

    Attributes:
        optimizers: Those of the step, once they are built.
        checks_finite: A callback wants calls to end at a cost that is not finite.
    """

    def __init__(
        self,
        *,
        tower: TowerFunction,
        monitors: Monitors,
        run_dir: Path,
        seed: int,
        replicas: int,
        alone: bool,
        state: RunState,
        hyper_params: HyperParams,
        saves: Saves,
        check_interrupt: Callable[[], None],
        fast_dev_run: int = 0,
        overfitted: Callable[[], list[Any] | None] = lambda: None,
    ) -> None:
        self.tower = tower
        self.monitors = monitors
        self.run_dir = run_dir
        self.seed = seed
        self.checks_finite = False
        self.check_interrupt = check_interrupt
        self.fast_dev_run = fast_dev_run
        self.overfitted = overfitted
        self._replicas = replicas
        self._alone = alone
        self._state = state
        self._hyper_params = hyper_params
        self._saves = saves
        self.optimizers: Mapping[str, OptimizerAdapter] = {}
        self._predictors: dict[tuple[tuple[str, ...], bool, str | None], Any] = {}
        self._copied: dict[tuple[bool, str | None], dict[str, tf.Variable]] = {}
        self._inference_trace: TowerTrace | None = None

    @property
    def given_anew(self) -> Collection[str]:
        """Hyper-parameters for which the program of a continued run gives a new value."""
        return self._hyper_params.given_anew

    def save(self, *, keep: int | None = None, best: str | None = None) -> None:
        """Have a checkpoint written once all callbacks of this moment have acted.

        Args:
            keep: How many ordinary checkpoints to keep; None for all.
            best: Keep it as the best by this monitored name instead.
        """
        self._saves.request(keep=keep, best=best)

    def will_save(self) -> None:
        """Save the end of this run, even if no save is ever due."""
        self._saves.save_end()

    def hyper_param(self, name: str) -> VariableParam:
        return self._hyper_params.get(name)

    def hold(self, name: str, value: float | None) -> None:
        self._hyper_params.get(name).hold(value)

    def hyper_param_names(self) -> list[str]:
        return self._hyper_params.names()

    def schedule(self, name: str, schedule: Schedule) -> None:
        self._hyper_params.schedule(name, schedule)

    def averages(self) -> dict[str, tf.Variable]:
        """The variables of `WeightEMA`, by the names of the model's."""
        found = {n: v for o in self.optimizers.values() for n, v in o.averages().items()}
        if not found:
            raise ConfigError(
                "ema=True: this run keeps no averages of its weights.",
                fix="wrap its optimizer: WeightEMA(optimizer, 0.999)",
            )
        return found

    def final_values(self) -> dict[str, tf.Variable]:
        """Variables that evaluation and prediction read instead of trained ones, by their names."""
        return {n: v for o in self.optimizers.values() for n, v in o.final_values().items()}

    def nonfinite_gradients(self) -> list[str]:
        """Variables for whose gradients `CheckGradient` has forbidden the last step."""
        return [name for o in self.optimizers.values() for name in o.nonfinite()]

    def predict_function(
        self, outputs: Sequence[str], *, ema: bool = False, device: str | None = None
    ) -> tuple[Callable[..., list[Any]], list[str]]:
        """Cut the tower to some outputs; see `TrainerHost.predict_function`."""
        key = tuple(outputs), ema, device
        instead = self.averages() if ema else self.final_values()
        trace = self.trace_inference()
        # An evaluation moves copies of what the model moves in inference: states of RNNs.
        copied = trace.moved if device is None else trace.used
        if copied:
            known = self.tower.store.named_variables() | instead
            instead |= self._copies((ema, device), {name: known[name] for name in copied})
        if key not in self._predictors:
            function, names = trace.function(outputs, instead=instead, moves=True)

            def checked(*arrays: Any) -> list[Any]:
                try:
                    with tf.device(device) if device else contextlib.nullcontext():
                        return function(*arrays)
                except tf.errors.OpError as error:
                    inputs = dict(zip(names, map(np.asarray, arrays), strict=True))
                    what = f"An evaluation at step {self.global_step}"
                    path = self.run_dir / f"failed-evaluation-{self.global_step:08d}.npz"
                    raise step_error(error, what, path, lambda: inputs) from None

            self._predictors[key] = checked, names
        return self._predictors[key]

    def _copies(
        self, key: tuple[bool, str | None], variables: Mapping[str, tf.Variable]
    ) -> dict[str, tf.Variable]:
        """Return variables on a device, with the values that others have now."""
        values = {name: components_of(v)[0].read_value() for name, v in variables.items()}
        if key not in self._copied:
            device = None if key[1] is None else checked_device(key[1])
            self._copied[key] = copies_on(device, values)
        else:
            for name, value in values.items():
                self._copied[key][name].assign(value)
        return self._copied[key]

    def trace_inference(self) -> TowerTrace:
        """The tower in inference mode; it may make variables that training does not have."""
        if self._inference_trace is None:
            self._inference_trace = self.tower.trace(is_training=False)
            check_summaries(self._inference_trace)
        return self._inference_trace

    def stop_on_nonfinite(self) -> None:
        """End a call of several steps at a cost that is not finite; do not apply that step."""
        self.checks_finite = True

    @property
    def is_alone(self) -> bool:
        return self._alone

    def nonfinite(self) -> dict[str, Any] | None:
        """The inputs of the step whose cost was not finite, by name, if there was one."""
        return None if self._state.nonfinite is None else self.named(self._state.nonfinite)

    def named(self, inputs: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """The inputs of one step, of all replicas in a row, by name."""
        names = [
            name if replica == 0 else f"{name}-replica{replica}"
            for replica in range(self._replicas)
            for name in self.tower.input_names
        ]
        return dict(zip(names, inputs, strict=True))

    def get_weights(self, *, ema: bool = False) -> dict[str, np.ndarray]:
        """The model's variables by name, as copies; with `ema` averages where there are some."""
        averages = self.averages() if ema else self.final_values()
        return arrays_of({**self.tower.store.named_variables(), **averages})

    def get_predictor(
        self, inputs: Sequence[str] | None = None, outputs: Sequence[str] | str = ()
    ) -> Predictor:
        return Predictor.of_tower(
            self.tower, inputs, outputs, trace=self.trace_inference(), instead=self.final_values()
        )

    def request_stop(self, reason: str = "") -> None:
        """End training normally after the current step or epoch's triggers; say why."""
        self._state.stop_reason = self._state.stop_reason or reason
