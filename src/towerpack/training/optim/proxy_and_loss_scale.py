"""What is put around optimizers; first of all the scaling of the loss."""

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
from towerpack.training.optim.variable_param import VariableParam


def named_optimizer(optimizer: Any) -> Any:
    """Return the Keras optimizer of a name; anything else as it is.

    Raises:
        ConfigError: Keras has no optimizer with this name.
    """
    if not isinstance(optimizer, str):
        return optimizer
    try:
        return keras.optimizers.get(optimizer)
    except ValueError as error:
        classes = [v for v in vars(keras.optimizers).values() if isinstance(v, type)]
        names = [c.__name__.lower() for c in classes if issubclass(c, keras.optimizers.Optimizer)]
        raise ConfigError(
            f"Keras has no optimizer {optimizer!r}.",
            expected="a name such as 'adam', or an optimizer such as keras.optimizers.Adam(1e-3)",
            fix=did_you_mean(optimizer, names),
        ) from error


def adapt(optimizer: Any, *, scale_loss: bool = False) -> OptimizerAdapter:
    """Wrap an optimizer.

    Args:
        optimizer: Of Keras 3 or `tf.compat.v1.train`, or a wrapper such as `AccumulateGradients`.
        scale_loss: Scale the loss dynamically (for float16).
    """
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
            f"{optimizer!r} is not an optimizer.",
            expected="a Keras optimizer such as keras.optimizers.Adam(1e-3), one of "
            "tf.compat.v1.train, or a wrapper such as AccumulateGradients",
            fix="call the class: keras.optimizers.Adam(1e-3)"
            if isinstance(optimizer, type)
            else None,
        )
    return LossScale(adapter) if scale_loss and not isinstance(adapter, LossScale) else adapter


class ProxyOptimizer(KeepsArguments, OptimizerAdapter):
    """Passes everything on to the optimizer that it wraps: the base of wrappers.

    A wrapper of your own overrides `apply`, and gives what it must remember in `make_variables`.

    Args:
        optimizer: What `TrainConfig(optimizer=…)` takes, another wrapper included.

    Attributes:
        wrapped: The optimizer as it was given.
        inner: It, as the training step sees it.
        trained: The variables of `build`.
        strategy: Of `tf.distribute`: that under which it was built.

    Raises:
        ConfigError: It is no optimizer; or it scales the loss, which must be done around wrappers.
    """

    def __init__(self, optimizer: Any) -> None:
        self.wrapped = optimizer
        self.inner = adapt(optimizer)
        self.trained: dict[str, tf.Variable] = {}
        self._own: dict[str, tf.Variable] = {}
        if isinstance(self.inner, LossScale) or getattr(optimizer, "loss_scale_factor", None):
            raise ConfigError(
                f"{type(self).__name__} would see gradients of a scaled loss.",
                got="a LossScaleOptimizer, or loss_scale_factor=, inside",
                fix="give the optimizer itself: precision='float16' scales around all of it",
            )

    def settings(self) -> dict[str, Any]:
        """Settings that a continued run compares: the constructor's arguments."""
        given = arguments_of(self).items()
        return {name: value for name, value in given if value is not self.wrapped}

    def build(
        self, variables: Mapping[str, tf.Variable], saved_elsewhere: Iterable[tf.Variable] = ()
    ) -> None:
        self.inner.build(variables, saved_elsewhere)
        self.strategy = tf.distribute.get_strategy()
        self.trained = dict(variables)
        self._own = self.make_variables()

    def make_variables(self) -> dict[str, tf.Variable]:
        """Make the variables of this wrapper, for checkpoints by name, eagerly."""
        return {}

    def apply(self, gradients: Sequence[Any]) -> None:
        self.inner.apply(gradients)

    def variables(self) -> dict[str, tf.Variable]:
        found = self.inner.variables()
        for name, variable in self._own.items():
            found[unique(name, found)] = variable
        return found

    def hyper_params(self) -> dict[str, VariableParam]:
        return self.inner.hyper_params()

    def scheduled(self) -> dict[str, float]:
        return self.inner.scheduled()

    def scale_loss(self, cost: tf.Tensor) -> tf.Tensor:
        return self.inner.scale_loss(cost)

    def check(self, gradients: Sequence[Any]) -> tf.Tensor:
        return self.inner.check(gradients)

    def checks(self) -> bool:
        return self.inner.checks()

    def nonfinite(self) -> list[str]:
        return self.inner.nonfinite()

    def averages(self) -> dict[str, tf.Variable]:
        return self.inner.averages()

    def final_values(self) -> dict[str, tf.Variable]:
        return self.inner.final_values()

    def histograms(self, gradients: Sequence[Any]) -> dict[str, Any]:
        return self.inner.histograms(gradients)


class LossScale(ProxyOptimizer):
    """Scale the loss so that small gradients do not vanish in float16; a power of two.

    Steps whose gradients overflow are left out, and halve the scale. It is around all other
    wrappers, where Keras's `LossScaleOptimizer` cannot be; that refuses cross-replica context too.

    Args:
        optimizer: The optimizer.
        initial: The scale to begin with.
        growth_steps: Steps without overflow after which the scale is doubled.
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
        # What is not finite at a scale of 1 does not come from scaling.
        return self.inner.check(self._unscaled(gradients)) | (self._scale > 1.0)

    def histograms(self, gradients: Sequence[Any]) -> dict[str, Any]:
        return self.inner.histograms(self._unscaled(gradients))

    def _unscaled(self, gradients: Sequence[Any]) -> list[Any]:
        def unscale(gradient: Any) -> Any:
            return mapped(lambda x: x / tf.cast(self._scale, x.dtype), gradient)

        return [None if g is None else on_replicas(self.strategy, unscale, g) for g in gradients]


def mapped(function: Callable[[tf.Tensor], tf.Tensor], gradient: Any) -> Any:
    """A function over the numbers of a gradient, which may be sparse."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(function(gradient.values), gradient.indices, gradient.dense_shape)
    return function(tf.convert_to_tensor(gradient))


def is_finite(gradient: Any) -> tf.Tensor:
    """In the graph: whether all numbers of a gradient are."""
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    return tf.reduce_all(tf.math.is_finite(values))
