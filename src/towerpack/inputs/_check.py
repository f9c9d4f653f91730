"""Datapoints against the model's input specs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack._core.errors import SpecError
from towerpack._core.naming import did_you_mean


class SpecChecker:
    """Turns datapoints into lists of arrays that fit the specs.

    Args:
        specs: The model's inputs.
        pipeline: Where the datapoints come from, for messages.
    """

    def __init__(self, specs: Sequence[tf.TensorSpec], pipeline: str) -> None:
        self._names = [spec.name for spec in specs]
        self._dtypes = [np.dtype(spec.dtype.as_numpy_dtype) for spec in specs]
        self._shapes = [
            None if spec.shape.rank is None else tuple(spec.shape.as_list()) for spec in specs
        ]
        self._pipeline = pipeline

    def __call__(self, datapoint: Any, position: int) -> list[np.ndarray]:
        """The components as arrays, in the order of the specs.

        Args:
            datapoint: Tuple or list in the order of the specs, or dict by their names.
            position: Number of the datapoint, for messages.

        Raises:
            SpecError: Wrong number, name, dtype or shape.
        """
        components = self._components(datapoint, position)
        arrays = []
        for i, component in enumerate(components):
            array = component
            # Objects are always looked at: they might be anything.
            if (
                not isinstance(component, np.ndarray)
                or component.dtype != self._dtypes[i]
                or component.dtype == object
            ):
                array = self._converted(component, i, position)
            if array.shape != self._shapes[i] and not self._shape_fits(array.shape, i):
                raise self._wrong("shape", i, array, position)
            arrays.append(array)
        return arrays

    def _components(self, datapoint: Any, position: int) -> Sequence[Any]:
        if isinstance(datapoint, dict):
            missing = [name for name in self._names if name not in datapoint]
            if missing:
                raise SpecError(
                    f"Datapoint {position} has no component {missing[0]!r}.",
                    got=f"components {sorted(map(str, datapoint))}",
                    expected=f"the model's inputs {self._names}",
                    fix=did_you_mean(str(missing[0]), map(str, datapoint)),
                    pipeline=self._pipeline,
                )
            return [datapoint[name] for name in self._names]
        if not isinstance(datapoint, list | tuple) or len(datapoint) != len(self._names):
            size = len(datapoint) if isinstance(datapoint, list | tuple) else None
            raise SpecError(
                f"Datapoint {position} does not have one component for each input of the model.",
                got=f"{type(datapoint).__name__}" + (f" of {size}" if size is not None else ""),
                expected=f"{len(self._names)} components: {self._names}",
                fix="choose components with SelectComponent, or change the model's inputs()",
                pipeline=self._pipeline,
            )
        return datapoint

    def _converted(self, component: Any, i: int, position: int) -> np.ndarray:
        """An array of the wanted dtype, where that loses nothing."""
        wanted = self._dtypes[i]
        # NumPy's own type for bytes would cut off zeros at the end, of an encoded image say.
        strings = wanted == np.dtype(object) and not isinstance(component, np.ndarray)
        try:
            array = np.asarray(component, dtype=wanted if strings else None)
        except ValueError as error:
            raise SpecError(
                f"Datapoint {position}: component {i} ('{self._names[i]}') is no array: {error}",
                got=f"{type(component).__name__}",
                fix="give all its rows the same length, for example by padding",
                pipeline=self._pipeline,
            ) from error
        if wanted == np.dtype(object):
            array = array.astype(object) if array.dtype.kind in "SU" else array
            if array.dtype == wanted and all(isinstance(s, str | bytes) for s in array.flat):
                return array
        elif array.dtype == wanted:
            return array
        elif array.dtype.newbyteorder("=") == wanted:
            return array.astype(wanted)
        raise self._wrong("dtype", i, array, position)

    def _shape_fits(self, shape: tuple[int, ...], i: int) -> bool:
        wanted = self._shapes[i]
        if wanted is None:
            return True
        pairs = zip(shape, wanted, strict=False)
        return len(shape) == len(wanted) and all(w is None or w == s for s, w in pairs)

    def _wrong(self, what: str, i: int, array: np.ndarray, position: int) -> SpecError:
        wanted = self._shapes[i]
        expected = f"{self._dtypes[i].name} {list(wanted) if wanted is not None else 'any shape'}"
        fixes = {
            "dtype": f"convert it: MapDataComponent(ds, lambda x: x.astype('{self._dtypes[i]}'), "
            f"{i}), or change the dtype in the model's inputs()",
            "shape": "batch the flow (BatchData) if the batch dimension is missing; otherwise "
            "reshape the component or change the shape in the model's inputs()",
        }
        return SpecError(
            f"Datapoint {position}: component {i} ('{self._names[i]}') has the wrong {what}.",
            got=f"{array.dtype.name} {list(array.shape)}",
            expected=expected,
            fix=fixes[what],
            pipeline=self._pipeline,
        )
