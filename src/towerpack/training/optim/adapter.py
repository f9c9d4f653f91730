"""One face for the optimizers of Keras 3 and of `tf.compat.v1.train`."""

from __future__ import annotations

import functools
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.training import optimizer as v1_optimizer

from towerpack._core.errors import ConfigError
from towerpack._core.naming import unique
from towerpack.nn import variable_alias
from towerpack.training.distribution.replicas import on_replicas
from towerpack.training.optim.learning_rate import LEARNING_RATE, RateFunction
from towerpack.training.optim.variable_param import VariableParam

_Schedule = keras.optimizers.schedules.LearningRateSchedule


class OptimizerAdapter(ABC):
    """What the training step needs of an optimizer, or of what is wrapped around one.

    What is called in the graph gets gradients that have been averaged over the replicas: tensors or
    `tf.IndexedSlices`. With a strategy of `tf.distribute`, `build` is called in its scope, the rest
    outside of it and of replicas, perhaps inside of a `tf.cond`; gradients and variables are then
    distributed values, on which `towerpack.training.distribution.replicas` works.
    """

    @abstractmethod
    def build(
        self, variables: Mapping[str, tf.Variable], saved_elsewhere: Iterable[tf.Variable] = ()
    ) -> None:
        """Create slots for these trainable variables; `variables` leaves out what others save."""

    @abstractmethod
    def apply(self, gradients: Sequence[Any]) -> None:
        """In the graph: update the variables of `build`, in their order; None leaves one alone."""

    @abstractmethod
    def variables(self) -> dict[str, tf.Variable]:
        """All state, by names that every process repeats."""

    @abstractmethod
    def hyper_params(self) -> dict[str, VariableParam]:
        """What can be changed while training goes on."""

    @abstractmethod
    def scheduled(self) -> dict[str, float]:
        """Numbers for the monitors: what a schedule has given for the last step, and others."""

    def scale_loss(self, cost: tf.Tensor) -> tf.Tensor:
        """The cost to take gradients of."""
        return cost

    def check(self, gradients: Sequence[Any]) -> tf.Tensor:
        """In the graph, before `apply`, outside of any condition: whether it may be called."""
        return tf.constant(True)

    def checks(self) -> bool:
        """`check` may forbid a step."""
        return False

    def nonfinite(self) -> list[str]:
        """Variables for whose gradients `check` has forbidden the last step."""
        return []

    def averages(self) -> dict[str, tf.Variable]:
        """Averages of trained variables, by the variables' names."""
        return {}

    def final_values(self) -> dict[str, tf.Variable]:
        """Variables whose values the trained ones take in the end, by the trained ones' names.

        Training goes on with others. Evaluation, predictors and a checkpoint's model have these.
        """
        return {}

    def histograms(self, gradients: Sequence[Any]) -> dict[str, Any]:
        """What of the gradients of an epoch's last step is to be shown, by the monitors' names."""
        return {}


class KerasOptimizer(OptimizerAdapter):
    def __init__(self, optimizer: keras.optimizers.Optimizer) -> None:
        self._optimizer: Any = optimizer
        self._aliases: list[keras.Variable] = []
        self._elsewhere: set[int] = set()
        rate = getattr(self._optimizer, "_learning_rate", None)
        self._function: RateFunction | None = None
        if callable(rate) and not isinstance(rate, _Schedule):
            self._function = RateFunction(rate)
            self._optimizer._learning_rate = variable_alias(self._function.rate, LEARNING_RATE)

    def build(
        self, variables: Mapping[str, tf.Variable], saved_elsewhere: Iterable[tf.Variable] = ()
    ) -> None:
        if self._optimizer.built:
            raise ConfigError(
                f"This {type(self._optimizer).__name__} optimizer has been used already.",
                fix="make a new one for each trainer, for example in ModelDesc.optimizer()",
            )
        self._elsewhere = {id(v) for v in saved_elsewhere}
        # Keras names slots by the path of their variable; our aliases carry our names.
        self._aliases = [variable_alias(v, name) for name, v in variables.items()]
        remote = any("/job:ps/" in variable.device for variable in variables.values())
        for part in {id(o): o for o in (self._optimizer, *self._optimizers())}.values():
            _adopt(part)
            if remote:
                part._distributed_tf_update_step = functools.partial(_update_in_place, part)
        self._optimizer.build(self._aliases)
        for name, average in self.final_values().items():
            average.assign(variables[name])  # Keras has zeros there until the first step.

    def scale_loss(self, cost: tf.Tensor) -> tf.Tensor:
        return self._optimizer.scale_loss(cost)  # By the optimizer's `loss_scale_factor`.

    def apply(self, gradients: Sequence[Any]) -> None:
        if self._function is not None:
            self._function.update()
        pairs = [p for p in zip(gradients, self._aliases, strict=True) if p[0] is not None]
        optimizer = self._optimizer
        strategy, factor = optimizer._distribution_strategy, optimizer.loss_scale_factor

        def unscaled(gradients: Sequence[Any]) -> list[Any]:
            # Keras needs tensors of one graph. Processors in a `tf.cond` may return some gradients
            # unchanged, from the graph outside. Keras also cannot divide sparse gradients.
            if factor is None:
                return [tf.identity(g) for g in gradients]
            return [tf.math.scalar_mul(1.0 / factor, g) for g in gradients]

        copies = on_replicas(strategy, unscaled, [g for g, _ in pairs])
        optimizer.loss_scale_factor = None
        try:
            with _across_replicas(strategy):
                optimizer.apply(copies, [v for _, v in pairs])
        finally:
            optimizer.loss_scale_factor = factor

    def variables(self) -> dict[str, tf.Variable]:
        found: dict[str, tf.Variable] = {}
        for variable in self._optimizer.variables:
            if self._function is not None and variable.value is self._function.rate:
                continue
            # The first part is the optimizer's own automatic name.
            name = variable.path.split("/", 1)[-1]
            # Keras counts variables without a name over the whole process.
            name = re.sub(r"^variable_\d+$", "variable", name)
            found[unique(name, found)] = variable.value
        return _with_rate(found, self._function, self._elsewhere)

    def final_values(self) -> dict[str, tf.Variable]:
        found: dict[str, tf.Variable] = {}
        for part in self._optimizers():
            if part.use_ema:
                pairs = zip(
                    part._trainable_variables, part._model_variables_moving_average, strict=True
                )
                found.update({v.path: average.value for v, average in pairs if average is not None})
        return found

    def hyper_params(self) -> dict[str, VariableParam]:
        rates = [getattr(o, "_learning_rate", None) for o in self._optimizers()]
        found: dict[str, VariableParam] = {}
        for number, rate in enumerate(rates, start=len(rates) > 1):
            if isinstance(rate, keras.Variable):
                name = f"{LEARNING_RATE}_{number}" if number else LEARNING_RATE
                found[name] = VariableParam(name, rate.value)
        return found if self._function is None else self._function.hyper_params()

    def _optimizers(self) -> list[Any]:
        """The optimizers that move weights: those of a `MultiOptimizer`, or this one."""
        return getattr(self._optimizer, "optimizers", None) or [self._optimizer]

    def scheduled(self) -> dict[str, float]:
        if self._function is not None:
            return self._function.scheduled()
        schedule = getattr(self._optimizer, "_learning_rate", None)
        if not isinstance(schedule, _Schedule):
            return {}
        last = max(int(self._optimizer._iterations.numpy()) - 1, 0)
        return {LEARNING_RATE: float(tf.convert_to_tensor(schedule(last)))}


def _adopt(optimizer: Any) -> None:
    """Bring a Keras optimizer, which may have been made before, under the present strategy."""
    optimizer._distribution_strategy = strategy = tf.distribute.get_strategy()
    if not tf.distribute.has_strategy():
        return
    if optimizer.gradient_accumulation_steps:
        raise ConfigError(
            "A Keras optimizer cannot accumulate gradients of replicas with copies of the "
            "variables.",
            got=f"gradient_accumulation_steps={optimizer.gradient_accumulation_steps}",
            fix="AccumulateGradients(optimizer, steps)",
        )
    # On each replica's copies; otherwise those of the first would be clipped and handed around.
    clip = optimizer._clip_gradients
    optimizer._clip_gradients = lambda gradients: on_replicas(strategy, clip, gradients)


@contextmanager
def _across_replicas(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Let a Keras optimizer update each replica's variables by its own copy of the gradients.

    Outside of the strategy's scope Keras 3.15 would take the first replica's copies for all. Inside
    it goes by `merge_call`, of which there is none, unless the strategy says that it needs none.
    """
    extended: Any = strategy.extended
    if strategy.num_replicas_in_sync == 1:
        yield
        return
    extended._use_merge_call = lambda: False
    try:
        with strategy.scope():
            yield
    finally:
        del extended._use_merge_call


def _update_in_place(optimizer: Any, _: Any, grads_and_vars: Iterable[Any], rate: Any) -> None:
    """Compute updates where the variables lie: between processes only gradients then travel."""
    for gradient, variable in grads_and_vars:
        with tf.device(variable.device):
            optimizer.update_step(gradient, variable, rate)


class CompatOptimizer(OptimizerAdapter):
    """A `tf.compat.v1.train` optimizer; its learning rate becomes a variable unless it is one."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._variables: dict[str, tf.Variable] = {}
        self._elsewhere: set[int] = set()
        self._rate: tf.Variable | None = None
        self._function: RateFunction | None = None

    def build(
        self, variables: Mapping[str, tf.Variable], saved_elsewhere: Iterable[tf.Variable] = ()
    ) -> None:
        self._elsewhere = {id(v) for v in saved_elsewhere}
        self._variables = dict(variables)
        optimizer = self._optimizer
        vars(optimizer).update(vars(optimizer).pop("_computed", {}))  # See `call_optimizer`.
        for attribute in ("_lr", "_learning_rate"):
            value = getattr(optimizer, attribute, None)
            if isinstance(value, tf.Variable):
                self._rate = value
            elif callable(value):
                self._function = RateFunction(value)
                setattr(optimizer, attribute, self._function.rate)
            elif value is not None:
                self._rate = tf.Variable(_number(value), trainable=False, name=LEARNING_RATE)
                setattr(optimizer, attribute, self._rate)
        # Eagerly, so that the slots exist before a checkpoint is restored.
        self._optimizer._create_slots(list(variables.values()))

    def apply(self, gradients: Sequence[Any]) -> None:
        if self._function is not None:
            self._function.update()
        given = zip(gradients, self._variables.values(), strict=True)
        pairs = [(g, v) for g, v in given if g is not None]
        if isinstance(pairs[0][1], tf.distribute.DistributedValues):
            self._apply_to_copies(pairs)
        else:
            self._optimizer.apply_gradients(pairs)

    def _apply_to_copies(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        """What the optimizer itself does under a strategy, but for summing up the gradients."""
        optimizer, extended = self._optimizer, pairs[0][1].distribute_strategy.extended

        def move(variable: tf.Variable, gradient: Any) -> Any:
            return v1_optimizer._get_processor(variable).update_op(optimizer, gradient)

        optimizer._prepare()
        moved = [op for g, v in pairs for op in extended.update(v, move, args=(g,), group=False)]
        devices = extended.non_slot_devices([v for _, v in pairs])
        extended.update_non_slot(devices, lambda: optimizer._finish(moved, "update"), group=False)

    def variables(self) -> dict[str, tf.Variable]:
        found: dict[str, tf.Variable] = {}
        if self._rate is not None and id(self._rate) not in self._elsewhere:
            found[LEARNING_RATE] = self._rate
        slots: set[int] = set()
        for name, variable in self._variables.items():
            for kind in self._optimizer.get_slot_names():
                slot = self._optimizer.get_slot(variable, kind)
                if slot is not None:
                    found[f"{name}/{kind}"] = slot
                    slots.add(id(slot))
        for variable in self._optimizer.variables():
            if id(variable) not in slots:
                found[unique(variable.name.split(":")[0], found)] = variable
        return _with_rate(found, self._function, self._elsewhere)

    def hyper_params(self) -> dict[str, VariableParam]:
        if self._function is not None:
            return self._function.hyper_params()
        if self._rate is None:
            return {}
        return {LEARNING_RATE: VariableParam(LEARNING_RATE, self._rate)}

    def scheduled(self) -> dict[str, float]:
        return {} if self._function is None else self._function.scheduled()


def _number(value: Any) -> tf.Tensor:
    """A learning rate as a constant."""
    if isinstance(value, tf.Tensor):
        raise ConfigError(
            "The optimizer's learning rate is a tensor, which would never change.",
            got=f"{value}",
            expected="a number, a variable, or a function",
            fix="compute it in the model's optimizer(), or in a function: "
            "tf.compat.v1.train.MomentumOptimizer(lambda: lr / 8.0, 0.9)",
        )
    return tf.constant(float(value))


def _with_rate(
    found: dict[str, tf.Variable], function: RateFunction | None, elsewhere: set[int]
) -> dict[str, tf.Variable]:
    known = elsewhere | {id(variable) for variable in found.values()}
    for name, variable in ({} if function is None else function.variables()).items():
        if id(variable) not in known:
            found[unique(name, found)] = variable
    return found
