"""Conversion of the outputs of many steps to vectors and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf


class Packing:
    """Converts the outputs of each step to vectors, which can be concatenated over steps.

    Each output becomes a vector, followed by a vector of its shape if the static shape is not fully
    defined. `templates` are symbolic tensors of one replica. If `joined`, arrays of several
    replicas are concatenated along their first axis.
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
        """Whether an output has unknown rank, so that several steps cannot be separated again."""
        return any(template.shape.rank is None for template in self._templates)

    def dtypes(self) -> list[tf.DType]:
        dtypes = []
        for template in self._templates:
            dtypes.append(template.dtype)
            if not template.shape.is_fully_defined():
                dtypes.append(tf.int32)
        return dtypes

    def pack(self, values: Sequence[tf.Tensor], applied: tf.Tensor | None) -> list[tf.Tensor]:
        """Convert a step's outputs to vectors in the graph; empty ones if `applied` is 0."""
        vectors = []
        for template, value in zip(self._templates, values, strict=True):
            vectors.append(tf.reshape(value, [-1]))
            if not template.shape.is_fully_defined():
                vectors.append(tf.shape(value))
        if applied is None:
            return vectors
        return [v[: tf.size(v) * applied] for v in vectors]

    def unpack(self, joined: Sequence[Any], steps: int) -> dict[str, Any]:
        """Return outputs by name: an array over steps, or a list of arrays if shapes may differ."""
        outputs: dict[str, Any] = {}
        vectors = iter(joined)
        for name, template in zip(self.names, self._templates, strict=True):
            values = next(vectors).numpy()
            if template.shape.is_fully_defined():
                outputs[name] = values.reshape([steps, *template.shape.as_list()])
            else:
                outputs[name] = _cut(values, next(vectors).numpy(), steps)
        return outputs


def _of_any_length(shape: tf.TensorShape) -> tf.TensorShape:
    return tf.TensorShape([None]).concatenate(shape[1:]) if shape.rank else shape


def _cut(values: np.ndarray, shapes: np.ndarray, steps: int) -> list[np.ndarray]:
    """Split the concatenated values of all steps into arrays, by the concatenated shapes."""
    parts = np.split(shapes, steps) if steps else []
    ends = np.cumsum([np.prod(shape, dtype=np.int64) for shape in parts])
    return [v.reshape(shape) for v, shape in zip(np.split(values, ends), parts, strict=False)]
