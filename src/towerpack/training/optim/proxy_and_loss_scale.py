"""Base class of optimizer wrappers, and the wrapper that scales the loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from towerpack._core.arguments import KeepsArguments, arguments_of
from towerpack._core.errors import ConfigError
from towerpack._core.naming import did_you_mean, unique
from towerpack.training.distribution.replicas import first, on_replicas
from towerpack.training.optim.adapter import CompatOptimizer, KerasOptimizer, OptimizerAdapter


def named_optimizer(optimizer: Any) -> Any:
    """Return the Keras optimizer for a name such as 'adam'. Return other objects unchanged."""
    if not isinstance(optimizer, str):
        return optimizer
    try:
        return keras.optimizers.get(optimizer)
    except ValueError as error:
        classes = [v for v in vars(keras.optimizers).values() if isinstance(v, type)]
        names = [c.__name__.lower() for c in classes if issubclass(c, keras.optimizers.Optimizer)]
        raise ConfigError(
            f"Keras has no optimizer {optimizer!r}.",
            expected="a name such as 'adam', or an object such as keras.optimizers.Adam(1e-3)",
            fix=did_you_mean(optimizer, names),
        ) from error


def adapt(optimizer: Any, *, scale_loss: bool = False) -> OptimizerAdapter:
    """Return the adapter of an optimizer. If `scale_loss`, it also scales the loss for float16."""
    optimizer = named_optimizer(optimizer)
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return LossScale(
            adapt(optimizer.inner_optimizer),
            initial=optimizer.initial_scale,
            growth_steps=optimizer.dynamic_growth_steps,
        )
    if isinstance(optimizer, OptimizerAdapter):
        adapter = optimizer
    elif isinstance(optimizer, keras.optimizers.Optimizer):
        adapter = KerasOptimizer(optimizer)
    elif isinstance(optimizer, tf.compat.v1.train.Optimizer):
        adapter = CompatOptimizer(optimizer)
    else:
        raise ConfigError(
            f"The optimizer must be an optimizer object or a name, got {optimizer!r}.",
            expected="an optimizer of Keras or tf.compat.v1.train, or a wrapper such as "
            "AccumulateGradients",
            fix="create an instance, for example keras.optimizers.Adam(1e-3)",
        )
    return LossScale(adapter) if scale_loss and not isinstance(adapter, LossScale) else adapter


def _delegate(name: str) -> Any:
    def method(self: ProxyOptimizer, *args: Any) -> Any:
        return getattr(self.inner, name)(*args)

    return method


class ProxyOptimizer(KeepsArguments, OptimizerAdapter):
    """Base class of optimizer wrappers, whose methods call those of the wrapped optimizer.

    Subclasses override `apply`, and create variables for checkpoints in `make_variables`.

    Args:
        optimizer: Optimizer to wrap: any value of `TrainConfig(optimizer=…)`, or another wrapper.

    Attributes:
        wrapped: The argument `optimizer`.
        inner: Adapter of the wrapped optimizer, which the training step uses.
        trained: Trained variables by name.
        strategy: `tf.distribute` strategy under which the optimizer was built.

    Raises:
        ConfigError: `optimizer` is not an optimizer, or scales the loss.
    """

    def __init__(self, optimizer: Any) -> None:
        self.wrapped = optimizer
        self.inner = adapt(optimizer)
        self.trained: dict[str, tf.Variable] = {}
        self._variables: dict[str, tf.Variable] = {}
        if isinstance(self.inner, LossScale) or getattr(optimizer, "loss_scale_factor", None):
            raise ConfigError(
                f"The optimizer in {type(self).__name__} must not scale the loss.",
                got="a LossScaleOptimizer, or an optimizer with loss_scale_factor=",
                fix="pass an optimizer that does not scale the loss, and set precision='float16'",
            )

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments without the optimizer. Continued runs compare them."""
        arguments = arguments_of(self).items()
        return {name: value for name, value in arguments if value is not self.wrapped}

    def build(
        self, variables: Mapping[str, tf.Variable], saved_elsewhere: Iterable[tf.Variable] = ()
    ) -> None:
        self.inner.build(variables, saved_elsewhere)
        self.strategy = tf.distribute.get_strategy()
        self.trained = dict(variables)
        self._variables = self.make_variables()

    def make_variables(self) -> dict[str, tf.Variable]:
        """Create this wrapper's own variables eagerly. Return them by name for checkpoints."""
        return {}

    def variables(self) -> dict[str, tf.Variable]:
        variables = self.inner.variables()
        for name, variable in self._variables.items():
            variables[unique(name, variables)] = variable
        return variables

    apply = _delegate("apply")
    hyper_params = _delegate("hyper_params")
    scheduled = _delegate("scheduled")
    scale_loss = _delegate("scale_loss")
    compile_updates = _delegate("compile_updates")
    check = _delegate("check")
    checks = _delegate("checks")
    nonfinite = _delegate("nonfinite")
    averages = _delegate("averages")
    final_values = _delegate("final_values")
    histograms = _delegate("histograms")
    skip = _delegate("skip")


class LossScale(ProxyOptimizer):
    """Optimizer wrapper that scales the loss, so that small gradients do not vanish in float16.

    A step whose gradients overflow is skipped and halves the scale. After `growth_steps` steps
    without overflow, the scale doubles. This must be the outermost wrapper. (Keras's
    `LossScaleOptimizer` cannot wrap adapters and fails in cross-replica context.)
    """

    def __init__(
        self, optimizer: OptimizerAdapter, *, initial: float = 2.0**15, growth_steps: int = 2000
    ) -> None:
        super().__init__(optimizer)
        self._initial, self._growth_steps = initial, growth_steps

    def make_variables(self) -> dict[str, tf.Variable]:
        self._scale = tf.Variable(tf.constant(self._initial), trainable=False)
        self._steps = tf.Variable(tf.zeros([], tf.int64), trainable=False)
        return {"dynamic_scale": self._scale, "step_counter": self._steps}

    def scale_loss(self, cost: tf.Tensor) -> tf.Tensor:
        return self.inner.scale_loss(cost) * tf.cast(self._scale, cost.dtype)

    def apply(self, gradients: Sequence[Any]) -> None:
        unscaled = self._unscaled(gradients)
        finite = tf.reduce_all([is_finite(first(g)) for g in unscaled if g is not None])

        def update() -> None:
            self.inner.apply(unscaled)
            grow = self._steps + 1 >= self._growth_steps
            self._scale.assign(tf.where(grow, self._scale * 2.0, self._scale))
            self._steps.assign(tf.where(grow, tf.zeros_like(self._steps), self._steps + 1))

        def leave_out() -> None:
            self._scale.assign(self._scale * 0.5)
            self._steps.assign(tf.zeros_like(self._steps))

        tf.cond(finite, update, leave_out)

    def check(self, gradients: Sequence[Any]) -> tf.Tensor:
        # Only at a scale of 1 is the scaling not the cause of values that are not finite.
        return self.inner.check(self._unscaled(gradients)) | (self._scale > 1.0)

    def histograms(self, gradients: Sequence[Any]) -> dict[str, Any]:
        return self.inner.histograms(self._unscaled(gradients))

    def _unscaled(self, gradients: Sequence[Any]) -> list[Any]:
        def unscale(gradient: Any) -> Any:
            return mapped(lambda x: x / tf.cast(self._scale, x.dtype), gradient)

        return [None if g is None else on_replicas(self.strategy, unscale, g) for g in gradients]


def mapped(function: Callable[[tf.Tensor], tf.Tensor], gradient: Any) -> Any:
    """Apply a function to the values of a dense or sparse gradient. Return the new gradient."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(function(gradient.values), gradient.indices, gradient.dense_shape)
    return function(tf.convert_to_tensor(gradient))


def is_finite(gradient: Any) -> tf.Tensor:
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    return tf.reduce_all(tf.math.is_finite(values))
