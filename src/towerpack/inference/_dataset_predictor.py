from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from towerpack._core.errors import ConfigError
from towerpack._core.in_order import in_order
from towerpack.inference.predictor import Predictor


class DatasetPredictor:
    """Iterable over the predictions for a dataflow, batch by batch, in the same order.

        for prob in DatasetPredictor(predictor, ds, devices=['GPU:0', 'GPU:1']):
            ...

    Each device computes the next batch as soon as it is idle. Up to two batches per device are
    read ahead, in the thread that iterates. Each iteration starts the dataflow again.

    Args:
        predictor: Predictor to use.
        dataflow: Dataflow of batches, in the form that `Predictor.over` expects.
        devices: Names of devices, each of which gets a copy of the weights. If empty, the
            predictor's own device is used.

    Raises:
        ConfigError: A device does not exist, or `dataflow` cannot be iterated.
    """

    def __init__(
        self, predictor: Predictor, dataflow: Iterable[Any], *, devices: Sequence[str] = ()
    ) -> None:
        if isinstance(devices, str):
            raise ConfigError(f"devices must be a list of names, got {devices!r}.")
        if not isinstance(dataflow, Iterable):
            raise ConfigError(f"dataflow must be iterable, got {type(dataflow).__name__}.")
        self._dataflow = dataflow
        self._predictors = [predictor.on(device) for device in devices] or [predictor]

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the results. If a batch fails, raise its error in place of its result."""
        workers = [functools.partial(self._predict, predictor) for predictor in self._predictors]
        return in_order(workers, enumerate(self._dataflow))

    def _predict(self, predictor: Predictor, numbered: tuple[int, Any]) -> Any:
        number, datapoint = numbered
        try:
            return predictor.predict(datapoint)
        except Exception as error:
            error.add_note(f"Datapoint {number} of {self._dataflow!r}.")
            raise

    def __len__(self) -> int:
        """Return the length of the dataflow. Raise TypeError if the dataflow has no length."""
        return len(self._dataflow)  # pyright: ignore[reportArgumentType]

    def get_result(self) -> Iterator[Any]:
        """Return an iterator over the results. Provided for compatibility with Tensorpack."""
        return iter(self)

    def get_all_result(self) -> list[Any]:
        """Return a list of all results. Provided for compatibility with Tensorpack."""
        return list(self)
