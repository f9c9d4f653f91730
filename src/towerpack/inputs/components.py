"""Components of datapoints: their keys in a dict and their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from towerpack._core.errors import SpecError


class ComponentSpec(tf.TensorSpec):
    """Spec of a model's input that says how datapoints contain it.

    Args:
        spec: Spec of the tensor.
        alias: Second key of the component in a datapoint that is a dict.
        by_name: Whether datapoints must be dicts, because the order of components is ambiguous.
    """

    def __init__(
        self, spec: tf.TensorSpec, *, alias: str | None = None, by_name: bool = False
    ) -> None:
        super().__init__(spec.shape, spec.dtype, spec.name)
        self.alias = alias
        self.by_name = by_name


def spec_of_rows(spec: tf.TensorSpec, batches: int) -> tf.TensorSpec:
    """Return the spec of several batches that are concatenated along their rows."""
    if batches == 1 or spec.shape.rank is None:
        return spec
    rows, *rest = spec.shape.as_list()
    shape = [None if rows is None else rows * batches, *rest]
    alias, by_name = getattr(spec, "alias", None), getattr(spec, "by_name", False)
    return ComponentSpec(tf.TensorSpec(shape, spec.dtype, spec.name), alias=alias, by_name=by_name)


def ordered_components(
    datapoint: Any, specs: Sequence[tf.TensorSpec], what: str, pipeline: str = ""
) -> Any:
    """Return the components of a dict in the order of the specs, and other datapoints unchanged.

    Raise `SpecError` if a component is missing, or if only a dict would be unambiguous. `what`
    names the source in messages.
    """
    names = [(str(spec.name), getattr(spec, "alias", None)) for spec in specs]
    wanted = [alias or name for name, alias in names]
    if not isinstance(datapoint, dict):
        if not any(getattr(spec, "by_name", False) for spec in specs):
            return datapoint
        items = ", ".join(f"{key!r}: …" for key in wanted)
        raise SpecError(
            f"{what} must name its components in a dict, because the model has a dict of inputs or "
            "outputs.",
            got=type(datapoint).__name__,
            expected=f"a dict with the keys {wanted}",
            fix=f"write DataFromArrays({{{items}}}), or return a dict from the function of MapData",
            pipeline=pipeline or None,
        )
    keys = [next((key for key in pair if key in datapoint), None) for pair in names]
    if None in keys:
        name = wanted[keys.index(None)]
        unused = [key for key in datapoint if key not in keys]
        raise SpecError(
            f"{what} must have the component {name!r}.",
            got=f"components {sorted(map(str, datapoint))}",
            expected=f"the keys {wanted}",
            fix=f"rename one of the unused components {unused} to {name!r}"
            if unused
            else f"add {name!r} to the dict",
            pipeline=pipeline or None,
        )
    return [datapoint[key] for key in keys]
