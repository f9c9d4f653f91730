"""All numbers of a run that can be changed while training goes on, by name."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack._core.naming import did_you_mean
from towerpack.training.distribution.replicas import arrays_of
from towerpack.training.optim.adapter import OptimizerAdapter
from towerpack.training.optim.schedules import Schedule, Schedules
from towerpack.training.optim.variable_param import VariableParam

Groups = Mapping[str, Mapping[str, tf.Variable]]


class HyperParams:
    """Learning rates, and scalar variables of the model that are not trained.

    Attributes:
        given_anew: Names for which the program of a continued run gives a new value.
    """

    def __init__(self) -> None:
        self.given_anew: frozenset[str] = frozenset()
        self._params: dict[str, VariableParam] | None = None
        self._variables: dict[str, dict[str, tf.Variable]] = {}
        self._schedules: dict[str, Schedule] = {}
        self._optimizers: Mapping[str, OptimizerAdapter] = {}

    def find(self, groups: Groups, optimizers: Mapping[str, OptimizerAdapter]) -> None:
        """Learn what there is, once the model and the optimizers are built.

        Once: to look through a model for its variables takes as long as a small step.

        Args:
            groups: All variables of the run; the model's as `'model'`.
            optimizers: By name. The rates of several are known as `'<name>/learning_rate'`.
        """
        found = {
            name: VariableParam(name, variable)
            for name, variable in groups["model"].items()
            if variable.shape.rank == 0 and not variable.trainable and variable.dtype.is_floating
        }
        self._optimizers = optimizers
        for of, optimizer in optimizers.items():
            prefix = self._prefix(of)
            found.update({prefix + n: param for n, param in optimizer.hyper_params().items()})
        self._params = found
        wanted = {id(param.variable) for param in found.values()}
        self._variables = {
            group: {name: v for name, v in variables.items() if id(v) in wanted}
            for group, variables in groups.items()
        }

    def names(self) -> list[str]:
        """Names that `get` knows."""
        return list(self._params or {})

    def get(self, name: str) -> VariableParam:
        """A number that the running graph reads: the learning rate, or a scalar variable."""
        known = self._params
        if known is None:
            raise ConfigError(
                f"Whether there is a hyper-parameter '{name}' is not known before the model is "
                "built.",
                fix="ask in before_train or later, or use schedule() during setup",
            )
        if name not in known:
            raise ConfigError(
                f"There is no hyper-parameter '{name}' that can be changed.",
                expected="'learning_rate' (not a schedule), or a scalar tf.Variable of the model; "
                "other numbers of an optimizer, such as momentum, are constants",
                fix=did_you_mean(name, known)
                if known
                else "give the optimizer a number as its learning rate; keep other numbers in a "
                "tf.Variable(…, trainable=False) of the model",
            )
        return known[name]

    def values(self) -> dict[str, float]:
        """All of them."""
        return {name: param.get() for name, param in (self._params or {}).items()}

    def held(self) -> dict[str, float | None]:
        """What each is held at by hand."""
        return {name: param.held for name, param in (self._params or {}).items()}

    def scheduled(self) -> dict[str, float]:
        """What schedules of the optimizers' own have given for the last step."""
        return {
            self._prefix(of) + name: value
            for of, optimizer in self._optimizers.items()
            for name, value in optimizer.scheduled().items()
        }

    def _prefix(self, optimizer: str) -> str:
        return f"{optimizer}/" if len(self._optimizers) > 1 else ""

    def take(self, values: Mapping[str, float]) -> None:
        """Set those that the program gives anew."""
        for name, value in values.items():
            self.get(name).set(value)
        self.given_anew = frozenset(values)

    def arrays(self) -> dict[str, dict[str, np.ndarray]]:
        """Copies of their variables, by group and name."""
        return {group: arrays_of(variables) for group, variables in self._variables.items()}

    def schedule(self, name: str, schedule: Schedule) -> None:
        """During setup: have a hyper-parameter set after each step, without ending the call.

        Args:
            name: Of the hyper-parameter.
            schedule: Takes the number of steps done; gives the value for the next step, or None to
                leave it as it is. Asked for several steps ahead, so the number must be all that it
                depends on. Of two for one name, the later one decides first.
        """
        if self._params is not None:
            raise ConfigError(
                f"The schedule of '{name}' comes too late: the loop is compiled.",
                fix="call trainer.schedule in the callback's setup(self, trainer)",
            )
        earlier = self._schedules.get(name)

        def latest(step: int) -> float | None:
            value = schedule(step)
            return value if value is not None or earlier is None else earlier(step)

        self._schedules[name] = latest

    def schedules(self) -> Schedules:
        """Everything that `schedule` was given, for the compiled loop."""
        pairs = [(self.get(name), schedule) for name, schedule in self._schedules.items()]
        return Schedules([(param.variable, _unless_held(param, f)) for param, f in pairs])


def _unless_held(param: VariableParam, schedule: Schedule) -> Schedule:
    return lambda step: schedule(step) if param.held is None else param.held
