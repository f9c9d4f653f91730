"""What a trainer is given as its data."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from towerpack._core.errors import DataFlowError
from towerpack.dataflow import DataFlow
from towerpack.inputs._base import InputSource
from towerpack.inputs._dataset import TFDatasetInput
from towerpack.inputs._queue import QueueInput


def as_input(data: Any) -> InputSource:
    """An `InputSource` as it is; a flow behind a `QueueInput`, a dataset in a `TFDatasetInput`.

    Raises:
        DataFlowError: It is none of them.
    """
    if isinstance(data, InputSource):
        return data
    if isinstance(data, DataFlow):
        return QueueInput(data)
    if isinstance(data, tf.data.Dataset):
        return TFDatasetInput(data)
    raise DataFlowError(
        f"{type(data).__name__} is neither a DataFlow nor an InputSource.",
        fix="wrap it: DataFromList(…), DataFromGenerator(…), or QueueInput(flow)",
    )
