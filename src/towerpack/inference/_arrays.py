"""Values that a user gives, as arrays of the dtype that is wanted."""

from __future__ import annotations

from typing import Any

import numpy as np


def without_loss(value: Any, wanted: np.dtype[Any]) -> np.ndarray:
    """Convert lists, numbers and arrays where that changes no value; floats may be rounded.

    What cannot be converted so keeps its own dtype.

    Raises:
        ValueError: The value is ragged.
    """
    array = np.asarray(value)
    if array.dtype == wanted or array.dtype.kind not in "biuf":
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        converted = array.astype(wanted)
    # bfloat16 is of kind V for NumPy.
    same = wanted.kind in "fV" or np.array_equal(converted, array)
    return converted if same else array
