"""Datapoints against the model's input specs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack._core.errors import SpecError
from towerpack._core.logs import get_logger
from towerpack._core.naming import did_you_mean

_LOG = get_logger(__name__)


class SpecChecker:
    """Turn datapoints into lists of arrays that fit the specs.

    Integers become other integers or floats where every value stays what it is, and floats other
    floats; where these have fewer digits, that is logged once.

    Args:
        specs: The model's inputs.
        pipeline: Where the datapoints come from, for messages.
    """

    def __init__(self, specs: Sequence[tf.TensorSpec], pipeline: str) -> None:
        self._names = [spec.name for spec in specs]
        self._dtypes = [np.dtype(spec.dtype.as_numpy_dtype) for spec in specs]
        self._floats = [spec.dtype.is_floating for spec in specs]
        self._shapes = [
            None if spec.shape.rank is None else tuple(spec.shape.as_list()) for spec in specs
        ]
        self._pipeline = pipeline
        self._told: set[int] = set()

    def __call__(self, datapoint: Any, position: int | None) -> list[np.ndarray]:
        """The components as arrays, in the order of the specs.

        Args:
            datapoint: Tuple or list in the order of the specs, or dict by their names.
            position: Number of the datapoint, for messages; None where it is no flow's.

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

    def _components(self, datapoint: Any, position: int | None) -> Sequence[Any]:
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

    def _converted(self, component: Any, i: int, position: int | None) -> np.ndarray:
        """An array of the wanted dtype, where that loses nothing."""
        wanted = self._dtypes[i]
        # NumPy's own type for bytes would cut off zeros at the end, of an encoded image say.
        strings = wanted == np.dtype(object) and not isinstance(component, np.ndarray)
        try:
            array = np.asarray(component, dtype=wanted if strings else None)
        except ValueError as error:
            raise SpecError(
                f"{self._place(i, position)} is no array: {error}",
                got=f"{type(component).__name__}",
                fix="give all its rows the same length, for example by padding",
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
            # Signs, since what an unsigned integer cannot hold comes back as it was.
            if (same & ((converted < 0) == (array < 0))).all():
                return converted
            raise self._wrong("range", i, array, position)
        elif kind == "f" and self._floats[i]:
            if isinstance(component, np.ndarray):
                self._tell(array.dtype, i)
            return array.astype(wanted)
        raise self._wrong("dtype", i, array, position)

    def _tell(self, dtype: np.dtype, i: int) -> None:
        if i not in self._told:
            self._told.add(i)
            _LOG.warning(
                "Component %d ('%s') comes as %s, and each batch of it is converted to %s. "
                "To spare that, convert it where it is made, or once: x.astype('%s'). (%s)",
                i,
                self._names[i],
                dtype,
                self._dtypes[i],
                self._dtypes[i],
                self._pipeline,
            )

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
        problem, fix_input, fix_flow = {
            "range": (f"values that {dtype} cannot hold", "change the values", "change the values"),
            "dtype": (
                "the wrong dtype",
                f"convert it: x.astype('{dtype}')",
                f"convert it: MapDataComponent(ds, lambda x: x.astype('{dtype}'), {i})",
            ),
            "shape": (
                "the wrong shape",
                "add the dimension of batches if that is missing: x[None]",
                "batch the flow (BatchData) if the batch dimension is missing; otherwise reshape",
            ),
        }[what]
        fix = fix_input if position is None else f"{fix_flow}, or change the model's inputs()"
        return SpecError(
            f"{self._place(i, position)} has {problem}.",
            got=f"{array.dtype.name} {list(array.shape)}"
            if array.shape or array.dtype != object
            else type(array.item()).__name__,
            expected=expected,
            fix=fix,
            pipeline=self._pipeline,
        )


def fitting(
    tensors: Sequence[tf.Tensor], specs: Sequence[tf.TensorSpec], what: str
) -> list[tf.Tensor]:
    """Tensors that are made inside TensorFlow, with the shapes of the specs.

    Sizes that are open until the graph runs are checked there.

    Args:
        tensors: In the order of the specs.
        specs: The model's inputs.
        what: Where the tensors come from, for messages.

    Raises:
        SpecError: They do not fit.
    """
    if len(tensors) != len(specs):
        raise SpecError(
            f"{what} does not give one tensor for each input of the model.",
            got=f"{len(tensors)} tensors",
            expected=f"{[spec.name for spec in specs]}",
        )
    for spec, tensor in zip(specs, tensors, strict=True):
        if tensor.dtype != spec.dtype or not spec.shape.is_compatible_with(tensor.shape):
            raise SpecError(
                f"{what} gives a tensor that does not fit the input '{spec.name}'.",
                got=f"{tensor.dtype.name} {tensor.shape}",
                expected=f"{spec.dtype.name} {spec.shape}",
            )
    return [
        t if spec.shape.rank is None or t.shape == spec.shape else tf.ensure_shape(t, spec.shape)
        for t, spec in zip(tensors, specs, strict=True)
    ]
