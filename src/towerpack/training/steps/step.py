"""One step on one replica: what is computed, and what is to be minimized."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from towerpack._core.errors import ConfigError, LayerError
from towerpack._core.logs import get_logger
from towerpack.nn import find_matching
from towerpack.tower import TowerFunction, TowerResult, TowerTrace
from towerpack.training.optim.adapter import OptimizerAdapter
from towerpack.training.optim.proxy_and_loss_scale import adapt

_LOG = get_logger(__name__)


class Minimized(NamedTuple):
    """Gradients for an optimizer, by the names of its variables; None where there is none."""

    optimizer: OptimizerAdapter
    gradients: dict[str, Any]


class StepContext:
    """What a step may use while it is built for one replica.

    Args:
        tower: The model.
        index: Number of the replica.
        total: How many there are.
        step: The global step.
        watched: Variables that `minimize` may be asked for.

    Attributes:
        result: What the tower gave.
        minimized: What is to be applied, in order, once all replicas have computed it.
    """

    def __init__(
        self,
        tower: TowerFunction,
        *,
        index: int,
        total: int,
        step: tf.Variable,
        watched: Sequence[tf.Variable],
    ) -> None:
        self.index = index
        self.total = total
        self.step = step
        self.result: TowerResult | None = None
        self.minimized: list[Minimized] = []
        self._tower = tower
        self._tape = tf.GradientTape(persistent=True, watch_accessed_variables=False)
        self._watched = watched

    def tower(self, *batch: tf.Tensor) -> TowerResult:
        """The model, in training, on a batch of this replica."""
        with self._tape:
            self._tape.watch(self._watched)
            self.result = self._tower(
                *batch, is_training=True, index=self.index, total=self.total, step=self.step
            )
        return self.result

    def minimize(
        self,
        cost: tf.Tensor | Sequence[tf.Tensor] | None,
        variables: Mapping[str, tf.Variable],
        optimizer: OptimizerAdapter,
    ) -> None:
        """Have an optimizer move its variables to lessen a cost.

        Gradients are averaged over the replicas, and applied when all that is to be minimized has
        been computed, in the order of these calls.

        Args:
            cost: Scalar that `tower` gave in this call, or several whose sum is minimized.
            variables: Those that the optimizer was asked for with, in that order.
            optimizer: From `StepSetup.optimizer`.

        Raises:
            LayerError: There is no cost, or it depends on none of the variables.
        """
        if cost is None:
            raise LayerError("There is no cost to minimize.", fix="return it from build_graph")
        with self._tape:
            losses = [optimizer.scale_loss(c) for c in tf.nest.flatten(cost)]
        gradients = self._tape.gradient(losses, dict(variables))
        if all(gradient is None for gradient in gradients.values()):
            raise LayerError(
                "The cost depends on no trainable variable.",
                got=f"trainable variables {list(variables)}",
                fix="compute the cost from the layers' outputs, without tf.stop_gradient or NumPy; "
                "train a GANModelDesc with GANTrainer",
            )
        self.minimized.append(Minimized(optimizer, gradients))


class StepSetup:
    """What a step may use to make its optimizers, eagerly, before it is compiled.

    Args:
        tower: The model; its variables have been made.
        trace: A training tower of it.
        given: What the configuration's `optimizer=`, or else the model's `optimizer()`, has given:
            one, or a dict of several.
        scale_loss: Scale losses dynamically (for float16).
        frozen: Expressions for whole names of trainable variables that are not to be trained.
        only: Expressions for whole names of the only ones that are; none for all.

    Attributes:
        trace: The training tower.
        trainable: The trainable variables that the tower reads, by name, without the frozen ones.
        frozen: Names of those.
        trained: Those of them that have an optimizer.
        optimizers: Those that were asked for. A checkpoint holds each as a group of its name,
            beside `'model'`.
        given: Optimizers that can be asked for, by name; one alone is called 'optimizer'. A step
            may put others in their place.
    """

    def __init__(
        self,
        tower: TowerFunction,
        trace: TowerTrace,
        given: Any,
        *,
        scale_loss: bool = False,
        frozen: Sequence[str] = (),
        only: Sequence[str] = (),
    ) -> None:
        self.trace = trace
        used = set(trace.used)
        trainable = {n: v for n, v in tower.store.trainable().items() if n in used}

        def matching(option: str, regexes: Sequence[str]) -> set[str]:
            who = f"TrainConfig({option}=…)"
            found = [find_matching(who, regex, trainable, re.fullmatch) for regex in regexes]
            return {name for names in found for name in names}

        self.frozen = matching("frozen", frozen)
        if only:
            self.frozen |= trainable.keys() - matching("trainable", only)
        known = tower.store.named_variables()
        moved = [name for name in trace.moved if known[name].dtype.is_floating]
        if still := [name for name in moved if any(re.fullmatch(r, name) for r in tower.frozen)]:
            _LOG.warning("Frozen, but moved by their layers all the same: %s", ", ".join(still))
        self.trainable = {n: v for n, v in trainable.items() if n not in self.frozen}
        self.trained: dict[str, tf.Variable] = {}
        self.optimizers: dict[str, OptimizerAdapter] = {}
        fixed = known.keys() - (tower.store.trainable().keys() - self.frozen)
        self._fixed = {id(known[name]) for name in fixed}
        self._everything = known.values()
        self.given = given if isinstance(given, Mapping) else {"optimizer": given}
        self._scale_loss = scale_loss

    def optimizer(
        self, name: str = "optimizer", variables: Mapping[str, tf.Variable] | None = None
    ) -> OptimizerAdapter:
        """Take one of the given optimizers for some variables, and make its slots.

        Args:
            name: Its key, where the model gives a dict.
            variables: By name; None for all that are trainable.

        Raises:
            ConfigError: There is none of this name, it has been taken, it is no optimizer, or some
                of the variables are not to be trained.
        """
        if name not in self.given or name in self.optimizers:
            raise ConfigError(
                f"The step asks for the optimizer '{name}'"
                + (", which it has taken already." if name in self.optimizers else "."),
                got=f"optimizer() gives {sorted(self.given)}",
                fix="have the model's optimizer() return a dict of optimizers by these names",
            )
        variables = self.trainable if variables is None else variables
        fixed = {n: v.shape.as_list() for n, v in variables.items() if id(v) in self._fixed}
        if fixed:
            raise ConfigError(
                f"The optimizer '{name}' is to move variables that are frozen.",
                got=", ".join(f"'{n}' {shape}" for n, shape in fixed.items()),
                expected="some of StepSetup.trainable",
                fix="leave them out, or do not freeze them",
            )
        adapter = adapt(self.given[name], scale_loss=self._scale_loss)
        adapter.build(variables, saved_elsewhere=self._everything)
        self.optimizers[name] = adapter
        self.trained.update(variables)
        return adapter

    def check(self, *, checks_finite: bool = False) -> None:
        """Refuse optimizers that the step has not asked for, or that lack what they rely on.

        Args:
            checks_finite: A step that is not finite is not applied, and ends training.

        Raises:
            ConfigError: There are some.
        """
        if not checks_finite and any(o.checks() for o in self.optimizers.values()):
            raise ConfigError(
                "CheckGradient relies on the callback CheckNumerics, which this run does not have.",
                fix="TrainConfig(extra_callbacks=[CheckNumerics(), …]), or leave CheckGradient out",
            )
        idle = sorted(set(self.given) - set(self.optimizers))
        if idle:
            raise ConfigError(
                f"The step does not use the optimizers {idle}.",
                got=f"optimizer() gives {sorted(self.given)}",
                fix="give those that it asks for, or train with Trainer(config, step=…) for it",
            )


class TrainStep(ABC):
    """One step of training, as `Trainer(config, step=…)` takes it.

        class TwoCosts(TrainStep):
            def build(self, setup):
                names = setup.trainable
                self.first = {n: v for n, v in names.items() if n.startswith("first/")}
                self.optimizer = setup.optimizer("optimizer", self.first)

            def __call__(self, context, batch):
                outputs = context.tower(*batch).outputs
                context.minimize(outputs["first_cost"], self.first, self.optimizer)

    It may keep what it likes: one object is one training's.
    """

    def settings(self) -> Mapping[str, Any]:
        """What decides how training goes on, by whole names: a continued run compares."""
        return {}

    @abstractmethod
    def build(self, setup: StepSetup) -> None:
        """Ask for optimizers, eagerly, before the step is compiled."""

    @abstractmethod
    def __call__(self, context: StepContext, batch: Sequence[tf.Tensor]) -> None:
        """In the graph, once for each replica: call the tower, and say what to minimize."""


class SupervisedStep(TrainStep):
    """The tower's cost, minimized by one optimizer."""

    def build(self, setup: StepSetup) -> None:
        """Take the optimizer for all trainable variables that the tower reads."""
        self._variables = setup.trainable
        self._optimizer = setup.optimizer()

    def __call__(self, context: StepContext, batch: Sequence[tf.Tensor]) -> None:
        """Minimize the cost."""
        context.minimize(context.tower(*batch).cost, self._variables, self._optimizer)
