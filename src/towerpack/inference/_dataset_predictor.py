"""Prediction over a flow, on several devices at once, in the order of the flow."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from towerpack._core.errors import ConfigError
from towerpack._core.in_order import in_order
from towerpack.inference.predictor import Predictor


class DatasetPredictor:
    """Predict every datapoint of a flow; results come in its order.

        for prob in DatasetPredictor(predictor, ds, devices=['GPU:0', 'GPU:1']):
            ...

    A device takes the next batch as soon as it is free. While devices compute, up to two batches
    for each are read ahead, in the thread that iterates. Each pass begins the flow anew. What a
    datapoint is, `Predictor.over` says.

    Args:
        predictor: What computes.
        dataflow: Gives batches.
        devices: Names of devices, each of which gets a copy of the weights; none for the
            predictor's own.

    Raises:
        ConfigError: There is no such device, or no flow.
    """

    def __init__(
        self, predictor: Predictor, dataflow: Iterable[Any], *, devices: Sequence[str] = ()
    ) -> None:
        if isinstance(devices, str):
            raise ConfigError(f"devices={devices!r}.", expected="a list of names")
        if not isinstance(dataflow, Iterable):
            raise ConfigError(f"{type(dataflow).__name__} cannot be iterated.", expected="a flow")
        self._dataflow = dataflow
        self._predictors = [predictor.on(device) for device in devices] or [predictor]

    def __iter__(self) -> Iterator[Any]:
        """Results in the order of the flow; an error where its datapoint stands."""
        workers = [functools.partial(self._at, predictor) for predictor in self._predictors]
        return in_order(workers, enumerate(self._dataflow))

    def _at(self, predictor: Predictor, numbered: tuple[int, Any]) -> Any:
        number, datapoint = numbered
        try:
            return predictor.at(datapoint)
        except Exception as error:
            error.add_note(f"Datapoint {number} of {self._dataflow!r}.")
            raise

    def __len__(self) -> int:
        """That of the flow, if it has one."""
        return len(self._dataflow)  # pyright: ignore[reportArgumentType] - TypeError is the answer

    def get_result(self) -> Iterator[Any]:
        """The predecessor's name of iterating."""
        return iter(self)

    def get_all_result(self) -> list[Any]:
        """All results."""
        return list(self)
