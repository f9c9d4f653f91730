"""Fingerprint of a model's graph, which shows whether a continued run changed the model."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack.tower import TowerTrace

OPERANDS = "model.operands"
"""Name of the setting that is a checksum over the operands of all operations."""

_LARGEST_CONSTANT = 16
# Keras and TensorFlow count names over the whole process.
_COUNTED = re.compile(r"(?:_\d+)+(?=/|$)")
_NAMED_TENSOR = re.compile(rb"\(\S*:\d+\)")  # in messages of assertions
# Attributes of operations that differ from start to start or have no effect.
_IGNORED = {
    "config_proto",  # in calls of functions: devices of this machine
    "container",
    "debug_name",
    "parallel_iterations",
    "seed",
    "seed2",
    "shared_name",
    "token",
}


def operations_of(trace: TowerTrace) -> dict[str, Any]:
    """Return counts of operations, constants and a checksum of operands, as settings by name."""
    read = _Reader(trace.graph.as_graph_def())
    variables = {handle.op.name: name for name, handle in trace.handles.items()}
    known: dict[str, str] = {}
    for i, (outer, inner) in enumerate(trace.graph.captures):
        known[inner.op.name] = variables.get(inner.op.name, f"captured {i}")
        for value in _values_of(outer, inner):
            read.add_constant(inner.op.name, value)
    known |= {tensor.op.name: f"input {i}" for i, tensor in enumerate(trace.inputs)}
    digests = read.nodes(read.graph.node, known)
    outputs = [
        (name, digests.get(tensor.op.name), tensor.value_index)
        for name, tensor in sorted(trace.result.outputs.items())
        if tf.is_symbolic_tensor(tensor)
    ]
    return {
        **{f"model.{kind}": count for kind, count in sorted(read.counts.items())},
        **{n: v[:1] if len(set(v)) == 1 else v for n, v in read.constants.items()},
        OPERANDS: checksum(repr((sorted(digests.values()), outputs)).encode()),
    }


def checksum(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=4).hexdigest()


class _Reader:
    """Reader of the operations of a graph and of the functions that the graph calls."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.counts: Counter[str] = Counter()
        self.constants: dict[str, list[Any]] = defaultdict(list)
        self._functions = {f.signature.name: f for f in graph.library.function}
        self._digests: dict[str, str] = {}

    def nodes(self, nodes: Iterable[Any], known: Mapping[str, str]) -> dict[str, str]:
        """Return a checksum of the kind, attributes and operands of each node."""
        digests = dict(known)
        for node in nodes:
            if node.op == "Const":
                self.add_constant(node.name, tf.make_ndarray(node.attr["value"].tensor))
            else:
                self.counts[_kind_of(node)] += 1
            operands = [operand for operand in node.input if operand[0] != "^"]
            parts = node.op, self._attributes(node), [_operand(o, digests) for o in operands]
            digests.setdefault(node.name, checksum(repr(parts).encode()))
        return digests

    def _attributes(self, node: Any) -> list[Any]:
        attributes: list[Any] = []
        for name, attr in sorted(node.attr.items()):
            which = attr.WhichOneof("value")
            called = attr.list.func if which == "list" else [attr.func] if which == "func" else ()
            if called:
                attributes += [self._function(function.name) for function in called]
            elif which != "tensor" and name not in _IGNORED and name[0] != "_":
                attributes.append((name, attr.SerializeToString(deterministic=True)))
        return attributes

    def _function(self, name: str) -> str:
        if name not in self._digests and name in self._functions:
            function = self._functions[name]
            inputs = {arg.name: f"input {i}" for i, arg in enumerate(function.signature.input_arg)}
            digests = self.nodes(function.node_def, inputs)
            results = [function.ret[arg.name] for arg in function.signature.output_arg]
            parts = sorted(digests.values()), [_operand(result, digests) for result in results]
            self._digests[name] = checksum(repr(parts).encode())
        return self._digests.get(name, "")

    def add_constant(self, name: str, value: np.ndarray) -> None:
        """Record a constant, except a layer's random seed (a single integer above 2**53)."""
        if value.dtype.kind in "iu" and value.size == 1 and abs(int(value.item())) > 2**53:
            return
        values, content = value.ravel().tolist(), value.tobytes
        if value.dtype.hasobject:
            texts = [_NAMED_TENSOR.sub(b"", bytes(text)) for text in values]
            values = [text.decode(errors="backslashreplace") for text in texts]
            content = repr(values).encode
        shown = values if value.size <= _LARGEST_CONSTANT else [checksum(content())]
        self.constants[f"model.{_COUNTED.sub('', name)}"].extend(shown)


def _operand(text: str, digests: Mapping[str, str]) -> tuple[str, str]:
    name, _, place = text.partition(":")
    return digests.get(name, ""), place


def _values_of(outer: Any, inner: tf.Tensor) -> list[np.ndarray]:
    """Return the values of a captured tensor, or the keys and values of a captured lookup table."""
    if outer.dtype not in (tf.resource, tf.variant):
        return [np.asarray(outer.numpy())] if hasattr(outer, "numpy") else []
    for reader in inner.consumers():
        if reader.type == "LookupTableFindV2":
            pairs = tf.raw_ops.LookupTableExportV2(
                table_handle=outer, Tkeys=reader.get_attr("Tin"), Tvalues=reader.get_attr("Tout")
            )
            keys, values = (tensor.numpy() for tensor in pairs)
            order = np.argsort(keys, axis=0, kind="stable")
            return [keys[order], values[order]]
    return []


def _kind_of(node: Any) -> str:
    attributes = []
    for name, attr in sorted(node.attr.items()):
        which = attr.WhichOneof("value")
        if which in ("f", "b", "i", "list", "s") and name not in _IGNORED and name[0] != "_":
            numbers = [*attr.list.i, *attr.list.f] if which == "list" else [getattr(attr, which)]
            attributes += [f"{name}={v.decode() if isinstance(v, bytes) else v}" for v in numbers]
    return f"{node.op}({', '.join(attributes)})" if attributes else f"{node.op} operations"
