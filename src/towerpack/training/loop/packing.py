"""Outputs of many steps in one call, as vectors that TensorFlow can join and NumPy cut up again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf


class Packing:
    """How the outputs that callbacks ask for travel out of the loop over steps.

    Their shapes may differ from step to step. Each becomes a vector, followed by a vector of its
    shape where that is not fully known; both are joined over the steps.

    Args:
        names: Of the outputs.
        templates: Symbolic tensors of one replica, for dtypes and what is known of the shapes.
        joined: Whether arrays of several replicas are joined along their first axis.
    """

    def __init__(
        self, names: Sequence[str], templates: Sequence[tf.Tensor], *, joined: bool = False
    ) -> None:
        self.names = list(names)
        shapes = [_of_any_length(t.shape) if joined else t.shape for t in templates]
        self._templates = [
            tf.TensorSpec(shape, t.dtype) for shape, t in zip(shapes, templates, strict=True)
        ]

    @property
    def one_step_only(self) -> bool:
        """True where a rank is not known, so that vectors of several steps could not be cut."""
        return any(template.shape.rank is None for template in self._templates)

    def dtypes(self) -> list[tf.DType]:
        """Of the vectors of one step."""
        dtypes = []
        for template in self._templates:
            dtypes.append(template.dtype)
            if not template.shape.is_fully_defined():
                dtypes.append(tf.int32)
        return dtypes

    def pack(self, values: Sequence[tf.Tensor], applied: tf.Tensor | None) -> list[tf.Tensor]:
        """In the graph: the vectors of one step; empty ones if `applied` is False."""
        vectors = []
        for template, value in zip(self._templates, values, strict=True):
            vectors.append(tf.reshape(value, [-1]))
            if not template.shape.is_fully_defined():
                vectors.append(tf.shape(value))
        if applied is None:
            return vectors
        return [v[: tf.size(v) * tf.cast(applied, tf.int32)] for v in vectors]

    def unpack(self, joined: Sequence[Any], steps: int) -> dict[str, Any]:
        """By name, then by step: an array, or a list of arrays that may differ in shape."""
        found: dict[str, Any] = {}
        vectors = iter(joined)
        for name, template in zip(self.names, self._templates, strict=True):
            values = next(vectors).numpy()
            if template.shape.is_fully_defined():
                found[name] = values.reshape([steps, *template.shape.as_list()])
            else:
                found[name] = _cut(values, next(vectors).numpy(), steps)
        return found


def _of_any_length(shape: tf.TensorShape) -> tf.TensorShape:
    return tf.TensorShape([None]).concatenate(shape[1:]) if shape.rank else shape


def _cut(values: np.ndarray, shapes: np.ndarray, steps: int) -> list[np.ndarray]:
    """The arrays of all steps, out of their values in a row and their shapes in a row."""
    found = []
    start = 0
    for shape in np.split(shapes, steps) if steps else []:
        end = start + int(np.prod(shape, dtype=np.int64))
        found.append(values[start:end].reshape(shape))
        start = end
    return found
