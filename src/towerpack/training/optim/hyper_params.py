"""Hyper-parameters of a run that can be changed during training, by name."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack._core.naming import did_you_mean
from towerpack.training.distribution.replicas import arrays_of
from towerpack.training.optim.adapter import OptimizerAdapter
from towerpack.training.optim.learning_rate import LEARNING_RATE
from towerpack.training.optim.schedules import Schedule, Schedules
from towerpack.training.optim.variable_param import VariableParam

Groups = Mapping[str, Mapping[str, tf.Variable]]


class HyperParams:
    """Learning rates of the optimizers and untrained scalar variables of the model, by name.

    Attributes:
        overridden: Names of hyper-parameters that a continued run sets to a new value.
    """

    def __init__(self) -> None:
        self.overridden: frozenset[str] = frozenset()
        self._params: dict[str, VariableParam] | None = None
        self._variables: dict[str, dict[str, tf.Variable]] = {}
        self._schedules: dict[str, Schedule] = {}
        self._optimizers: Mapping[str, OptimizerAdapter] = {}

    def find(self, groups: Groups, optimizers: Mapping[str, OptimizerAdapter]) -> None:
        """Collect the hyper-parameters. Must be called once, after model and optimizers are built.

        The group `'model'` has the model's variables. If there are several optimizers, their
        learning rates are named `'<name of the optimizer>/learning_rate'`.
        """
        params = {
            name: VariableParam(name, variable)
            for name, variable in groups["model"].items()
            if variable.shape.rank == 0 and not variable.trainable and variable.dtype.is_floating
        }
        self._optimizers = optimizers
        for optimizer_name, optimizer in optimizers.items():
            prefix = self._prefix(optimizer_name)
            params.update({prefix + n: param for n, param in optimizer.hyper_params().items()})
        self._params = params
        ids = {id(param.variable) for param in params.values()}
        self._variables = {
            group: {name: v for name, v in variables.items() if id(v) in ids}
            for group, variables in groups.items()
        }

    def names(self) -> list[str]:
        return list(self._params or {})

    def get(self, name: str) -> VariableParam:
        known = self._params
        if known is None:
            raise ConfigError(
                f"The hyper-parameter '{name}' can be used only after the model is built.",
                fix="use it in before_train or later, or call trainer.schedule in setup",
            )
        if name not in known:
            raise _cannot_be_changed(name, known)
        return known[name]

    def read(self, name: str) -> VariableParam:
        """Return a hyper-parameter, or the learning rate of a schedule, whose `set` is refused."""
        scheduled = LEARNING_RATE in name and name not in (self._params or ())
        if scheduled and name in self.scheduled():
            return _ScheduledParam(name, self)
        return self.get(name)

    def values(self) -> dict[str, float]:
        return {name: param.get() for name, param in (self._params or {}).items()}

    def held(self) -> dict[str, float | None]:
        """Return each hyper-parameter's value that the user has fixed with `hold`, or None."""
        return {name: param.held for name, param in (self._params or {}).items()}

    def scheduled(self) -> dict[str, float]:
        """Return the learning rates that the optimizers' schedules gave for the last step."""
        return {
            self._prefix(optimizer_name) + name: value
            for optimizer_name, optimizer in self._optimizers.items()
            for name, value in optimizer.scheduled().items()
        }

    def _prefix(self, optimizer: str) -> str:
        return f"{optimizer}/" if len(self._optimizers) > 1 else ""

    def override(self, values: Mapping[str, float]) -> None:
        """Set the hyper-parameters that the program of a continued run has changed."""
        for name, value in values.items():
            self.get(name).set(value)
        self.overridden = frozenset(values)

    def arrays(self) -> dict[str, dict[str, np.ndarray]]:
        """Return copies of the hyper-parameters' variables by group and name."""
        return {group: arrays_of(variables) for group, variables in self._variables.items()}

    def schedule(self, name: str, schedule: Schedule) -> None:
        """Add a schedule, which sets a hyper-parameter after each step inside the compiled loop.

        The schedule is called several steps ahead, so it must depend only on the number of steps
        done. If a hyper-parameter has two schedules, the schedule that was added last has priority.
        """
        if self._params is not None:
            raise ConfigError(
                f"The schedule of '{name}' must be added before the training loop is compiled.",
                fix="call trainer.schedule in the callback's setup(self, trainer)",
            )
        earlier = self._schedules.get(name)

        def combined(step: int) -> float | None:
            value = schedule(step)
            return value if value is not None or earlier is None else earlier(step)

        self._schedules[name] = combined

    def schedules(self) -> Schedules:
        pairs = [(self.get(name), schedule) for name, schedule in self._schedules.items()]
        return Schedules([(param.variable, _unless_held(param, f)) for param, f in pairs])


class _ScheduledParam(VariableParam):
    """Learning rate that a schedule of the optimizer computes. It can be read but not changed."""

    def __init__(self, name: str, params: HyperParams) -> None:
        self.name, self.held, self._params = name, None, params

    def get(self) -> float:
        return self._params.scheduled()[self.name]

    def set(self, value: float) -> None:
        raise _cannot_be_changed(self.name, self._params.names())


def _cannot_be_changed(name: str, known: Collection[str]) -> ConfigError:
    return ConfigError(
        f"The run has no hyper-parameter '{name}' that can be changed.",
        expected="'learning_rate' (unless it is a schedule), or a scalar tf.Variable of "
        "the model (momentum and other settings of an optimizer are constants)",
        fix=did_you_mean(name, known)
        if known
        else "pass a number as the optimizer's learning rate, or create the "
        "hyper-parameter in the model as a tf.Variable(…, trainable=False)",
    )


def _unless_held(param: VariableParam, schedule: Schedule) -> Schedule:
    return lambda step: schedule(step) if param.held is None else param.held
