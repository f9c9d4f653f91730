"""Inputs without a queue: tensors computed in the graph, and constants for speed tests."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import tensorflow as tf

from towerpack._core.errors import SpecError
from towerpack._core.randomness import stream
from towerpack.inputs._base import InputSource
from towerpack.inputs._check import fitting


class TensorInput(InputSource):
    """Input source whose batches are computed by a function of TensorFlow operations.

    Args:
        get_tensors: Function that returns the tensors of one batch, in the order of the model's
            inputs. It is called once per replica while the graph is traced. A required parameter
            gets the global step (int64 scalar). If the data depends only on the step, a resumed run
            gets exactly the same batches.
        size: Number of batches in one pass, if known.
    """

    def __init__(
        self, get_tensors: Callable[..., Sequence[tf.Tensor]], size: int | None = None
    ) -> None:
        self._get_tensors = get_tensors
        self._takes_step = _takes_an_argument(get_tensors)
        self._size = size
        self._specs: Sequence[tf.TensorSpec] = ()

    def setup(self, specs: Sequence[tf.TensorSpec], *, seed: int, replicas: int = 1) -> None:
        self._specs = specs

    def get(self, step: tf.Tensor | tf.Variable) -> list[tf.Tensor]:
        outputs = self._get_tensors(step) if self._takes_step else self._get_tensors()
        listed = outputs if isinstance(outputs, list | tuple) else [outputs]
        tensors = [tf.convert_to_tensor(t) for t in listed]
        return fitting(tensors, self._specs, "TensorInput")

    def __len__(self) -> int:
        return super().__len__() if self._size is None else self._size


class DummyConstantInput(InputSource):
    """Input source that returns the same random batch in every step, for speed measurements.

    Floats are between 0 and 1, integers are 0 or 1, and strings are "0" or "1".

    Args:
        shapes: Shape of each input, including the batch dimension. None uses the shapes of the
            model's inputs, which must then have no unknown dimension.

    Raises:
        SpecError: The shapes do not match the model's inputs. Raised at setup.
    """

    def __init__(self, shapes: Sequence[Sequence[int]] | None = None) -> None:
        self._shapes = shapes
        self._batch: list[tf.Variable] = []

    def setup(self, specs: Sequence[tf.TensorSpec], *, seed: int, replicas: int = 1) -> None:
        shapes = [spec.shape for spec in specs] if self._shapes is None else self._shapes
        if len(shapes) != len(specs):
            raise SpecError(
                "DummyConstantInput needs one shape for each input of the model.",
                got=f"{len(shapes)} shapes",
                expected=f"{len(specs)}",
            )
        self._batch = []
        for i, (spec, shape) in enumerate(zip(specs, shapes, strict=True)):
            full = tf.TensorShape(shape)
            if not full.is_fully_defined() or not spec.shape.is_compatible_with(full):
                raise SpecError(
                    f"DummyConstantInput needs the full shape of the input '{spec.name}'.",
                    got=f"shape {full}",
                    expected=f"a known size in each dimension that matches {spec.shape}",
                    fix="pass all shapes, for example DummyConstantInput([[128, 28, 28], [128]])",
                )
            dims = cast("list[int]", full.as_list())
            rng = stream(seed, "DummyConstantInput", i)
            values = rng.random(dims) if spec.dtype.is_floating else rng.integers(0, 2, dims)
            if spec.dtype == tf.string:
                values = np.asarray(values).astype(str)
            value: Any = np.asarray(values).astype(spec.dtype.as_numpy_dtype)
            # A variable, because TensorFlow would compute parts of the model on constants once.
            self._batch.append(tf.Variable(value, trainable=False, name=f"dummy_{spec.name}"))

    def get(self, step: tf.Tensor | tf.Variable) -> list[tf.Tensor]:
        return [tf.identity(v) for v in self._batch]


def _takes_an_argument(func: Callable[..., Any]) -> bool:
    parameters = inspect.signature(func).parameters.values()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(p.kind in positional and p.default is p.empty for p in parameters)
