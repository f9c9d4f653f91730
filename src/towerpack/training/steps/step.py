"""Definition of a training step on one replica."""

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
    """Optimizer, and its gradients by variable name; None for variables not in the cost."""

    optimizer: OptimizerAdapter
    gradients: dict[str, Any]


class StepContext:
    """Context of a step on one replica, which calls the model and records costs to minimize.

    Args:
        tower: Tower function of the model.
        index: Index of the replica.
        total: Number of replicas.
        step: Global step.
        watched: Variables that `minimize` may train.
        weight: Weight of the replica in averages over all replicas; None for 1.

    Attributes:
        result: Result of the last call of the tower.
        minimized: Gradients to apply, in order, once all replicas have computed them.
    """

    def __init__(
        self,
        tower: TowerFunction,
        *,
        index: int,
        total: int,
        step: tf.Variable,
        watched: Sequence[tf.Variable],
        weight: tf.Tensor | None = None,
    ) -> None:
        self.index = index
        self.total = total
        self.step = step
        self.result: TowerResult | None = None
        self.minimized: list[Minimized] = []
        self._tower, self._watched, self._weight = tower, watched, weight
        self._tape = tf.GradientTape(persistent=True, watch_accessed_variables=False)

    def tower(self, *batch: tf.Tensor) -> TowerResult:
        """Call the model in training mode on a batch of this replica.

        Args:
            *batch: Inputs of the model.
        """
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
        """Minimize a cost with an optimizer.

        Gradients are averaged over the replicas. They are applied in the order of the calls, after
        all of them have been computed.

        Args:
            cost: Scalar tensor from `tower`, or several tensors whose sum is minimized.
            variables: The variables passed to `StepSetup.optimizer`, in the same order.
            optimizer: Optimizer returned by `StepSetup.optimizer`.

        Raises:
            LayerError: There is no cost, or it depends on none of the variables.
        """
        if cost is None:
            raise LayerError(
                "There is no cost to minimize.", fix="return the cost from build_graph"
            )
        with self._tape:
            losses = [optimizer.scale_loss(c) for c in tf.nest.flatten(cost)]
            if self._weight is not None:
                losses = [loss * tf.cast(self._weight, loss.dtype) for loss in losses]
        gradients = self._tape.gradient(losses, dict(variables))
        if all(gradient is None for gradient in gradients.values()):
            raise LayerError(
                "The cost depends on no trainable variable.",
                got=f"trainable variables {list(variables)}",
                fix="compute the cost from the layers' outputs, without tf.stop_gradient or NumPy; "
                "train a GANModelDesc with GANTrainer",
            )
        self.minimized.append(Minimized(optimizer, gradients))


_OLD_ATTRIBUTES = {"given": "available"}


class StepSetup:
    """Variables and optimizers from which a step is built, before the step is compiled.

    Args:
        tower: Function that builds the model, with its variables.
        trace: Graph of the model that `tower` built for training.
        optimizers: The optimizer of the configuration or the model, or a dict of several.
        scale_loss: Scale losses dynamically (for float16).
        frozen: Regular expressions for full names of variables that are not trained.
        only: Expressions for full names. Other variables are not trained. Empty for all.

    Attributes:
        trace: Training tower of the model.
        trainable: Trainable variables that the tower reads, by name, without the frozen ones.
        frozen: Names of the frozen variables.
        trained: Variables that have an optimizer, by name.
        optimizers: Optimizers returned by `optimizer`, by name. A checkpoint has a group of
            variables for each of them, in addition to the group `'model'`.
        available: Optimizers that the step can use, by name; a single one is called 'optimizer'. A
            step may replace them.
    """

    def __init__(
        self,
        tower: TowerFunction,
        trace: TowerTrace,
        optimizers: Any,
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
            matches = [find_matching(who, regex, trainable, re.fullmatch) for regex in regexes]
            return {name for names in matches for name in names}

        self.frozen = matching("frozen", frozen)
        if only:
            self.frozen |= trainable.keys() - matching("trainable", only)
        known = tower.store.named_variables()
        moved = [name for name in trace.moved if known[name].dtype.is_floating]
        if still := [name for name in moved if any(re.fullmatch(r, name) for r in tower.frozen)]:
            _LOG.warning("Frozen variables that their layers still update: %s.", ", ".join(still))
        self.trainable = {n: v for n, v in trainable.items() if n not in self.frozen}
        self.trained: dict[str, tf.Variable] = {}
        self.optimizers: dict[str, OptimizerAdapter] = {}
        fixed = known.keys() - (tower.store.trainable().keys() - self.frozen)
        self._fixed = {id(known[name]) for name in fixed}
        self._everything = known.values()
        several = isinstance(optimizers, Mapping)
        self.available = optimizers if several else {"optimizer": optimizers}
        self._scale_loss = scale_loss

    def __getattr__(self, name: str) -> Any:
        if name not in _OLD_ATTRIBUTES:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self, _OLD_ATTRIBUTES[name])

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(_OLD_ATTRIBUTES.get(name, name), value)

    def optimizer(
        self, name: str = "optimizer", variables: Mapping[str, tf.Variable] | None = None
    ) -> OptimizerAdapter:
        """Return an optimizer for some variables, after creating its slots.

        Args:
            name: Key of the optimizer, if the model returns a dict.
            variables: Variables by name; None for all of `trainable`.

        Raises:
            ConfigError: There is no optimizer with this name, it is used already, it is not an
                optimizer, or some of the variables are frozen.
        """
        if name not in self.available or name in self.optimizers:
            problem = " twice" if name in self.optimizers else ", which the model does not return"
            raise ConfigError(
                f"The step requests the optimizer '{name}'{problem}.",
                got=f"optimizer() returns {sorted(self.available)}",
                fix="return a dict with an optimizer for each of these names from optimizer()",
            )
        variables = self.trainable if variables is None else variables
        fixed = {n: v.shape.as_list() for n, v in variables.items() if id(v) in self._fixed}
        if fixed:
            raise ConfigError(
                f"The optimizer '{name}' cannot train frozen variables.",
                got=", ".join(f"'{n}' {shape}" for n, shape in fixed.items()),
                expected="variables in StepSetup.trainable",
                fix="leave these variables out, or do not freeze them",
            )
        adapter = adapt(self.available[name], scale_loss=self._scale_loss)
        adapter.build(variables, saved_elsewhere=self._everything)
        self.optimizers[name] = adapter
        self.trained.update(variables)
        return adapter

    def check(self, *, checks_finite: bool = False) -> None:
        """Check the optimizers after the step is built.

        Args:
            checks_finite: Whether a step that is not finite ends training and is not applied.

        Raises:
            ConfigError: The step does not use an optimizer, or `CheckGradient` is used without
                `checks_finite`.
        """
        if not checks_finite and any(o.checks() for o in self.optimizers.values()):
            raise ConfigError(
                "CheckGradient needs the callback CheckNumerics, which this run does not have.",
                fix="add CheckNumerics() to TrainConfig(extra_callbacks=…), or drop CheckGradient",
            )
        unused = sorted(set(self.available) - set(self.optimizers))
        if unused:
            raise ConfigError(
                f"The step does not use the optimizers {unused}.",
                got=f"optimizer() returns {sorted(self.available)}",
                fix="return only optimizers that the step uses, or train with a step that uses "
                "them: Trainer(config, step=…)",
            )


class TrainStep(ABC):
    """Base class of training steps, for `Trainer(config, step=…)`.

        class TwoCosts(TrainStep):
            def build(self, setup):
                names = setup.trainable
                self.first = {n: v for n, v in names.items() if n.startswith("first/")}
                self.optimizer = setup.optimizer("optimizer", self.first)

            def __call__(self, context, batch):
                outputs = context.tower(*batch).outputs
                context.minimize(outputs["first_cost"], self.first, self.optimizer)

    Use an instance for one training run only. It may keep state in attributes.
    """

    def settings(self) -> Mapping[str, Any]:
        """Return settings that a continued run compares, by their full names."""
        return {}

    @abstractmethod
    def build(self, setup: StepSetup) -> None:
        """Create optimizers eagerly, before the step is compiled.

        Args:
            setup: Variables and optimizers.
        """

    @abstractmethod
    def __call__(self, context: StepContext, batch: Sequence[tf.Tensor]) -> None:
        """Build the step of one replica in the graph: call the tower and `context.minimize`.

        Args:
            context: Context of the replica.
            batch: Inputs of the model on this replica.
        """


class SupervisedStep(TrainStep):
    """Step that minimizes the tower's cost with one optimizer."""

    def build(self, setup: StepSetup) -> None:
        self._variables = setup.trainable
        self._optimizer = setup.optimizer()

    def __call__(self, context: StepContext, batch: Sequence[tf.Tensor]) -> None:
        context.minimize(context.tower(*batch).cost, self._variables, self._optimizer)
