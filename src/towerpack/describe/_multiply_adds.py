from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

_CALLS = ("PartitionedCall", "While", "If", "Case")  # each also as Stateful… or Stateless…


def multiply_adds(op: tf.Operation) -> int | None:
    """Return the multiply-adds of a convolution, matrix product or einsum; 0 for other operations.

    Return None if a dimension is unknown, or if the operation is a loop or a branch. TensorFlow's
    profiler counts two FLOPs per multiply-add, but does not support all of these operations.
    """
    if op.type.endswith(_CALLS):
        return _in_call(op)
    if op.type not in _COUNTS:
        return 0
    shapes = [tensor.shape for tensor in (*op.inputs, *op.outputs)]
    if not all(shape.is_fully_defined() for shape in shapes):
        return None
    return _COUNTS[op.type](op, *(shape.as_list() for shape in shapes))


def _in_call(op: tf.Operation) -> int | None:
    values: Any = op.node_def.attr.values()
    names = [f.name for value in values for f in (value.func, *value.list.func) if f.name]
    graph: Any = op.graph
    total = 0
    for inner in (o for n in names for o in graph._get_function(n).graph.get_operations()):
        count = multiply_adds(inner)
        if count is None or (count and not op.type.endswith(_CALLS[0])):
            return None
        total += count
    return total


def _product(transposes: str) -> Callable[..., int]:
    return lambda op, a, b, y: math.prod(y) * a[-2 if op.get_attr(transposes) else -1]


def _einsum(op: tf.Operation, *shapes: list[int]) -> int | None:
    terms = op.get_attr("equation").decode().split("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=False):  # the last shape is that of the output
        if "." in term:
            return None
        sizes |= zip(term, shape, strict=True)
    return math.prod(sizes.values())


_COUNTS: dict[str, Callable[..., int | None]] = {
    "Conv2D": lambda op, x, kernel, y: math.prod(y) * math.prod(kernel[:-1]),
    "Conv3D": lambda op, x, kernel, y: math.prod(y) * math.prod(kernel[:-1]),
    "DepthwiseConv2dNative": lambda op, x, kernel, y: math.prod(y) * math.prod(kernel[:-2]),
    "Conv2DBackpropInput": lambda op, size, kernel, x, y: math.prod(x) * math.prod(kernel[:-1]),
    "Conv3DBackpropInputV2": lambda op, size, kernel, x, y: math.prod(x) * math.prod(kernel[:-1]),
    "MatMul": _product("transpose_a"),
    "BatchMatMulV2": _product("adj_x"),
    "BatchMatMulV3": _product("adj_x"),
    "Einsum": _einsum,
}
