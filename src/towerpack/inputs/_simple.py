"""Inputs that need no queue: tensors made in the graph, and constants for speed tests."""

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
    """Inputs that TensorFlow computes itself.

    Args:
        get_tensors: Gives the tensors of one batch, in the order of the specs; called while the
            graph is traced, once for each replica. If it takes an argument, that is the global
            step (int64 scalar): data that are a function of it alone resume exactly.
        size: Batches in one pass, if that means anything.
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
        """Call the function. Raise `SpecError` if its tensors do not fit the specs."""
        given = self._get_tensors(step) if self._takes_step else self._get_tensors()
        listed = given if isinstance(given, list | tuple) else [given]
        tensors = [tf.convert_to_tensor(t) for t in listed]
        return fitting(tensors, self._specs, "TensorInput")

    def __len__(self) -> int:
        return super().__len__() if self._size is None else self._size


class DummyConstantInput(InputSource):
    """The same random batch in every step: shows how fast a model is without any data.

    Args:
        shapes: Full shape of each input, batch dimension included; None takes the specs' shapes,
            which must then be fully known.
    """

    def __init__(self, shapes: Sequence[Sequence[int]] | None = None) -> None:
        self._shapes = shapes
        self._batch: list[tf.Variable] = []

    def setup(self, specs: Sequence[tf.TensorSpec], *, seed: int, replicas: int = 1) -> None:
        """Make the batch: floats from 0 to 1, integers 0 or 1, strings "0" or "1"."""
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
                    f"DummyConstantInput cannot make the input '{spec.name}'.",
                    got=f"shape {full}",
                    expected=f"a full shape that fits {spec.shape}",
                    fix="DummyConstantInput([[128, 28, 28], [128]])",
                )
            dims = cast("list[int]", full.as_list())
            rng = stream(seed, "DummyConstantInput", i)
            values = rng.random(dims) if spec.dtype.is_floating else rng.integers(0, 2, dims)
            if spec.dtype == tf.string:
                values = np.asarray(values).astype(str)
            value: Any = np.asarray(values).astype(spec.dtype.as_numpy_dtype)
            # A variable, since the optimiser would fold a constant's share of the model away.
            self._batch.append(tf.Variable(value, trainable=False, name=f"dummy_{spec.name}"))

    def get(self, step: tf.Tensor | tf.Variable) -> list[tf.Tensor]:
        return [tf.identity(v) for v in self._batch]


def _takes_an_argument(func: Callable[..., Any]) -> bool:
    parameters = inspect.signature(func).parameters.values()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(p.kind in positional and p.default is p.empty for p in parameters)
