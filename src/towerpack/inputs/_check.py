from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack._core.errors import SpecError
from towerpack._core.logs import get_logger
from towerpack.inputs.components import ordered_components

_LOG = get_logger(__name__)


class SpecChecker:
    """Converter of datapoints to lists of arrays that match the model's input specs.

    Integers are converted to other integers or floats if no value changes. Floats are converted to
    other floats; a loss of precision is logged once per component.

    Args:
        specs: Specs of the model's inputs.
        pipeline: Description of the data pipeline, for error messages.
    """

    def __init__(self, specs: Sequence[tf.TensorSpec], pipeline: str) -> None:
        self._specs = specs
        self._names = [spec.name for spec in specs]
        self._dtypes = [np.dtype(spec.dtype.as_numpy_dtype) for spec in specs]
        self._floats = [spec.dtype.is_floating for spec in specs]
        self._shapes = [
            None if spec.shape.rank is None else tuple(spec.shape.as_list()) for spec in specs
        ]
        self._pipeline = pipeline
        self._warned: set[int] = set()

    def __call__(self, datapoint: Any, position: int | None) -> list[np.ndarray]:
        """Return the components as arrays, in the order of the specs.

        Args:
            datapoint: Tuple or list in the order of the specs, or dict by their names.
            position: Index of the datapoint in its flow, or None, for error messages.

        Raises:
            SpecError: A component is missing or has the wrong dtype or shape.
        """
        return self.arrays(self.components(datapoint, position), position)

    def arrays(self, components: Sequence[Any], position: int | None) -> list[np.ndarray]:
        """Return components, which are in the order of the specs, as arrays.

        Args:
            components: One value for each spec.
            position: Index of the datapoint in its flow, or None, for error messages.

        Raises:
            SpecError: A component has the wrong dtype or shape.
        """
        arrays = []
        for i, component in enumerate(components):
            array = component
            # An array of dtype object may hold anything, so its items are checked.
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

    def components(self, datapoint: Any, position: int | None) -> Sequence[Any]:
        """Return the components in the order of the specs, unchanged.

        Args:
            datapoint: Tuple or list in the order of the specs, or dict by their names.
            position: Index of the datapoint in its flow. None for an argument list, which has the
                order of the specs.

        Raises:
            SpecError: A component is missing, or the datapoint must be a dict.
        """
        if position is not None or isinstance(datapoint, dict):
            what = f"Datapoint {position}"
            datapoint = ordered_components(datapoint, self._specs, what, self._pipeline)
        if not isinstance(datapoint, list | tuple) or len(datapoint) != len(self._names):
            size = len(datapoint) if isinstance(datapoint, list | tuple) else None
            raise SpecError(
                f"Datapoint {position} must have one component for each input of the model.",
                got=f"{type(datapoint).__name__}" + (f" of {size}" if size is not None else ""),
                expected=f"{len(self._names)} components: {self._names}",
                fix="choose components with SelectComponent, or change the model's inputs()",
                pipeline=self._pipeline,
            )
        return datapoint

    def _converted(self, component: Any, i: int, position: int | None) -> np.ndarray:
        wanted = self._dtypes[i]
        # NumPy's own dtype for bytes cuts off zeros at the end, for example of encoded images.
        strings = wanted == np.dtype(object) and not isinstance(component, np.ndarray)
        try:
            array = np.asarray(component, dtype=wanted if strings else None)
        except ValueError as error:
            raise SpecError(
                f"{self._place(i, position)} cannot be converted to an array: {error}",
                got=type(component).__name__,
                fix="make all rows equally long, for example by padding",
                pipeline=self._pipeline,
            ) from error
        kind = array.dtype.kind
        if wanted == np.dtype(object):
            array = array.astype(object) if kind in "SU" else array
            if array.dtype == wanted and all(isinstance(s, str | bytes) for s in array.flat):
                return array
        elif array.dtype == wanted or np.can_cast(array.dtype, wanted, "safe"):
            return array.astype(wanted, copy=False)
        elif kind in "iu":
            with np.errstate(invalid="ignore"):
                converted = array.astype(wanted)
                same = converted.astype(array.dtype) == array
            # Compare signs too: a negative number survives the round trip through unsigned.
            if (same & ((converted < 0) == (array < 0))).all():
                return converted
            raise self._wrong("range", i, array, position)
        elif kind == "f" and self._floats[i]:
            if isinstance(component, np.ndarray) and i not in self._warned:
                self._warned.add(i)
                _LOG.warning(
                    f"Component {i} ('{self._names[i]}') has dtype {array.dtype}, so each batch of "
                    f"it is converted to {wanted}. To avoid this cost, create it with "
                    f"x.astype('{wanted}'). ({self._pipeline})"
                )
            return array.astype(wanted)
        raise self._wrong("dtype", i, array, position)

    def _place(self, i: int, position: int | None) -> str:
        name = self._names[i]
        if position is None:
            return f"Input '{name}'"
        return f"Datapoint {position}: component {i} ('{name}')"

    def _shape_fits(self, shape: tuple[int, ...], i: int) -> bool:
        wanted = self._shapes[i]
        if wanted is None:
            return True
        pairs = zip(shape, wanted, strict=False)
        return len(shape) == len(wanted) and all(w is None or w == s for s, w in pairs)

    def _wrong(self, what: str, i: int, array: np.ndarray, position: int | None) -> SpecError:
        wanted = self._shapes[i]
        expected = f"{self._dtypes[i].name} {list(wanted) if wanted is not None else 'any shape'}"
        dtype = self._dtypes[i]
        is_flow = position is not None
        if what == "range":
            what, fix = f"values that {dtype} cannot hold", "change the values"
        elif what == "dtype":
            cast = f"x.astype('{dtype}')"
            cast = f"MapDataComponent(ds, lambda x: {cast}, {i})" if is_flow else cast
            what, fix = "the wrong dtype", f"convert the array: {cast}"
        else:
            batch = "batch the flow (BatchData)" if is_flow else "write x[None]"
            what, fix = "the wrong shape", f"{batch} if the batch dimension is missing"
        is_item = not array.shape and array.dtype == object
        got = type(array.item()).__name__ if is_item else f"{array.dtype.name} {list(array.shape)}"
        return SpecError(
            f"{self._place(i, position)} has {what}.",
            got=got,
            expected=expected,
            fix=f"{fix}, or change the model's inputs()" if is_flow else fix,
            pipeline=self._pipeline,
        )


def fitting(
    tensors: Sequence[tf.Tensor], specs: Sequence[tf.TensorSpec], what: str
) -> list[tf.Tensor]:
    """Return tensors with the shapes of the specs. Unknown sizes are checked in the graph.

    Raise `SpecError` if a dtype or shape does not match. `what` names the source in messages.
    """
    if len(tensors) != len(specs):
        raise SpecError(
            f"{what} must provide one tensor for each input of the model.",
            got=f"{len(tensors)} tensors",
            expected=f"{[spec.name for spec in specs]}",
        )
    for spec, tensor in zip(specs, tensors, strict=True):
        if tensor.dtype != spec.dtype or not spec.shape.is_compatible_with(tensor.shape):
            raise SpecError(
                f"{what} must provide a tensor that matches the input '{spec.name}'.",
                got=f"{tensor.dtype.name} {tensor.shape}",
                expected=f"{spec.dtype.name} {spec.shape}",
            )
    return [
        t if spec.shape.rank is None or t.shape == spec.shape else tf.ensure_shape(t, spec.shape)
        for t, spec in zip(tensors, specs, strict=True)
    ]
