"""View of a run for callbacks, which implements `towerpack.callbacks.TrainerHost`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack.inference import Predictor
from towerpack.inference.predictor import checked_device, copies_on
from towerpack.nn import components_of
from towerpack.tower import TowerFunction, TowerTrace
from towerpack.training.distribution.replicas import arrays_of
from towerpack.training.loop.tensorflow_error import step_error
from towerpack.training.optim.adapter import OptimizerAdapter
from towerpack.training.optim.schedules import Schedule
from towerpack.training.optim.variable_param import VariableParam
from towerpack.training.run.opening import OpenRun
from towerpack.training.run.parts import RunParts
from towerpack.training.run.practice import overfitted
from towerpack.training.state.counters import RunStateView
from towerpack.training.steps.graph_checks import check_summaries


class RunContext(RunStateView):
    """Callbacks' view of a run; `TrainerHost` documents its methods.

    `optimizers` is set when they have been built. `checks_finite` says whether a callback asked to
    end calls at a cost that is not finite.
    """

    def __init__(self, parts: RunParts, run: OpenRun, tower: TowerFunction) -> None:
        self.tower = tower
        self.monitors = run.monitors
        self.run_dir = run.run_dir
        self.seed = run.seed
        self.checks_finite = False
        self.check_interrupt = run.check_interrupt
        self.fast_dev_run = int(parts.config.fast_dev_run)
        self.overfitted = functools.partial(overfitted, parts.config, run.seed)
        self._distribution = parts.distribution
        self._state = parts.state
        self._hyper_params = parts.hyper_params
        self._saves = parts.saves
        self.optimizers: Mapping[str, OptimizerAdapter] = {}
        self._predictors: dict[tuple[tuple[str, ...], bool, str | None], Any] = {}
        self._copied: dict[tuple[bool, str | None], dict[str, tf.Variable]] = {}
        self._inference_trace: TowerTrace | None = None

    @property
    def given_anew(self) -> Collection[str]:
        return self._hyper_params.overridden

    def save(self, *, keep: int | None = None, best: str | None = None) -> None:
        """Request a checkpoint, which is written after the current hooks of all callbacks."""
        self._saves.request(keep=keep, best=best)

    def will_save(self) -> None:
        self._saves.save_end()

    def hyper_param(self, name: str) -> VariableParam:
        return self._hyper_params.read(name)

    def hold(self, name: str, value: float | None) -> None:
        self._hyper_params.get(name).hold(value)

    def hyper_param_names(self) -> list[str]:
        return self._hyper_params.names()

    def schedule(self, name: str, schedule: Schedule) -> None:
        self._hyper_params.schedule(name, schedule)

    def averages(self) -> dict[str, tf.Variable]:
        """Return the averaged variables of `WeightEMA`, by the names of the model's variables."""
        averages = {n: v for o in self.optimizers.values() for n, v in o.averages().items()}
        if not averages:
            raise ConfigError(
                "ema=True needs a run that averages its weights, but this run does not.",
                fix="wrap the optimizer: WeightEMA(optimizer, 0.999)",
            )
        return averages

    def final_values(self) -> dict[str, tf.Variable]:
        """Return the variables to use for trained variables outside training, by name."""
        return {n: v for o in self.optimizers.values() for n, v in o.final_values().items()}

    def nonfinite_gradients(self) -> list[str]:
        return [name for o in self.optimizers.values() for name in o.nonfinite()]

    def predict_function(
        self, outputs: Sequence[str], *, ema: bool = False, device: str | None = None
    ) -> tuple[Callable[..., list[Any]], list[str]]:
        key = tuple(outputs), ema, device
        instead = self.averages() if ema else self.final_values()
        trace = self.trace_inference()
        # Evaluations change copies of variables that the model updates, such as states of RNNs.
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
        values = {name: components_of(v)[0].read_value() for name, v in variables.items()}
        if key not in self._copied:
            device = None if key[1] is None else checked_device(key[1])
            self._copied[key] = copies_on(device, values)
        else:
            for name, value in values.items():
                self._copied[key][name].assign(value)
        return self._copied[key]

    def trace_inference(self) -> TowerTrace:
        """Trace the tower in inference mode, which may create variables that only inference has."""
        if self._inference_trace is None:
            self._inference_trace = self.tower.trace(is_training=False)
            check_summaries(self._inference_trace)
        return self._inference_trace

    def stop_on_nonfinite(self) -> None:
        self.checks_finite = True

    @property
    def is_alone(self) -> bool:
        return self._distribution.team.size == 1

    def nonfinite(self) -> dict[str, Any] | None:
        return None if self._state.nonfinite is None else self.named(self._state.nonfinite)

    def named(self, inputs: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Return one step's inputs by name, from a list of the inputs of all replicas."""
        names = [
            name if replica == 0 else f"{name}-replica{replica}"
            for replica in range(self._distribution.local_replicas)
            for name in self.tower.input_names
        ]
        return dict(zip(names, inputs, strict=True))

    def get_weights(self, *, ema: bool = False) -> dict[str, np.ndarray]:
        averages = self.averages() if ema else self.final_values()
        return arrays_of({**self.tower.store.named_variables(), **averages})

    def get_predictor(
        self, inputs: Sequence[str] | None = None, outputs: Sequence[str] | str = ()
    ) -> Predictor:
        return Predictor.of_tower(
            self.tower, inputs, outputs, trace=self.trace_inference(), instead=self.final_values()
        )

    def request_stop(self, reason: str = "") -> None:
        self._state.stop_reason = self._state.stop_reason or reason
