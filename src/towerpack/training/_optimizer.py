"""One face for the optimizers of Keras 3 and of `tf.compat.v1.train`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import keras
import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack._core.naming import unique
from towerpack.nn import variable_alias
from towerpack.training._hyper import VariableParam

LEARNING_RATE = "learning_rate"


class OptimizerAdapter(Protocol):
    """What the training step needs of an optimizer."""

    def build(self, variables: Mapping[str, tf.Variable]) -> None:
        """Create slots for these trainable variables."""
        ...

    def scale_loss(self, cost: tf.Tensor) -> tf.Tensor:
        """The cost to take gradients of."""
        ...

    def apply(self, gradients: Sequence[Any]) -> None:
        """In the graph: update the variables of `build`, in their order; None leaves one alone."""
        ...

    def variables(self) -> dict[str, tf.Variable]:
        """All state, by names that every process repeats."""
        ...

    def hyper_params(self) -> dict[str, VariableParam]:
        """What can be changed while training goes on."""
        ...


def adapt(optimizer: Any, *, scale_loss: bool = False) -> OptimizerAdapter:
    """Wrap an optimizer.

    Args:
        optimizer: Of Keras 3 or `tf.compat.v1.train`.
        scale_loss: Scale the loss dynamically (for float16).

    Raises:
        ConfigError: It is neither, or it has been used for other variables.
    """
    if isinstance(optimizer, str):
        optimizer = keras.optimizers.get(optimizer)
    if isinstance(optimizer, keras.optimizers.Optimizer):
        if scale_loss and not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        return _KerasOptimizer(optimizer)
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        if scale_loss:
            raise ConfigError(
                "precision='float16' needs loss scaling, which tf.compat.v1 optimizers lack.",
                fix="use a Keras optimizer, or precision='bfloat16'",
            )
        return _CompatOptimizer(optimizer)
    raise ConfigError(
        f"{optimizer!r} is not an optimizer.",
        expected="a Keras optimizer such as keras.optimizers.Adam(1e-3), or one of "
        "tf.compat.v1.train",
        fix="call the class: keras.optimizers.Adam(1e-3)" if isinstance(optimizer, type) else None,
    )


class _KerasOptimizer:
    def __init__(self, optimizer: keras.optimizers.Optimizer) -> None:
        self._optimizer = optimizer
        self._aliases: list[keras.Variable] = []

    def build(self, variables: Mapping[str, tf.Variable]) -> None:
        if self._optimizer.built:
            raise ConfigError(
                f"This {type(self._optimizer).__name__} optimizer has been used already.",
                fix="make a new one for each trainer, for example in ModelDesc.optimizer()",
            )
        # Keras names slots by the path of their variable; our aliases carry our names.
        self._aliases = [variable_alias(v, name) for name, v in variables.items()]
        self._optimizer.build(self._aliases)

    def scale_loss(self, cost: tf.Tensor) -> tf.Tensor:
        return self._optimizer.scale_loss(cost)

    def apply(self, gradients: Sequence[Any]) -> None:
        pairs = [p for p in zip(gradients, self._aliases, strict=True) if p[0] is not None]
        self._optimizer.apply([g for g, _ in pairs], [v for _, v in pairs])

    def variables(self) -> dict[str, tf.Variable]:
        found: dict[str, tf.Variable] = {}
        for variable in self._optimizer.variables:
            # The first part is the optimizer's own automatic name.
            name = variable.path.split("/", 1)[-1]
            found[unique(name, found)] = variable.value
        return found

    def hyper_params(self) -> dict[str, VariableParam]:
        inner = getattr(self._optimizer, "inner_optimizer", self._optimizer)
        rate = getattr(inner, "_learning_rate", None)
        if isinstance(rate, keras.Variable):
            return {LEARNING_RATE: VariableParam(LEARNING_RATE, rate.value)}
        return {}


class _CompatOptimizer:
    """A `tf.compat.v1.train` optimizer; its learning rate becomes a variable if it was a number."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._variables: dict[str, tf.Variable] = {}
        self._rate: tf.Variable | None = None
        for attribute in ("_lr", "_learning_rate"):
            value = getattr(optimizer, attribute, None)
            if isinstance(value, int | float):
                start = tf.constant(float(value))
                self._rate = tf.Variable(start, trainable=False, name=LEARNING_RATE)
                setattr(optimizer, attribute, self._rate)

    def build(self, variables: Mapping[str, tf.Variable]) -> None:
        self._variables = dict(variables)
        # Eagerly, so that the slots exist before a checkpoint is restored.
        self._optimizer._create_slots(list(variables.values()))

    def scale_loss(self, cost: tf.Tensor) -> tf.Tensor:
        return cost

    def apply(self, gradients: Sequence[Any]) -> None:
        pairs = zip(gradients, self._variables.values(), strict=True)
        self._optimizer.apply_gradients([(g, v) for g, v in pairs if g is not None])

    def variables(self) -> dict[str, tf.Variable]:
        found: dict[str, tf.Variable] = {}
        if self._rate is not None:
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
        return found

    def hyper_params(self) -> dict[str, VariableParam]:
        if self._rate is None:
            return {}
        return {LEARNING_RATE: VariableParam(LEARNING_RATE, self._rate)}
