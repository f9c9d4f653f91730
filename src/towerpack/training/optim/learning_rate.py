"""Learning rates computed by functions, such as schedules of `tf.compat.v1.train`."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops import variable_scope

from towerpack._core.errors import ConfigError
from towerpack._core.naming import unique
from towerpack.nn import components_of, find_global_step, found_as_global_step
from towerpack.nn.compat_collections import CompatVariables
from towerpack.nn.initial_values import lifted
from towerpack.training.optim.variable_param import VariableParam

LEARNING_RATE = "learning_rate"
# Names of a learning rate among an optimizer's variables: as a number, as a function's last value.
RATES = (LEARNING_RATE, f"scheduled_{LEARNING_RATE}")

_CHANGES = (
    "The model's optimizer() converts a value that changes during training to a Python number."
)
_FIX = (
    "compute the value with TensorFlow: replace `if` by tf.where(step < 1000, 0.1, 0.01), remove "
    "float() and .numpy(), and pass a Keras optimizer a function: SGD(lambda: lr / 8.0)"
)


def call_optimizer(function: Callable[[], Any], step: tf.Variable) -> Any:
    """Call a model's `optimizer()` so that numbers computed from variables follow the variables.

    In TensorFlow 1, `lr / 8.` and `tf.minimum(0.1, 1 / step)` are tensors that change with the
    variables. In eager mode they are constants. For optimizers of `tf.compat.v1.train`, the graph
    of the step therefore calls `optimizer()` again, with the variables of the first call.
    """
    variables: list[tf.Variable] = []
    again = functools.partial(_call_with, variables, function, step)
    graph: Any = None
    with _eager_reads(step) as reads:
        try:
            result = again()
        except (TypeError, ValueError) as error:
            if "functools.partial" not in str(error):
                raise
            graph = FuncGraph("optimizer")  # In a graph, schedules of TensorFlow 1 are tensors.
            with graph.as_default():
                result = again()
            if any(op.type.endswith("Summary") for op in graph.get_operations()):
                raise ConfigError(
                    "The model's optimizer() uses a tf.compat.v1.train schedule where a "
                    "number is needed, such as in tf.summary.scalar.",
                    got=str(error).partition("\n")[0],
                    fix="remove tf.summary.scalar, because 'learning_rate' is always monitored",
                ) from error
    _refuse_python_numbers_of(variables, result, lambda v: _call_with(v, function, step))
    for i, optimizer in enumerate(_unwrapped(result)[-1]):
        if isinstance(optimizer, tf.compat.v1.train.Optimizer):
            kinds = (tf.Tensor,)
            if reads or variables:  # A schedule may hold tensors; `tf.cond` may give a float.
                kinds += (functools.partial, float) if reads else (functools.partial,)
            for name, value in list(vars(optimizer).items()):
                if isinstance(value, kinds) and getattr(value, "graph", graph) is graph:
                    _follow(optimizer, name, lambda i=i: _unwrapped(again())[-1][i])
            continue
        rate = getattr(optimizer, "_learning_rate", None)
        numbers = [a for a in getattr(rate, "args", ()) if isinstance(a, tf.Tensor)]
        if reads and (numbers or not callable(rate)):
            raise _fixed(f"{numbers or rate}, while optimizer() reads the global step")
    return result


def _call_with(variables: list[tf.Variable], function: Callable[[], Any], step: tf.Variable) -> Any:
    """Call `optimizer()` with the variables in the list. Create and append the missing ones."""
    known = iter(list(variables))

    def create(next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
        variable = next(known, None)
        if variable is None:
            kwargs["initial_value"] = lifted(kwargs["initial_value"], str(kwargs.get("name")))
            with tf.init_scope():
                variable = next_creator(**kwargs)
            variables.append(variable)
        return variable

    try:
        with (
            variable_scope.with_variable_store(CompatVariables()),
            tf.variable_creator_scope(create),
            found_as_global_step(step),
        ):
            return function()
    except ValueError as error:
        if "`learning_rate` should be float" in str(error):
            raise _fixed(str(error).rpartition("Received instead: ")[2]) from error
        raise
    except (TypeError, NotImplementedError) as error:  # In the graph of the step.
        if not any(words in str(error) for words in ("symbolic", "SymbolicTensor", "numpy() is")):
            raise
        raise ConfigError(_CHANGES, got=str(error).partition(". ")[0], fix=_FIX) from error


def _refuse_python_numbers_of(
    variables: Sequence[tf.Variable], result: Any, call: Callable[[list[Any]], Any]
) -> None:
    """Raise ConfigError for numbers such as `float(lr / 8.0)`, which would not follow `lr`.

    A number does not show how it was computed. So this changes each variable, calls `optimizer()`
    again and checks that no number changes.
    """
    optimizers = itertools.chain.from_iterable(_unwrapped(result))
    keras_made = [o for o in optimizers if isinstance(o, keras.optimizers.Optimizer)]
    slots = {id(variable.value) for optimizer in keras_made for variable in optimizer.variables}
    known = [None if id(variable) in slots else variable for variable in variables]
    numbers = [v for v in known if v is not None and v.dtype.is_floating and not v.shape.rank]
    for variable in numbers:
        value = variable.numpy()
        variable.assign(2.0 * value + 1.0)
        try:
            moved = call(list(known))
        finally:
            variable.assign(value)
        if _python_numbers_in(moved) != _python_numbers_in(result):
            raise ConfigError(_CHANGES, got=f"a Python number made of {variable.name}", fix=_FIX)


def _python_numbers_in(result: Any) -> list[dict[str, float]]:
    """Return the attributes of each optimizer that are floats, and a Keras optimizer's rate."""
    numbers: list[dict[str, float]] = []
    for optimizer in _unwrapped(result)[-1]:
        attributes: dict[str, Any] = getattr(optimizer, "__dict__", {})
        values = {n: float(v) for n, v in attributes.items() if isinstance(v, (float, np.floating))}
        rate = attributes.get("_learning_rate")
        if isinstance(rate, keras.Variable):
            values[LEARNING_RATE] = float(rate)
        numbers.append(values)
    return numbers


def _follow(optimizer: Any, name: str, again: Callable[[], Any]) -> None:
    """Compute an attribute of an optimizer in each step if the attribute depends on variables."""
    compute = tf.function(lambda: getattr(again(), name), autograph=False)
    concrete, read = traced(compute)
    if read:  # A plain function: a GAN copies its optimizer.
        vars(optimizer).setdefault("_computed", {})[name] = lambda: compute()
    elif isinstance(getattr(optimizer, name), tf.Tensor):
        setattr(optimizer, name, float(concrete()))


def _unwrapped(result: Any) -> list[list[Any]]:
    """Return levels of optimizers: first the given ones, then those that they wrap, and so on."""
    levels = [list(result.values()) if isinstance(result, Mapping) else [result]]
    while any(hasattr(o, "wrapped") or hasattr(o, "inner_optimizer") for o in levels[-1]):
        levels.append([getattr(o, "wrapped", getattr(o, "inner_optimizer", o)) for o in levels[-1]])
    return levels


@contextmanager
def _eager_reads(step: Any) -> Iterator[list[bool]]:
    """Record eager reads of the step in a list, which is not empty after the first read."""
    reads: list[bool] = []
    read = step._read_variable_op

    def recorded(*args: Any, **options: Any) -> tf.Tensor:
        reads.extend([True] * tf.executing_eagerly())
        return read(*args, **options)

    step._read_variable_op = recorded
    try:
        yield reads
    finally:
        del step._read_variable_op


def _fixed(got: str) -> ConfigError:
    return ConfigError(
        "The learning rate of a Keras optimizer must be a float or a function, because a number "
        "computed from variables would not change during training.",
        got=got,
        fix="pass a function that computes it: keras.optimizers.SGD(lambda: 0.1 / (1.0 + step))",
    )


def traced(function: Callable[[], Any]) -> tuple[Callable[[], tf.Tensor], list[tf.Variable]]:
    """Trace a function without arguments. Return the graph function and the variables it reads."""
    concrete: Any = tf.function(function, autograph=False).get_concrete_function()
    return concrete, sorted(concrete.graph._watched_variables, key=lambda v: v.name)


class RateFunction:
    """Learning rate that a function computes from variables in the graph, once per step.

    The function may be a schedule of `tf.compat.v1.train`. The variable `rate` has the learning
    rate of the last step.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function, read = traced(function)
        self._source = function  # Keeps variables alive that only the traced function reads.
        self.rate = tf.Variable(
            tf.constant(0.0), trainable=False, name=f"scheduled_{LEARNING_RATE}"
        )
        step = find_global_step()
        steps = () if step is None else (step, *components_of(step))
        self._reads: dict[str, tf.Variable] = {}
        for variable in read:
            name = variable.name.split(":")[0]
            if all(variable is not known for known in steps):
                if name == "global_step":
                    raise ConfigError(
                        "The learning rate must depend on the global step of the run, got another "
                        "global step.",
                        fix="create the schedule in the model's optimizer(), in the thread that "
                        "trains",
                    )
                self._reads[unique(name, self._reads)] = variable

    def update(self) -> None:
        """Compute the learning rate of this step and assign it to `rate`, in the graph."""
        self.rate.assign(tf.cast(self._function(), tf.float32), read_value=False)

    def variables(self) -> dict[str, tf.Variable]:
        return {f"scheduled_{LEARNING_RATE}": self.rate, **self._reads}

    def hyper_params(self) -> dict[str, VariableParam]:
        return {
            name: VariableParam(name, variable)
            for name, variable in self._reads.items()
            if variable.shape.rank == 0
            and variable.dtype.is_floating
            and (name == LEARNING_RATE or not variable.trainable)
        }

    def scheduled(self) -> dict[str, float]:
        return {LEARNING_RATE: float(self.rate.numpy())}
