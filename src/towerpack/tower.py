"""Tower functions: one replicate of a model, added to whatever graph is being built.

A `TowerFunction` keeps the variables of all its calls in one store. Trainers call it inside their
loops; `trace` calls it once on placeholders, to learn what it has (names, variables, outputs) and
to cut out what a prediction needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, cast

from towerpack._core.extras import require

require("tensorflow", extra="tf", needed_for="towerpack.tower")

import tensorflow as tf
from tensorflow.python.framework.auto_control_deps_utils import get_read_write_resource_inputs

from towerpack._core.errors import LayerError, SpecError
from towerpack._core.naming import MASK, did_you_mean
from towerpack._keras.adapter import get_keras_mask
from towerpack.nn import Summary as Summary
from towerpack.nn import TowerContext as TowerContext
from towerpack.nn import VariableStore, components_of, frozen_statistics, owners_of
from towerpack.nn import freeze_variables as freeze_variables
from towerpack.nn import get_current_tower_context as get_current_tower_context
from towerpack.nn import remap_variables as remap_variables
from towerpack.tf1.slim import mend_slim
from towerpack.tf1.summaries import taken_from_tensorflow

__all__ = [
    "COST", "Summary", "TowerContext", "TowerFunction", "TowerResult", "TowerTrace", "check_specs",
    "freeze_variables", "get_current_tower_context", "remap_variables"
]  # fmt: skip

COST = "cost"


@dataclass(frozen=True)
class TowerResult:
    """What one call of a tower function gave.

    Attributes:
        cost: Scalar, or None (only in inference).
        outputs: Every layer's output and everything exposed, by name; the cost as `'cost'`.
        summaries: For the monitors.
        regularizers: Terms that `regularize_cost` made, with descriptions.
    """

    cost: tf.Tensor | None
    outputs: dict[str, tf.Tensor]
    summaries: list[Summary]
    regularizers: list[tuple[str, tf.Tensor]]


class TowerFunction:
    """A function over input tensors that can be called many times and keeps its variables.

    Args:
        func: Takes one tensor for each spec and gives the scalar cost, or None in inference.
        specs: Names must be given and unique.
        seed: For initial values and dropout.
        dtype_policy: Keras dtype policy for layers by name.
        frozen: Expressions for whole names of variables that training leaves as they are: those of
            moving averages stop batch normalisation (see `frozen_statistics`).

    Raises:
        SpecError: A spec has no name, or two have the same.
    """

    def __init__(
        self,
        func: Callable[..., tf.Tensor | None],
        specs: Sequence[tf.TensorSpec],
        *,
        seed: int = 0,
        dtype_policy: str | None = None,
        frozen: Sequence[str] = (),
    ) -> None:
        self.specs = check_specs(specs)
        self.frozen = list(frozen)
        self.store = VariableStore(
            seed=seed, find_owners=lambda: owners_of(func), dtype_policy=dtype_policy
        )
        self._func = func

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs, in order."""
        return [str(spec.name) for spec in self.specs]

    def __call__(
        self,
        *tensors: tf.Tensor,
        is_training: bool = True,
        index: int = 0,
        total: int = 1,
        step: tf.Tensor | tf.Variable | None = None,
    ) -> TowerResult:
        """Add one replicate of the model to the current graph, or run it eagerly.

        Raises:
            LayerError: Training, and the function gave no scalar cost.
            SpecError: The tensors do not fit the specs.
        """
        inputs = self._checked_inputs(tensors)
        context = TowerContext(self.store, is_training, index=index, total=total, step=step)
        mend_slim()
        with context.entered(), taken_from_tensorflow(), ExitStack() as stack:
            if self.frozen and is_training:
                stack.enter_context(frozen_statistics(self.frozen))
            cost = self._func(*inputs)
        if cost is not None:
            cost = self._checked_cost(cost)
            if context.outputs.setdefault(COST, cost) is not cost:
                raise LayerError(
                    f"The tower function {_name(self._func)} exposes something as '{COST}' that is "
                    "not the cost it returns.",
                    fix="choose another name; the cost is exposed by itself",
                )
        elif is_training:
            raise LayerError(
                f"The tower function {_name(self._func)} gave no cost.",
                got="None",
                expected="a scalar tensor, since this is training",
                fix="return the cost",
            )
        return TowerResult(cost, context.outputs, context.summaries, context.regularizers)

    def trace(self, *, is_training: bool) -> TowerTrace:
        """Call the function on placeholders. Creates all variables; runs nothing."""
        return TowerTrace(self, is_training=is_training)

    def _checked_inputs(self, tensors: Sequence[Any]) -> list[tf.Tensor]:
        if len(tensors) != len(self.specs):
            raise SpecError(
                f"The tower function {_name(self._func)} was called with {len(tensors)} tensors.",
                expected=f"one for each of {self.input_names}",
            )
        return [_fitting(t, spec) for t, spec in zip(tensors, self.specs, strict=True)]

    def _checked_cost(self, cost: Any) -> tf.Tensor:
        tensor = tf.convert_to_tensor(cost)
        if tensor.shape.rank != 0 or not tensor.dtype.is_floating:
            raise LayerError(
                f"The tower function {_name(self._func)} gave a cost that is no scalar.",
                got=f"{tensor.dtype.name} {tensor.shape}",
                expected="a floating-point scalar",
                fix="reduce it, for example with tf.reduce_mean(cost)",
            )
        return tensor


class TowerTrace:
    """A tower function on placeholders.

    Attributes:
        result: Symbolic tensors of this trace: for names, shapes and dtypes.
        used: Names of the variables that this trace reads.
        moved: Names of those that it changes itself, such as moving averages.
        graph: What was built.
        inputs: Its placeholders, one for each spec.
        handles: The tensors by which that graph refers to its variables, by name.
    """

    result: TowerResult

    def __init__(self, tower: TowerFunction, *, is_training: bool) -> None:
        self._tower = tower

        def call(*tensors: tf.Tensor) -> list[tf.Tensor]:
            step = tf.constant(0, tf.int64) if is_training else None
            self.result = tower(*tensors, is_training=is_training, step=step)
            return list(self.result.outputs.values())

        # `wrap_function` can be cut to some of its outputs, and orders nothing that they do not
        # need: no update of moving averages, no check of a label that is not fed.
        self._wrapped = tf.compat.v1.wrap_function(call, list(tower.specs))
        self.graph = graph = cast("Any", self._wrapped.graph)
        self.inputs: list[tf.Tensor] = self._wrapped.inputs[: len(tower.specs)]
        handles = {id(outer): inner for outer, inner in graph.captures}
        # A distributed variable is seen as one of its components, which have handles.
        read = [v for v in graph._watched_variables if id(v.handle) in handles]
        tower.store.adopt(read)
        self.handles: dict[str, tf.Tensor] = {}
        for name, variable in tower.store.named_variables().items():
            for component in components_of(variable):
                if id(component.handle) in handles:
                    self.handles[name] = handles[id(component.handle)]
        self.used = list(self.handles)
        self.moved = [
            name
            for name, handle in self.handles.items()
            # Loops and inner functions are known to be readers, too.
            if any(handle not in get_read_write_resource_inputs(op)[0] for op in handle.consumers())
        ]

    def unused_regularizers(self) -> list[str]:
        """Regularisation on which the cost does not depend: our terms, and those of Keras."""
        if self.result.cost is None:
            return []
        reached = _ancestors([self.result.cost])
        ours = [text for text, term in self.result.regularizers if term.op not in reached]
        return ours + self._unused_keras_regularizers(reached)

    def _unused_keras_regularizers(self, reached: set[tf.Operation]) -> list[str]:
        regularized = {
            id(cast("Any", variable).value)
            for layer in self._tower.store.keras_layers()
            for variable in layer.variables
            if cast("Any", variable).regularizer is not None
        }
        known = self._tower.store.named_variables().items()
        used = [name for name, v in known if id(v) in regularized and name in self.handles]
        if not used:
            return []
        # A term is a scalar that is made of weights alone: what is left of the cost's graph without
        # the model's inputs. Where no such scalar comes from a variable, nobody added its term.
        fed = _descendants(self.inputs)
        terms = [t for op in reached - fed for t in op.outputs if _is_term(t)]
        counted = _ancestors(terms)
        return [
            f"The Keras regularizer of '{name}'"
            for name in used
            if self.handles[name].op not in counted
        ]

    def function(
        self,
        outputs: Sequence[str],
        inputs: Sequence[str] | None = None,
        instead: Mapping[str, tf.Variable] | None = None,
        *,
        moves: bool = False,
    ) -> tuple[Callable[..., list[tf.Tensor]], list[str]]:
        """The part of the tower that computes `outputs`.

        Args:
            outputs: Names of outputs.
            inputs: Names of the inputs that will be fed; None for those that are needed.
            instead: Variables that it is to read in place of the model's of these names.
            moves: Also change the variables of `moved`, as far as the inputs suffice.

        Returns:
            A function over tensors or arrays, and the names of its arguments in order.

        Raises:
            LayerError: There is no output of some name.
            SpecError: An output needs an input that will not be fed, or no input has some name.
        """
        fetches = [self._output(name) for name in outputs]
        names = self._tower.input_names
        placeholders = dict(zip(names, self.inputs, strict=True))
        reached = _ancestors(fetches)
        needed = [name for name in names if placeholders[name].op in reached]
        chosen = self._chosen_inputs(needed, inputs, outputs)
        specs = dict(zip(names, self._tower.specs, strict=True))
        pruned = self._wrapped.prune(
            [placeholders[name] for name in chosen],
            [*fetches, *(self._moving(chosen) if moves else ())],
            # Without it each call fails to bind its arguments, writes them out for an error that
            # is dropped, and goes another way.
            input_signature=(tuple(specs[name] for name in chosen), {}),
        )
        if instead:
            known = self._tower.store.named_variables()
            other = {
                id(component.handle): components_of(variable)[0].handle
                for name, variable in instead.items()
                for component in components_of(known[name])
            }
            pruned.set_external_captures([other.get(id(h), h) for h in pruned.captured_inputs])
        number = len(fetches)
        return lambda *arrays: pruned(*map(tf.convert_to_tensor, arrays))[:number], chosen

    def _moving(self, inputs: Sequence[str]) -> list[tf.Operation]:
        """Return the operations that change variables and need no other inputs than these."""
        names = zip(self._tower.input_names, self.inputs, strict=True)
        missing = _descendants([tensor for name, tensor in names if name not in inputs])
        users = [
            (h, op) for name in self.moved for h in [self.handles[name]] for op in h.consumers()
        ]
        moving = [op for h, op in users if h not in get_read_write_resource_inputs(op)[0]]
        return [op for op in dict.fromkeys(moving) if op not in missing]

    def _chosen_inputs(
        self, needed: list[str], inputs: Sequence[str] | None, outputs: Sequence[str]
    ) -> list[str]:
        if inputs is None:
            return needed
        for name in inputs:
            if name not in self._tower.input_names:
                raise SpecError(
                    f"The model has no input '{name}'.",
                    fix=did_you_mean(name, self._tower.input_names),
                )
        missing = [name for name in needed if name not in inputs]
        if missing:
            raise SpecError(
                f"The outputs {list(outputs)} cannot be computed from the inputs {list(inputs)}.",
                got=f"inputs {list(inputs)}",
                expected=f"also {missing}",
                fix="feed them too, or ask for outputs that do not depend on them",
            )
        return list(inputs)

    def _output(self, name: str) -> tf.Tensor:
        outputs = self.result.outputs
        if name.endswith(MASK):
            mask = get_keras_mask(self._output(name.removesuffix(MASK)))
            with self.graph.as_default():
                return tf.constant(True) if mask is None else tf.identity(mask)
        name = name.removesuffix(":0")
        if name in outputs:
            return outputs[name]
        try:
            return self._wrapped.graph.get_tensor_by_name(f"{name}:0")
        except (KeyError, ValueError):
            raise LayerError(
                f"The tower has no output '{name}'.",
                expected="a layer's output ('conv0/output'), or a name given to expose() or to "
                "TensorFlow: tf.reduce_mean(x, name='accuracy')",
                fix=did_you_mean(name, outputs),
            ) from None


def check_specs(specs: Iterable[tf.TensorSpec]) -> list[tf.TensorSpec]:
    """Specs as a list, each with a name of its own.

    Raises:
        SpecError: A name is missing or used twice, or something is no `tf.TensorSpec`.
    """
    checked = list(specs)
    seen: set[str] = set()
    for i, spec in enumerate(checked):
        if not isinstance(spec, tf.TensorSpec):
            raise SpecError(
                f"Input {i} of the model is {spec!r}.", expected="a tf.TensorSpec with a name"
            )
        if not spec.name or spec.name in seen:
            raise SpecError(
                f"Input {i} of the model needs a name of its own.",
                got=f"name {spec.name!r}",
                fix="tf.TensorSpec(shape, dtype, name='image')",
            )
        seen.add(spec.name)
    return checked


def _fitting(value: Any, spec: tf.TensorSpec) -> tf.Tensor:
    tensor = tf.convert_to_tensor(value)
    if tensor.dtype != spec.dtype or not spec.shape.is_compatible_with(tensor.shape):
        raise SpecError(
            f"The tower was called with a tensor that does not fit its input '{spec.name}'.",
            got=f"{tensor.dtype.name} {tensor.shape}",
            expected=f"{spec.dtype.name} {spec.shape}",
        )
    return tensor


def _ancestors(tensors: Sequence[tf.Tensor]) -> set[tf.Operation]:
    def before(op: tf.Operation) -> list[tf.Operation]:
        return [*(tensor.op for tensor in op.inputs), *op.control_inputs]

    return _reached(tensors, before)


def _descendants(tensors: Sequence[tf.Tensor]) -> set[tf.Operation]:
    def after(op: tf.Operation) -> list[tf.Operation]:
        return [user for tensor in op.outputs for user in tensor.consumers()]

    return _reached(tensors, after)


def _reached(
    tensors: Sequence[tf.Tensor], neighbours: Callable[[tf.Operation], list[tf.Operation]]
) -> set[tf.Operation]:
    reached: set[tf.Operation] = set()
    waiting = [tensor.op for tensor in tensors]
    while waiting:
        op = waiting.pop()
        if op not in reached:
            reached.add(op)
            waiting.extend(neighbours(op))
    return reached


def _is_term(tensor: tf.Tensor) -> bool:
    return tensor.shape.rank == 0 and tensor.dtype.is_floating


def _name(func: Callable[..., Any]) -> str:
    return getattr(func, "__qualname__", repr(func))
