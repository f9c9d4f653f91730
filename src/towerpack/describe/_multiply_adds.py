"""What an operation of TensorFlow's computes, in multiply-adds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

_CALLS = ("While", "If", "Case", "PartitionedCall")  # each also as Stateful… or Stateless…


def multiply_adds(op: tf.Operation) -> int | None:
    """Multiply-adds of a convolution, matrix product or einsum; 0 for any other operation.

    Half of the FLOPs that TensorFlow's profiler tells, which does not know all of these.

    None if they cannot be told: a shape is open, or they are in a loop or another function that the
    operation calls.
    """
    if op.type not in _COUNTS:
        return None if _calls_heavy(op) else 0
    shapes = [tensor.shape for tensor in (*op.inputs, *op.outputs)]
    if not all(shape.is_fully_defined() for shape in shapes):
        return None
    return _COUNTS[op.type](op, *(shape.as_list() for shape in shapes))


def _convolution(op: tf.Operation, x: list[int], kernel: list[int], y: list[int]) -> int:
    return math.prod(y) * math.prod(kernel[:-1])


def _depthwise(op: tf.Operation, x: list[int], kernel: list[int], y: list[int]) -> int:
    return math.prod(y) * math.prod(kernel[:-2])


def _transposed(
    op: tf.Operation, shape: list[int], kernel: list[int], x: list[int], y: list[int]
) -> int:
    return math.prod(x) * math.prod(kernel[:-1])


def _product(transposes: str) -> Callable[..., int]:
    def count(op: tf.Operation, a: list[int], b: list[int], y: list[int]) -> int:
        return math.prod(y) * a[-2 if op.get_attr(transposes) else -1]

    return count


def _einsum(op: tf.Operation, *shapes: list[int]) -> int | None:
    terms = op.get_attr("equation").decode().split("->")[0].split(",")
    if any("." in term for term in terms):
        return None
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=False):  # the output's comes last
        sizes |= zip(term, shape, strict=True)
    return math.prod(sizes.values())


_COUNTS: dict[str, Callable[..., int | None]] = {
    "Conv2D": _convolution,
    "Conv3D": _convolution,
    "DepthwiseConv2dNative": _depthwise,
    "Conv2DBackpropInput": _transposed,
    "Conv3DBackpropInputV2": _transposed,
    "MatMul": _product("transpose_a"),
    "BatchMatMulV2": _product("adj_x"),
    "BatchMatMulV3": _product("adj_x"),
    "Einsum": _einsum,
}


def _calls_heavy(op: tf.Operation) -> bool:
    if not op.type.endswith(_CALLS):
        return False
    library = op.graph.as_graph_def().library.function
    bodies = {function.signature.name: function.node_def for function in library}
    waiting, seen = list(_called(op.node_def)), set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for node in bodies.get(name, ()):
            if node.op in _COUNTS:
                return True
            waiting.extend(_called(node))
    return False


def _called(node: Any) -> Iterator[str]:
    for value in node.attr.values():
        yield from (f.name for f in (value.func, *value.list.func) if f.name)
