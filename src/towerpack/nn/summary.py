"""Numbers and pictures from inside a tower, for the monitors.

They are collected in the first training tower only. Scalars are taken at every step and cost next
to nothing; monitors get the last one of each epoch, and moving averages over all steps. Histograms
and images are computed for the last step of each epoch alone.

`tf.compat.v1.summary.scalar`, `histogram` and `image` in a tower are taken for those of the same
name here. Other summaries of TensorFlow go nowhere without a writer of one's own: a trainer refuses
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from towerpack._core.errors import LayerError
from towerpack.nn._context import Summary, get_current_tower_context
from towerpack.nn._scope import full_name


def scalar(name: str, value: tf.Tensor) -> None:
    """Report a scalar: its value in the last step of each epoch."""
    _add("scalar", name, value, rank=0)


def moving_average(name: str, value: tf.Tensor, *, decay: float = 0.95) -> None:
    """Report the moving average of a scalar over the steps, corrected for its start at zero.

    Args:
        name: Put under the current scope.
        value: Scalar.
        decay: Share of the old average that is kept in each step.
    """
    if not 0 <= decay < 1:
        raise LayerError(f"moving_average('{name}'): decay {decay} is not in [0, 1).")
    _add("moving_average", name, value, rank=0, decay=decay)


def histogram(name: str, value: tf.Tensor) -> None:
    """Report the distribution of a tensor's values."""
    _add("histogram", name, value)


def image(name: str, value: tf.Tensor, *, max_images: int = 4) -> None:
    """Report pictures: [batch, height, width, 1, 3 or 4], uint8, or float from 0 to 1.

    A float picture with values beyond 1 is divided by its largest. In one with negative values, 0
    becomes a mid-grey (127), and its largest or smallest value white or black.
    """
    tensor = tf.convert_to_tensor(value)
    if not (tensor.dtype.is_floating or tensor.dtype == tf.uint8):
        raise LayerError(
            f"summary.image('{name}') got no picture.",
            got=tensor.dtype.name,
            expected="uint8, or floats",
            fix="cast it: tf.cast(x, tf.float32)",
        )
    if tensor.dtype.is_floating:
        tensor = tf.cast(tensor, tf.float32)
    _add("image", name, tensor[:max_images], rank=4)


@contextmanager
def from_tensorflow() -> Iterator[None]:
    """Report, at its end, what a tower has reported by `tf.compat.v1.summary` inside."""
    if tf.executing_eagerly():
        yield
        return
    graph = tf.compat.v1.get_default_graph()
    known, scope = len(graph.get_operations()), graph.get_name_scope()
    yield
    _take(graph.get_operations()[known:], f"{scope}/" if scope else "")


def _take(operations: Iterable[tf.Operation], scope: str) -> None:
    for op in operations:
        if op.type in _TAKEN:
            name = tf.get_static_value(op.inputs[0]).item().decode().removeprefix(scope)
            more: dict[str, Any] = {}
            if op.type == "ImageSummary":
                more["max_images"] = op.get_attr("max_images")
            _TAKEN[op.type](name, op.inputs[1], **more)


def lost_in(graph: tf.Graph) -> list[str]:
    """Names of TensorFlow's summaries in a tower's graph that nobody would ever receive."""
    definition = graph.as_graph_def()
    inner = [node for function in definition.library.function for node in function.node_def]
    lost = [node for node in definition.node if node.op in _UNKNOWN]
    lost += [node for node in inner if node.op in _UNKNOWN or node.op in _TAKEN]
    lost += [node for node in (*definition.node, *inner) if _is_empty(node)]
    return sorted({node.name.removesuffix(_EMPTY) for node in lost})


def _is_empty(node: Any) -> bool:
    # All that `tf.summary.scalar(…)` leaves where there is no writer is the constant False.
    found = node.op == "Const" and node.name.endswith(_EMPTY)
    return found and not tf.make_ndarray(node.attr["value"].tensor).any()


def _add(
    kind: str, name: str, value: tf.Tensor, rank: int | None = None, decay: float = 0.0
) -> None:
    context = get_current_tower_context()
    if not context.is_main_training_tower:
        return
    path = full_name(name)
    tensor = context.own(f"summary.{kind}('{path}')", value)
    if rank is not None and tensor.shape.rank != rank:
        raise LayerError(
            f"summary.{kind}('{path}') got a value of the wrong rank.",
            got=f"shape {tensor.shape}",
            expected=f"rank {rank}",
        )
    if any(known.name == path for known in context.summaries):
        raise LayerError(f"A summary '{path}' exists already in this tower.")
    context.summaries.append(Summary(kind, path, tensor, decay))


_TAKEN = {"ScalarSummary": scalar, "HistogramSummary": histogram, "ImageSummary": image}
_UNKNOWN = ("AudioSummary", "AudioSummaryV2", "TensorSummary", "TensorSummaryV2")
_EMPTY = "/write_summary/Const"
