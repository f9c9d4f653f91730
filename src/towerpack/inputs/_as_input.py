from __future__ import annotations

from typing import Any

import tensorflow as tf

from towerpack._core.errors import DataFlowError
from towerpack.dataflow import DataFlow
from towerpack.inputs._base import InputSource
from towerpack.inputs._dataset import TFDatasetInput
from towerpack.inputs._queue import QueueInput


def as_input(data: Any) -> InputSource:
    """Wrap data in an `InputSource`.

    Args:
        data: An `InputSource`, which is returned unchanged; a `DataFlow`, which is wrapped in a
            `QueueInput`; or a `tf.data.Dataset`, which is wrapped in a `TFDatasetInput`.

    Raises:
        DataFlowError: `data` has a different type.
    """
    if isinstance(data, InputSource):
        return data
    if isinstance(data, DataFlow):
        return QueueInput(data)
    if isinstance(data, tf.data.Dataset):
        return TFDatasetInput(data)
    raise DataFlowError(
        "The data must be an InputSource, a DataFlow or a tf.data.Dataset, "
        f"got {type(data).__name__}.",
        fix="pass BatchData(DataFromArrays(x, y), 32) for arrays, or wrap the data, for example in "
        "DataFromList(…) or DataFromGenerator(…)",
    )
