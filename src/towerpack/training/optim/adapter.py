"""Common interface of the optimizers of Keras 3 and of `tf.compat.v1.train`."""

from __future__ import annotations

import functools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.training import optimizer as v1_optimizer

from towerpack._core.errors import ConfigError
from towerpack._core.naming import unique
from towerpack.nn import variable_alias
from towerpack.training.distribution.replicas import on_replicas
from towerpack.training.optim.fused import update_variables
from towerpack.training.optim.learning_rate import LEARNING_RATE, RateFunction
from towerpack.training.optim.variable_param import VariableParam

_Schedule = keras.optimizers.schedules.LearningRateSchedule


class OptimizerAdapter(ABC):
    """Interface of optimizers and optimizer wrappers that the training step uses.

    Gradients are averaged over the replicas. Each is a tensor or `tf.IndexedSlices`, or None if the
    cost does not depend on the variable. With a `tf.distribute` strategy, `build` is called in the
    strategy's scope. The other methods are called in cross-replica context, possibly inside a
    `tf.cond`. Gradients and variables are then distributed values; see
    `towerpack.training.distribution.replicas`.
    """

    @abstractmethod
    def build(
        self, variables: Mapping[str, tf.Variable], saved_elsewhere: Iterable[tf.Variable] = ()
    ) -> None:
        """Create the optimizer's variables. `variables()` omits those in `saved_elsewhere`."""

    @abstractmethod
    def apply(self, gradients: Sequence[Any]) -> None:
        """Update the trainable variables in the graph. `gradients` has one gradient for each."""

    @abstractmethod
    def variables(self) -> dict[str, tf.Variable]:
        """Return all variables of the optimizer by name. Names are the same in every process."""

    @abstractmethod
    def hyper_params(self) -> dict[str, VariableParam]:
        """Return hyper-parameters that can be changed in training, such as the learning rate."""

    @abstractmethod
    def scheduled(self) -> dict[str, float]:
        """Return numbers to monitor, such as the scheduled learning rate of the last step."""

    def scale_loss(self, cost: tf.Tensor) -> tf.Tensor:
        return cost

    def compile_updates(self) -> None:  # noqa: B027 - optional
        """Let XLA compile updates of variables that have one copy. Called before `apply`."""

    def check(self, gradients: Sequence[Any]) -> tf.Tensor:
        """Return a bool tensor: whether `apply` may be called. Must be called outside `tf.cond`."""
        return tf.constant(True)

    def checks(self) -> bool:
        return False

    def nonfinite(self) -> list[str]:
        """Return names of variables whose NaN or infinite gradients made `check` skip a step."""
        return []

    def averages(self) -> dict[str, tf.Variable]:
        """Return moving averages of trained variables, by the names of the trained variables."""
        return {}

    def final_values(self) -> dict[str, tf.Variable]:
        """Return variables that replace trained variables outside of training, by name.

        Evaluation, predictors and the model in a checkpoint use these values, for example the
        averages of a Keras optimizer with `use_ema`.
        """
        return {}

    def skip(self, steps: int, after: int) -> None:
        """Move schedules over steps after the step `after` that do not update variables."""
        return

    def histograms(self, gradients: Sequence[Any]) -> dict[str, Any]:
        """Return tensors of an epoch's last step to plot as histograms, by name."""
        return {}


class KerasOptimizer(OptimizerAdapter):
    def __init__(self, optimizer: keras.optimizers.Optimizer) -> None:
        self._optimizer: Any = optimizer
        self._aliases: list[keras.Variable] = []
        self._compiled = False
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
                f"The optimizer must be new, but this {type(self._optimizer).__name__} optimizer "
                "has been used already.",
                fix="create a new optimizer for each trainer, for example in ModelDesc.optimizer()",
            )
        self._elsewhere = {id(v) for v in saved_elsewhere}
        # Keras names slots by the path of their variable. The aliases have our names as paths.
        self._aliases = [variable_alias(v, name) for name, v in variables.items()]
        for part in {id(o): o for o in (self._optimizer, *self._optimizers())}.values():
            _adopt(part)
            part._distributed_tf_update_step = functools.partial(update_variables, part)
        self._optimizer.build(self._aliases)
        for name, average in self.final_values().items():
            average.assign(variables[name])  # Keras would keep zeros until the first step.

    def scale_loss(self, cost: tf.Tensor) -> tf.Tensor:
        return self._optimizer.scale_loss(cost)

    def compile_updates(self) -> None:
        # Updates and schedules of other classes may contain operations that XLA does not know.
        parts = [self._optimizer, *self._optimizers()]
        schedules = [o._learning_rate for o in parts if isinstance(o._learning_rate, _Schedule)]
        self._compiled = all(type(p).__module__.startswith("keras.") for p in parts + schedules)

    def apply(self, gradients: Sequence[Any]) -> None:
        if self._function is not None:
            self._function.update()
        pairs = [p for p in zip(gradients, self._aliases, strict=True) if p[0] is not None]
        optimizer = self._optimizer
        strategy, factor = optimizer._distribution_strategy, optimizer.loss_scale_factor

        def unscaled(gradients: Sequence[Any]) -> list[Any]:
            # Copy gradients into this graph: processors in a `tf.cond` may return some unchanged,
            # from the graph outside, which Keras cannot mix. It also cannot unscale sparse ones.
            if factor is None:
                return [tf.identity(g) for g in gradients]
            return [tf.math.scalar_mul(1.0 / factor, g) for g in gradients]

        copies = on_replicas(strategy, unscaled, [g for g, _ in pairs])
        optimizer.loss_scale_factor = None
        try:
            with _across_replicas(strategy):
                apply = functools.partial(optimizer.apply, copies, [v for _, v in pairs])
                self._compilable(apply, copies)()
        finally:
            optimizer.loss_scale_factor = factor

    def _compilable(self, apply: Callable[[], None], gradients: Sequence[Any]) -> Any:
        """Return a function that XLA compiles, if it can and should."""
        variables = [alias.value for alias in self._aliases]
        copied = any(isinstance(v, tf.distribute.DistributedValues) for v in variables)
        devices = {variable.device for variable in variables}
        dense = all(isinstance(gradient, tf.Tensor) for gradient in gradients)
        if copied or len(devices) > 1 or not dense or not self._compiled:
            return apply

        def compiled() -> None:
            with tf.device(devices.pop()):
                tf.function(apply, jit_compile=True, autograph=False)()

        return compiled

    def variables(self) -> dict[str, tf.Variable]:
        variables: dict[str, tf.Variable] = {}
        for variable in self._optimizer.variables:
            if self._function is not None and variable.value is self._function.rate:
                continue
            # Remove the optimizer's automatic name, and the number that Keras gives variables
            # without a name, which it counts over the whole process.
            name = re.sub(r"^variable_\d+$", "variable", variable.path.split("/", 1)[-1])
            variables[unique(name, variables)] = variable.value
        return _with_rate(variables, self._function, self._elsewhere)

    def final_values(self) -> dict[str, tf.Variable]:
        values: dict[str, tf.Variable] = {}
        for part in self._optimizers():
            if part.use_ema:
                pairs = zip(
                    part._trainable_variables, part._model_variables_moving_average, strict=True
                )
                values |= {v.path: average.value for v, average in pairs if average is not None}
        return values

    def hyper_params(self) -> dict[str, VariableParam]:
        if self._function is not None:
            return self._function.hyper_params()
        rates = [getattr(o, "_learning_rate", None) for o in self._optimizers()]
        params: dict[str, VariableParam] = {}
        for number, rate in enumerate(rates, start=len(rates) > 1):
            if isinstance(rate, keras.Variable):
                name = f"{LEARNING_RATE}_{number}" if number else LEARNING_RATE
                params[name] = VariableParam(name, rate.value)
        return params

    def _optimizers(self) -> list[Any]:
        """Return the optimizers in a `MultiOptimizer`, or a list with the only optimizer."""
        return getattr(self._optimizer, "optimizers", None) or [self._optimizer]

    def scheduled(self) -> dict[str, float]:
        if self._function is not None:
            return self._function.scheduled()
        schedule = getattr(self._optimizer, "_learning_rate", None)
        if not isinstance(schedule, _Schedule):
            return {}
        last = max(int(self._optimizer._iterations.numpy()) - 1, 0)
        return {LEARNING_RATE: float(tf.convert_to_tensor(schedule(last)))}

    def skip(self, steps: int, after: int) -> None:
        for part in self._optimizers():
            if isinstance(getattr(part, "_learning_rate", None), _Schedule):
                part._iterations.assign_add(steps)


def _adopt(optimizer: Any) -> None:
    """Set the current `tf.distribute` strategy on a Keras optimizer, which may be older than it."""
    optimizer._distribution_strategy = strategy = tf.distribute.get_strategy()
    if not tf.distribute.has_strategy():
        return
    if optimizer.gradient_accumulation_steps:
        raise ConfigError(
            "A Keras optimizer must not accumulate gradients if each replica has its own "
            "variables.",
            got=f"gradient_accumulation_steps={optimizer.gradient_accumulation_steps}",
            fix="remove gradient_accumulation_steps, and use AccumulateGradients(optimizer, steps)",
        )
    # Clip on each replica. Otherwise all replicas would get the first one's clipped gradients.
    clip = optimizer._clip_gradients
    optimizer._clip_gradients = lambda gradients: on_replicas(strategy, clip, gradients)


@contextmanager
def _across_replicas(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Let a Keras optimizer update each replica's variables with the replica's own gradients.

    Outside the strategy's scope, Keras 3.15 uses the first replica's gradients for all replicas.
    Inside the scope, it calls `merge_call`, which normally fails in cross-replica context. So this
    turns off `merge_call`.
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


class CompatOptimizer(OptimizerAdapter):
    """Adapter of a `tf.compat.v1.train` optimizer, whose learning rate becomes a variable."""

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
        # The slots must exist before a checkpoint is restored.
        self._optimizer._create_slots(list(variables.values()))

    def apply(self, gradients: Sequence[Any]) -> None:
        if self._function is not None:
            self._function.update()
        all_pairs = zip(gradients, self._variables.values(), strict=True)
        pairs = [(g, v) for g, v in all_pairs if g is not None]
        if isinstance(pairs[0][1], tf.distribute.DistributedValues):
            self._apply_to_copies(pairs)
        else:
            self._optimizer.apply_gradients(pairs)

    def _apply_to_copies(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        """Update each replica's copy of the variables, without summing gradients over replicas."""
        optimizer, extended = self._optimizer, pairs[0][1].distribute_strategy.extended

        def move(variable: tf.Variable, gradient: Any) -> Any:
            return v1_optimizer._get_processor(variable).update_op(optimizer, gradient)

        optimizer._prepare()
        moved = [op for g, v in pairs for op in extended.update(v, move, args=(g,), group=False)]
        devices = extended.non_slot_devices([v for _, v in pairs])
        extended.update_non_slot(devices, lambda: optimizer._finish(moved, "update"), group=False)

    def variables(self) -> dict[str, tf.Variable]:
        variables: dict[str, tf.Variable] = {}
        if self._rate is not None and id(self._rate) not in self._elsewhere:
            variables[LEARNING_RATE] = self._rate
        slots: set[int] = set()
        for name, variable in self._variables.items():
            for kind in self._optimizer.get_slot_names():
                slot = self._optimizer.get_slot(variable, kind)
                if slot is not None:
                    variables[f"{name}/{kind}"] = slot
                    slots.add(id(slot))
        for variable in self._optimizer.variables():
            if id(variable) not in slots:
                variables[unique(variable.name.split(":")[0], variables)] = variable
        return _with_rate(variables, self._function, self._elsewhere)

    def hyper_params(self) -> dict[str, VariableParam]:
        if self._function is not None:
            return self._function.hyper_params()
        if self._rate is None:
            return {}
        return {LEARNING_RATE: VariableParam(LEARNING_RATE, self._rate)}

    def scheduled(self) -> dict[str, float]:
        return {} if self._function is None else self._function.scheduled()


def _number(value: Any) -> tf.Tensor:
    if isinstance(value, tf.Tensor):
        raise ConfigError(
            "The optimizer's learning rate must be a number, a variable or a function, got the "
            f"constant tensor {value}.",
            fix="compute the rate in the model's optimizer(), or in a function: "
            "tf.compat.v1.train.MomentumOptimizer(lambda: lr / 8.0, 0.9)",
        )
    return tf.constant(float(value))


def _with_rate(
    variables: dict[str, tf.Variable], function: RateFunction | None, elsewhere: set[int]
) -> dict[str, tf.Variable]:
    known = elsewhere | {id(variable) for variable in variables.values()}
    for name, variable in ({} if function is None else function.variables()).items():
        if id(variable) not in known:
            variables[unique(name, variables)] = variable
    return variables
