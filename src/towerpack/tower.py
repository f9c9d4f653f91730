"""Tower functions, which add one replicate of a model to the graph that is being built.

A `TowerFunction` shares its variables between all its calls. Trainers call it inside their loops.
`trace` calls it once on placeholders to list its names, variables and outputs, and to extract the
part of the graph that a prediction needs.
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
    """Cost, outputs and summaries of one call of a tower function.

    Attributes:
        cost: Scalar cost, or None, which is possible only in inference.
        outputs: Outputs of layers and exposed tensors by name, and the cost as `'cost'`.
        summaries: Values for the monitors.
        regularizers: Description and value of each term of `regularize_cost`.
    """

    cost: tf.Tensor | None
    outputs: dict[str, tf.Tensor]
    summaries: list[Summary]
    regularizers: list[tuple[str, tf.Tensor]]


class TowerFunction:
    """Function of input tensors that can be called many times and shares its variables.

        tower = TowerFunction(build_graph, [tf.TensorSpec([None, 3], tf.float32, 'x')])
        cost = tower(tf.ones([2, 3])).cost

    Args:
        func: Takes one tensor for each spec, and returns the scalar cost, or None in inference.
        specs: Input specs with unique names.
        seed: Seed of initial values and dropout.
        dtype_policy: Keras dtype policy of named layers.
        frozen: Regular expressions for whole names of variables that are not trained. Matching
            moving averages freeze batch normalization (see `frozen_statistics`).

    Raises:
        SpecError: A spec has no name, or two specs have the same name.
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
        """Add one replica of the model to the current graph, or compute it eagerly.

        Args:
            *tensors: One tensor for each spec.
            is_training: Whether the call is part of training.
            index: Index of the replica.
            total: Number of replicas.
            step: Global step, int64 scalar; None outside of training.

        Raises:
            LayerError: In training, the function returned no scalar cost.
            SpecError: The tensors do not match the specs.
        """
        if len(tensors) != len(self.specs):
            raise SpecError(
                f"The tower function {_name(self._func)} needs {len(self.specs)} tensors "
                f"{self.input_names}, got {len(tensors)}."
            )
        inputs = [_fitting(t, spec) for t, spec in zip(tensors, self.specs, strict=True)]
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
                    f"The name '{COST}' must denote the returned cost, but {_name(self._func)} "
                    "exposes another tensor under this name.",
                    fix="choose another name in expose(); the cost is exposed automatically",
                )
        elif is_training:
            raise LayerError(
                f"The tower function {_name(self._func)} must return a scalar cost in training, "
                "got None.",
                fix="end the function with `return cost`",
            )
        return TowerResult(cost, context.outputs, context.summaries, context.regularizers)

    def trace(self, *, is_training: bool) -> TowerTrace:
        """Build a graph by calling the function on placeholders. This also creates all variables.

        Args:
            is_training: Whether to trace the training graph.
        """
        return TowerTrace(self, is_training=is_training)

    def _checked_cost(self, cost: Any) -> tf.Tensor:
        tensor = tf.convert_to_tensor(cost)
        if tensor.shape.rank != 0 or not tensor.dtype.is_floating:
            raise LayerError(
                f"The tower function {_name(self._func)} must return a floating-point scalar, got "
                f"{tensor.dtype.name} {tensor.shape}.",
                fix="reduce the cost, for example with tf.reduce_mean(cost)",
            )
        return tensor


class TowerTrace:
    """Graph of a tower function that was called on placeholders.

    Args:
        tower: Tower function.
        is_training: Whether to trace the training graph.

    Attributes:
        result: Symbolic tensors, which have names, shapes and dtypes.
        used: Names of the variables that the graph reads.
        moved: Names of the variables that the graph changes, such as moving averages.
        graph: The graph.
        inputs: Placeholders, one for each spec.
        handles: Resource tensor of each variable in the graph, by name of the variable.
    """

    result: TowerResult

    def __init__(self, tower: TowerFunction, *, is_training: bool) -> None:
        self._tower = tower

        def call(*tensors: tf.Tensor) -> list[tf.Tensor]:
            step = tf.constant(0, tf.int64) if is_training else None
            self.result = tower(*tensors, is_training=is_training, step=step)
            return list(self.result.outputs.values())

        # `wrap_function` can be pruned to some outputs, and adds no automatic control dependencies
        # such as updates of moving averages or checks of labels that are not fed.
        self._wrapped = tf.compat.v1.wrap_function(call, list(tower.specs))
        self.graph = graph = cast("Any", self._wrapped.graph)
        self.inputs: list[tf.Tensor] = self._wrapped.inputs[: len(tower.specs)]
        handles = {id(outer): inner for outer, inner in graph.captures}
        # The graph reads a component of a distributed variable, and components have handles.
        read = [v for v in graph._watched_variables if id(v.handle) in handles]
        tower.store.adopt(read)
        self.handles: dict[str, tf.Tensor] = {}
        for name, variable in tower.store.named_variables().items():
            for component in components_of(variable):
                if id(component.handle) in handles:
                    self.handles[name] = handles[id(component.handle)]
        self.used = list(self.handles)
        # Loops and inner functions that only read a variable count as readers.
        self._updates = {
            name: [op for op in h.consumers() if h not in get_read_write_resource_inputs(op)[0]]
            for name, h in self.handles.items()
        }
        self.moved = [name for name, updates in self._updates.items() if updates]

    def unused_regularizers(self) -> list[str]:
        """Return descriptions of regularization terms that the cost does not contain."""
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
        # A term is a scalar that depends on weights alone: a part of the cost's graph that the
        # model's inputs do not reach. If no such scalar depends on a variable, the term is unused.
        fed = _descendants(self.inputs)
        tensors = [t for op in reached - fed for t in op.outputs]
        counted = _ancestors([t for t in tensors if t.shape.rank == 0 and t.dtype.is_floating])
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
        """Return a function that computes outputs of the graph, and the names of its arguments.

        Args:
            outputs: Names of outputs.
            inputs: Names of the function's arguments; None for the inputs that the outputs need.
            instead: Variables to read in place of the model's variables with these names.
            moves: Whether the function updates the variables of `moved` that it has inputs for.

        Raises:
            LayerError: An output does not exist.
            SpecError: An input does not exist, or an output needs another input.
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
            # Without the signature, each call first fails to bind its arguments, which is slow.
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
        """Return the operations that change variables and depend only on the given inputs."""
        names = zip(self._tower.input_names, self.inputs, strict=True)
        missing = _descendants([tensor for name, tensor in names if name not in inputs])
        updates = [op for name in self.moved for op in self._updates[name] if op not in missing]
        return list(dict.fromkeys(updates))

    def _chosen_inputs(
        self, needed: list[str], inputs: Sequence[str] | None, outputs: Sequence[str]
    ) -> list[str]:
        if inputs is None:
            return needed
        for name in inputs:
            if name not in self._tower.input_names:
                raise SpecError(
                    f"The inputs must be names of the model's inputs, got '{name}'.",
                    fix=did_you_mean(name, self._tower.input_names),
                )
        missing = [name for name in needed if name not in inputs]
        if missing:
            raise SpecError(
                f"The outputs {list(outputs)} also need the inputs {missing}, got only "
                f"{list(inputs)}.",
                fix="add the missing inputs, or choose outputs that do not depend on them",
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
                f"The tower function has no output '{name}'. Outputs are those of layers "
                "('conv0/output'), and names passed to expose() or to TensorFlow operations.",
                fix=did_you_mean(name, outputs),
            ) from None


def check_specs(specs: Iterable[tf.TensorSpec]) -> list[tf.TensorSpec]:
    """Return input specs as a list, after checking that each has a unique name.

    Args:
        specs: Input specs of a model.

    Raises:
        SpecError: A name is missing or used twice, or an item is not a `tf.TensorSpec`.
    """
    checked = list(specs)
    seen: set[str] = set()
    for i, spec in enumerate(checked):
        if not isinstance(spec, tf.TensorSpec):
            raise SpecError(f"Input {i} of the model must be a named tf.TensorSpec, got {spec!r}.")
        if not spec.name or spec.name in seen:
            raise SpecError(
                f"Input {i} of the model must have a unique name, got {spec.name!r}.",
                fix="set its name, as in tf.TensorSpec(shape, dtype, name='image')",
            )
        seen.add(spec.name)
    return checked


def _fitting(value: Any, spec: tf.TensorSpec) -> tf.Tensor:
    tensor = tf.convert_to_tensor(value)
    if tensor.dtype != spec.dtype or not spec.shape.is_compatible_with(tensor.shape):
        raise SpecError(
            f"The input '{spec.name}' of the tower must be {spec.dtype.name} {spec.shape}, got "
            f"{tensor.dtype.name} {tensor.shape}."
        )
    return tensor


def _ancestors(tensors: Sequence[tf.Tensor]) -> set[tf.Operation]:
    return _reached(tensors, lambda op: [*(x.op for x in op.inputs), *op.control_inputs])


def _descendants(tensors: Sequence[tf.Tensor]) -> set[tf.Operation]:
    return _reached(tensors, lambda op: [user for x in op.outputs for user in x.consumers()])


def _reached(
    tensors: Sequence[tf.Tensor], neighbors: Callable[[tf.Operation], list[tf.Operation]]
) -> set[tf.Operation]:
    reached: set[tf.Operation] = set()
    waiting = [tensor.op for tensor in tensors]
    while waiting:
        op = waiting.pop()
        if op not in reached:
            reached.add(op)
            waiting.extend(neighbors(op))
    return reached


def _name(func: Callable[..., Any]) -> str:
    return getattr(func, "__qualname__", repr(func))
