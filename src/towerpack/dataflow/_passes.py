"""Pass after pass, for those who measure."""

from __future__ import annotations

from collections.abc import Generator
from itertools import count

from towerpack._core.errors import DataFlowError
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._flow import DataFlow


def endless(ds: DataFlow, *, seed: int | None = None) -> Generator[Datapoint]:
    """The datapoints of epochs 0, 1, 2, ... of a flow. Closed, it closes the running pass.

    Raises:
        DataFlowError: A pass has none.
    """
    for epoch in count():
        empty = True
        with ds.iterate(seed=seed, epoch=epoch) as iterator:
            for datapoint in iterator:
                yield datapoint
                empty = False
        if empty:
            raise DataFlowError("A pass has no datapoints to measure.", pipeline=str(ds))
