"""Summary of a model: output shape, parameters and multiply-adds of each layer.

The graph of one trace is analyzed. A layer is a layer by name, or a group of variables with the
same path (`backbone/conv1/kernel` and `…/bias`), such as a Keras or tf_slim layer. It contains the
operations that read its variables or lie in its name scope.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from towerpack._core.columns import aligned
from towerpack._core.errors import ConfigError
from towerpack._display.notebook import html_table
from towerpack.describe._multiply_adds import multiply_adds
from towerpack.describe._picture import save_picture
from towerpack.model import ModelDesc, as_model
from towerpack.tower import TowerFunction, TowerTrace, check_specs

_OUTPUT = "/output"
_SHAPES = ("Shape", "Size", "Rank")  # operations that pass on sizes, not values
_CELL = re.compile(r"/(lstm|gru|simple_rnn)_cell(_\d+)?$")  # belongs to the enclosing layer
_SIGNS = {"AddV2": "+", "AddN": "+", "Mul": "×", "Sub": "-", "ConcatV2": "concat"}
_HEAD = ("layer", "output", "parameters", "multiply-adds")


@dataclass
class LayerSummary:
    """Summary of a layer, an input, or an operation that combines several layers.

    Attributes:
        name: Name of the layer, input or operation.
        kind: `'layer'`, `'input'` or `'join'`.
        output: Output shape; None if the traced graph does not compute the layer.
        parameters: Number of parameters, including moving averages.
        multiply_adds: Multiply-adds of convolutions and matrix products; None if unknown.
        sources: Names of the layers, inputs and operations that feed this one.
        sign: Symbol of an operation that combines layers, such as `+`.
    """

    name: str
    kind: str = "layer"
    output: list[int | None] | None = None
    parameters: int = 0
    multiply_adds: int | None = 0
    sources: list[str] = field(default_factory=list)
    sign: str = ""

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """Cells of a table row: name, shape, parameters and multiply-adds, as text."""
        shape = "" if self.output is None else str(self.output).replace("None", "?")
        numbers = self.parameters, self.multiply_adds
        parameters, count = ("?" if n is None else f"{n:,}" if n else "" for n in numbers)
        return self.name, shape, parameters, count

    @property
    def lines(self) -> list[str]:
        """Lines of text in a box of a diagram."""
        name, shape, parameters, count = self.cells
        if self.kind == "join":
            return [self.sign]
        numbers = ((parameters, "parameters"), (count, "multiply-adds"))
        return [name, shape, *(f"{number} {unit}" for number, unit in numbers if number)]


@dataclass(frozen=True)
class ModelSummary:
    """Summary of a model for one batch. Its `str` is a table of the layers.

    Attributes:
        parts: Layers, inputs, and operations that combine layers, in graph order.
    """

    parts: Sequence[LayerSummary]

    @property
    def layers(self) -> list[LayerSummary]:
        """Entries of `parts` that are layers."""
        return [part for part in self.parts if part.kind == "layer"]

    @property
    def total(self) -> LayerSummary:
        """Sums over all layers of parameters and of multiply-adds, as far as these are known."""
        layers = self.layers
        count = sum(layer.multiply_adds or 0 for layer in layers)
        return LayerSummary("total", "total", None, sum(x.parameters for x in layers), count)

    def _repr_html_(self) -> str:
        return html_table(_HEAD, [part.cells for part in [*self.layers, self.total]])

    def __str__(self) -> str:
        inputs = [" ".join(part.cells[:2]) for part in self.parts if part.kind == "input"]
        lines = aligned([_HEAD, *(part.cells for part in [*self.layers, self.total])], "<<>>")
        if any(layer.multiply_adds is None for layer in self.layers):
            lines.append("? is not counted: unknown dimensions, loops or branches.")
        return "\n".join([f"Inputs: {', '.join(inputs)}", *map(str.rstrip, lines)])

    def save_picture(self, path: str | Path) -> None:
        """Draw a diagram of the network. Raises `ConfigError` if the file format is not supported.

        Args:
            path: File name that ends in `.svg`, or with Graphviz `.png`, `.pdf` and others.
        """
        save_picture(self.parts, Path(path))


def model_summary(model: Any, *, is_training: bool = False) -> ModelSummary:
    """Return a summary of a model's layers, which prints as a table.

    Traces the model and creates its variables, without running it. An unknown batch size is 1.

    Args:
        model: A `ModelDesc`, a tuple of functions, or a Keras model with inputs.
        is_training: Whether to trace the training graph instead of the inference graph.

    Raises:
        ConfigError: The argument is not a model.
    """
    described = _Keras(model) if isinstance(model, keras.Model) else as_model(model)
    specs = [
        tf.TensorSpec([s.shape[0] or 1, *s.shape[1:]] if s.shape.rank else s.shape, s.dtype, s.name)
        for s in check_specs(described.inputs())
    ]
    tower = TowerFunction(described.build_graph, specs)
    trace = tower.trace(is_training=is_training)
    variables = tower.store.named_variables()
    layers = {
        name: _layer_of(name, tower.store.layers())
        for name in variables
        if not name.endswith("seed_generator_state")
    }
    reading = _Reading(trace, tower.input_names, layers)
    for name, layer in layers.items():
        reading.part(layer).parameters += variables[name].shape.num_elements() or 0
    return ModelSummary(reading.used_parts())


def is_model(value: object) -> bool:
    """Return whether a value is a `ModelDesc` or a Keras model.

    Args:
        value: Any object.
    """
    return isinstance(value, ModelDesc | keras.Model)


class _Keras(ModelDesc):
    def __init__(self, model: Any) -> None:
        if not getattr(model, "inputs", None):
            raise ConfigError(
                f"The Keras model '{model.name}' has no inputs, so it cannot be summarized.",
                fix="build the model from keras.Input, or pass a ModelDesc that calls the model",
            )
        vars(self)[""] = model  # without a name, so that variables have their Keras paths

    def inputs(self) -> Sequence[tf.TensorSpec]:
        inputs = vars(self)[""].inputs
        return [tf.TensorSpec(t.shape, t.dtype, f"input{i}") for i, t in enumerate(inputs)]

    def build_graph(self, *tensors: tf.Tensor) -> tf.Tensor:
        model = vars(self)[""]
        inputs = list(tensors)
        like = getattr(model, "input", inputs)  # a Sequential has no `input` until it is called
        single = len(inputs) == 1 and not isinstance(like, dict)
        model(inputs[0] if single else keras.tree.pack_sequence_as(like, inputs))
        return tf.zeros([])


class _Reading:
    """Analysis of the operations of a graph, in the order in which they were created."""

    def __init__(self, trace: TowerTrace, inputs: Sequence[str], layers: Mapping[str, str]) -> None:
        self._parts: dict[str, LayerSummary] = {}
        self._readers: dict[tf.Operation, list[str]] = {}  # layers whose variables are read
        self._fixed: dict[tf.Operation, list[str]] = {}  # depend only on variables and constants
        self._owners: dict[tf.Operation, str] = {}
        self._left: dict[str, tf.Tensor] = {}  # first output of a layer that other layers use
        self._feeding: dict[tf.Operation, list[str]] = {}
        operations: list[tf.Operation] = trace.graph.get_operations()
        handles = {t.op: layers[name] for name, t in trace.handles.items() if name in layers}
        self._find_readers(operations, handles)
        self._scopes = self._find_scopes(trace.result.outputs)
        fed = dict(zip([t.op for t in trace.inputs], inputs, strict=True))
        for op in operations:
            if op in fed:
                part = self.part(fed[op], "input")
                part.output = _sizes(op.outputs[0])
                self._feeding[op] = [part.name]
            elif op not in self._fixed:
                self._follow(op)
        for name, tensor in {**self._left, **self._named}.items():
            self.part(name).output = _sizes(tensor)

    def part(self, name: str, kind: str = "layer") -> LayerSummary:
        return self._parts.setdefault(name, LayerSummary(name, kind))

    def used_parts(self) -> list[LayerSummary]:
        waiting = [name for name, part in self._parts.items() if part.kind == "layer"]
        used: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name not in used:
                used.add(name)
                waiting.extend(self._parts[name].sources)
        return [part for name, part in self._parts.items() if name in used]

    def _find_readers(
        self, operations: Sequence[tf.Operation], handles: Mapping[tf.Operation, str]
    ) -> None:
        for op in operations:
            before = [tensor.op for tensor in op.inputs]
            read = [layer for b in before for layer in self._fixed.get(b, ())]
            if op in handles:
                self._fixed[op] = [handles[op]]
            elif op.type == "Const" or (
                before and "Random" not in op.type and all(b in self._fixed for b in before)
            ):
                self._fixed[op] = read
            elif read:
                self._readers[op] = read

    def _find_scopes(self, outputs: Mapping[str, tf.Tensor]) -> dict[str, str]:
        """Return the name scopes that contain exactly one layer, each with the layer's name."""
        layers = {layer for read in self._readers.values() for layer in read}
        self._named: dict[str, tf.Tensor] = {}
        scopes: dict[str, str] = {}
        seen: set[int] = set()
        for path, tensor in outputs.items():
            layer = path.removesuffix(_OUTPUT)
            if layer == path or id(tensor) in seen:
                continue  # not an output of a layer, or a layer that returns its input
            seen.add(id(tensor))
            if not any(other.startswith(f"{layer}/") for other in {*layers, *self._named}):
                self._named[layer] = tensor
                parts = tensor.op.name.split("/")
                scopes.setdefault("/".join(parts[: layer.count("/") + 1]), layer)
        for op, read in self._readers.items():
            scope = _CELL.sub("", op.name.rpartition("/")[0])
            if scope and read[0] not in scopes.values():
                scopes.setdefault(scope, read[0])
        around = {above for scope in scopes for above in _above(scope)}
        return {scope: layer for scope, layer in scopes.items() if scope not in around}

    def _owner(self, op: tf.Operation, heavy: bool) -> str | None:
        scope = next((s for s in _above(op.name) if s in self._scopes), None)
        if scope is not None:
            return self._scopes[scope]
        reads = self._readers.get(op)
        if reads and (heavy or reads[0] not in self._scopes.values()):
            return reads[0]
        return op.name if heavy else None

    def _follow(self, op: tf.Operation) -> None:
        count = multiply_adds(op)
        owner = self._owner(op, count != 0)
        incoming: dict[str, None] = {}
        for tensor in op.inputs:
            incoming |= dict.fromkeys(self._feeding.get(tensor.op, ()))
            before = self._owners.get(tensor.op)
            if before is not None and before != owner and tensor.shape.rank:
                self._left.setdefault(before, tensor)
        if owner is None and len(incoming) < 2:
            self._feeding[op] = [] if op.type in _SHAPES else [*incoming]
            return
        part = self.part(owner or op.name, "layer" if owner else "join")
        part.sources += [name for name in incoming if name not in (part.name, *part.sources)]
        self._feeding[op] = [part.name]
        part.sign = _SIGNS.get(op.type, op.type)
        if op.outputs and op.outputs[0].shape.rank:  # the counter of a loop is a scalar
            part.output = _sizes(op.outputs[0])
        if owner is not None:
            self._owners[op] = owner
            before = part.multiply_adds
            part.multiply_adds = None if count is None or before is None else before + count


def _sizes(tensor: tf.Tensor) -> list[int | None] | None:
    return None if tensor.shape.rank is None else tensor.shape.as_list()


def _layer_of(variable: str, by_name: Container[str]) -> str:
    """Return the layer by name that owns a variable. Without one, return the variable's path."""
    path = _CELL.sub("", variable.rpartition("/")[0] or variable)
    return next((above for above in _above(variable) if above in by_name), path)


def _above(name: str) -> Iterator[str]:
    """Iterate over the enclosing scopes of a name, the innermost first."""
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name
