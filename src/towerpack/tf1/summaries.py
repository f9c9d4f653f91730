"""Summaries that a tower creates with `tf.compat.v1.summary` or `tf.summary`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from towerpack.nn import summary

_REPORTERS = {
    "ScalarSummary": summary.scalar,
    "HistogramSummary": summary.histogram,
    "ImageSummary": summary.image,
}
_UNKNOWN = ("AudioSummary", "AudioSummaryV2", "TensorSummary", "TensorSummaryV2")
_EMPTY = "/write_summary/Const"


@contextmanager
def taken_from_tensorflow() -> Iterator[None]:
    """Pass the `tf.compat.v1.summary` summaries created in the block to Towerpack's monitors."""
    if tf.executing_eagerly():
        yield
        return
    graph = tf.compat.v1.get_default_graph()
    known, scope = len(graph.get_operations()), graph.get_name_scope()
    yield
    _take(graph.get_operations()[known:], f"{scope}/" if scope else "")


def _take(operations: Iterable[tf.Operation], scope: str) -> None:
    for op in operations:
        if op.type in _REPORTERS:
            name = tf.get_static_value(op.inputs[0]).item().decode().removeprefix(scope)
            more: dict[str, Any] = {}
            if op.type == "ImageSummary":
                more["max_images"] = op.get_attr("max_images")
            _REPORTERS[op.type](name, op.inputs[1], **more)


def lost_in(graph: tf.Graph) -> list[str]:
    """Return the names of TensorFlow summaries in a graph that Towerpack cannot record."""
    definition = graph.as_graph_def()
    inner = [node for function in definition.library.function for node in function.node_def]
    lost = [node for node in definition.node if node.op in _UNKNOWN]
    lost += [node for node in inner if node.op in _UNKNOWN or node.op in _REPORTERS]
    lost += [node for node in (*definition.node, *inner) if _is_empty(node)]
    return sorted({node.name.removesuffix(_EMPTY) for node in lost})


def _is_empty(node: Any) -> bool:
    # Without a writer, `tf.summary.scalar(…)` creates only the constant False.
    matches = node.op == "Const" and node.name.endswith(_EMPTY)
    return matches and not tf.make_ndarray(node.attr["value"].tensor).any()
