"""Calls of a model's `optimizer()`, whose numbers may be computed from variables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops import variable_scope

from towerpack._core.errors import ConfigError
from towerpack.nn import found_as_global_step
from towerpack.nn._initial_values import lifted
from towerpack.training._rate import traced
from towerpack.training.optim._wrapping import ProxyOptimizer


def call_optimizer(function: Callable[[], Any], step: tf.Variable) -> Any:
    """Call a model's `optimizer()`.

    In TensorFlow 1 rates such as `lr / 8.` and `tf.minimum(0.1, 1 / step)` follow their variables.
    Eagerly they are plain numbers. For an optimizer of `tf.compat.v1.train`, the graph of the step
    computes them by calling `optimizer()` again, with the variables of the first call.

    Args:
        function: The method `optimizer`.
        step: The global step.

    Returns:
        What the method returns: an optimizer, or a dict of optimizers.

    Raises:
        ConfigError: A Keras optimizer got such a number, or a summary got a schedule.
    """
    variables: list[tf.Variable] = []

    def again() -> Any:
        fresh: Any = variable_scope._VariableStore()
        with (
            variable_scope.with_variable_store(fresh),
            tf.variable_creator_scope(_in_order(variables)),
            found_as_global_step(step),
            _keras_refusal_explained(),
        ):
            return function()

    with _eager_reads(step) as reads:
        given = _first(again)
    optimizers = _innermost(given)
    compat = _compat(optimizers)
    if not compat:
        if reads and not all(callable(getattr(o, "_learning_rate", None)) for o in optimizers):
            raise ConfigError(
                "The model's optimizer() computes a number from the global step, and this number "
                "would never change.",
                fix="compute it in a function: keras.optimizers.SGD(lambda: 0.1 / (1.0 + step))",
            )
    elif (
        reads
        or variables
        or any(isinstance(v, tf.Tensor) for o in compat for v in vars(o).values())
    ):
        _follow_variables(again, compat)
    return given


def _follow_variables(again: Callable[[], Any], optimizers: list[Any]) -> None:
    """Note on each optimizer of `tf.compat.v1.train` which attributes the step has to compute."""
    graph: Any = FuncGraph("optimizer")
    try:
        with graph.as_default():
            symbolic = _compat(_innermost(again()))
    except Exception as error:
        error.add_note("With tf.compat.v1.train, optimizer() is also called to build a graph.")
        raise
    for i, optimizer in enumerate(symbolic):
        for attribute, value in vars(optimizer).items():
            if isinstance(value, tf.Tensor) and getattr(value, "graph", None) in (None, graph):
                compute = _attribute_of(again, i, attribute)
                concrete, read = traced(compute)
                if read:
                    vars(optimizers[i]).setdefault("computed", {})[attribute] = compute
                else:
                    setattr(optimizers[i], attribute, float(concrete()))


def _first(function: Callable[[], Any]) -> Any:
    """Call the function eagerly, or in a graph if it computes with a schedule of TensorFlow 1."""
    try:
        return function()
    except (TypeError, ValueError) as error:
        if "functools.partial" not in str(error):
            raise
        cause = error
    graph: Any = FuncGraph("optimizer")
    with graph.as_default():
        given = function()
    if any(op.type.endswith("Summary") for op in graph.get_operations()):
        raise ConfigError(
            "The model's optimizer() uses a schedule of tf.compat.v1.train as a number.",
            got=str(cause).partition("\n")[0],
            fix="remove tf.summary.scalar from optimizer(): 'learning_rate' is monitored by itself",
        ) from cause
    return given


def _in_order(variables: list[tf.Variable]) -> Callable[..., tf.Variable]:
    """Create variables in the first call, and hand out the same variables in each later call."""
    known = iter(list(variables))

    def create(next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
        variable = next(known, None)
        if variable is None:
            kwargs["initial_value"] = lifted(kwargs["initial_value"], str(kwargs.get("name")))
            with tf.init_scope():
                variable = next_creator(**kwargs)
            variables.append(variable)
        return variable

    return create


def _attribute_of(again: Callable[[], Any], i: int, attribute: str) -> Callable[[], tf.Tensor]:
    """A function that computes an attribute of the i-th optimizer of `tf.compat.v1.train`."""
    compute = tf.function(
        lambda: getattr(_compat(_innermost(again()))[i], attribute), autograph=False
    )
    return lambda: compute()  # A GAN copies its optimizer: functions are copied as they are.


def _innermost(given: Any) -> list[Any]:
    """The optimizers in their wrappers."""
    found = []
    for optimizer in given.values() if isinstance(given, Mapping) else [given]:
        while isinstance(optimizer, ProxyOptimizer):
            optimizer = optimizer.wrapped
        found.append(getattr(optimizer, "inner_optimizer", optimizer))
    return found


def _compat(optimizers: list[Any]) -> list[Any]:
    return [o for o in optimizers if isinstance(o, tf.compat.v1.train.Optimizer)]


@contextmanager
def _eager_reads(variable: tf.Variable) -> Iterator[list[bool]]:
    """Record eager reads of a variable. A number from an eager `tf.cond` shows no other trace."""
    reads: list[bool] = []
    read: Any = cast("Any", variable)._read_variable_op

    def recorded(*args: Any, **kwargs: Any) -> tf.Tensor:
        reads.extend([True] * tf.executing_eagerly())
        return read(*args, **kwargs)

    cast("Any", variable)._read_variable_op = recorded
    try:
        yield reads
    finally:
        del cast("Any", variable)._read_variable_op


@contextmanager
def _keras_refusal_explained() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        if "`learning_rate` should be float" not in str(error):
            raise
        raise ConfigError(
            "A Keras optimizer takes a float or a function as its learning rate, and it got a "
            "tensor or an integer.",
            got=str(error).rpartition("Received instead: ")[2],
            fix="compute it in a function: keras.optimizers.SGD(lambda: lr / 8.0)",
        ) from error
