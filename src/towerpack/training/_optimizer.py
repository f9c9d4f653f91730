"""One face for the optimizers of Keras 3 and of `tf.compat.v1.train`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import keras
import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack._core.naming import unique
from towerpack.nn import variable_alias
from towerpack.training._hyper import VariableParam
from towerpack.training._rate import LEARNING_RATE, RateFunction

_Schedule = keras.optimizers.schedules.LearningRateSchedule


class OptimizerAdapter(Protocol):
    """What the training step needs of an optimizer."""

    def build(
        self, variables: Mapping[str, tf.Variable], saved_elsewhere: Iterable[tf.Variable] = ()
    ) -> None:
        """Create slots for these trainable variables; `variables` leaves out what others save."""
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

    def scheduled(self) -> dict[str, float]:
        """What a schedule has given for the last step."""
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
        self._inner: Any = getattr(optimizer, "inner_optimizer", optimizer)
        self._aliases: list[keras.Variable] = []
        self._elsewhere: set[int] = set()
        rate = getattr(self._inner, "_learning_rate", None)
        self._function: RateFunction | None = None
        if callable(rate) and not isinstance(rate, _Schedule):
            self._function = RateFunction(rate)
            self._inner._learning_rate = variable_alias(self._function.rate, LEARNING_RATE)

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
        # It may have been made before the strategy whose variables it moves.
        for part in (self._optimizer, self._inner, *self._optimizers()):
            part._distribution_strategy = tf.distribute.get_strategy()
        self._optimizer.build(self._aliases)

    def scale_loss(self, cost: tf.Tensor) -> tf.Tensor:
        return self._optimizer.scale_loss(cost)

    def apply(self, gradients: Sequence[Any]) -> None:
        if self._function is not None:
            self._function.update()
        pairs = [p for p in zip(gradients, self._aliases, strict=True) if p[0] is not None]
        self._optimizer.apply([g for g, _ in pairs], [v for _, v in pairs])

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
        return getattr(self._inner, "optimizers", None) or [self._inner]

    def scheduled(self) -> dict[str, float]:
        if self._function is not None:
            return self._function.scheduled()
        schedule = getattr(self._inner, "_learning_rate", None)
        if not isinstance(schedule, _Schedule):
            return {}
        last = max(int(self._inner._iterations.numpy()) - 1, 0)
        return {LEARNING_RATE: float(tf.convert_to_tensor(schedule(last)))}


class _CompatOptimizer:
    """A `tf.compat.v1.train` optimizer; its learning rate becomes a variable unless it is one."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._variables: dict[str, tf.Variable] = {}
        self._elsewhere: set[int] = set()
        self._rate: tf.Variable | None = None
        self._function: RateFunction | None = None
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

    def build(
        self, variables: Mapping[str, tf.Variable], saved_elsewhere: Iterable[tf.Variable] = ()
    ) -> None:
        if tf.distribute.has_strategy():
            raise ConfigError(
                "Optimizers of tf.compat.v1.train cannot move variables that are mirrored.",
                got=type(self._optimizer).__name__,
                fix="use the Keras optimizer of the same name, or train with "
                "SyncMultiGPUTrainerParameterServer, whose replicas share their variables",
            )
        self._elsewhere = {id(v) for v in saved_elsewhere}
        self._variables = dict(variables)
        # Eagerly, so that the slots exist before a checkpoint is restored.
        self._optimizer._create_slots(list(variables.values()))

    def scale_loss(self, cost: tf.Tensor) -> tf.Tensor:
        return cost

    def apply(self, gradients: Sequence[Any]) -> None:
        if self._function is not None:
            self._function.update()
        pairs = zip(gradients, self._variables.values(), strict=True)
        self._optimizer.apply_gradients([(g, v) for g, v in pairs if g is not None])

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
    """A learning rate as a constant.

    Raises:
        ConfigError: It is a tensor of some graph.
    """
    if isinstance(value, tf.Tensor) and not hasattr(value, "numpy"):
        raise ConfigError(
            "The optimizer's learning rate is a tensor of a graph that is not the step's.",
            got=f"{value}",
            expected="a number, a variable, or a function such as the schedules of "
            "tf.compat.v1.train, which are made eagerly",
            fix="make it in optimizer(), from tf.compat.v1.train.get_or_create_global_step()",
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
