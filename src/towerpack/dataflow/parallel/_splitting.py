"""Whether batches are made in parts, by several workers, and in how many."""

from __future__ import annotations

from towerpack.dataflow._datapoints import Datapoint, values_of
from towerpack.dataflow.parallel._layout import Layout, layout_of

# A part costs some 200 µs besides its work: short batches are made faster one by one.
_LONG_S = 8e-3
_PART_S = 25e-3
_PARTS_A_WORKER = 4
_MOST_MISFITS = 3


class Splitting:
    """What was learned about the batches of a job.

    Args:
        workers: Who would make parts of them.

    Attributes:
        layout: How they are laid into a slot; `None` if they are not made in parts.
        parts: How many to make of one.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._misfits = 0 if workers > 1 else _MOST_MISFITS
        self.layout: Layout | None = None
        self.parts = workers

    def learn(self, batch: Datapoint, seconds: float) -> None:
        """See a batch that is finished.

        Args:
            batch: It.
            seconds: What it took, all parts together.
        """
        if self._misfits >= _MOST_MISFITS:
            return
        if seconds < _LONG_S:
            self.layout = None
            return
        layout = self.layout or layout_of(batch)
        if layout is not None and len(values_of(batch)[0]) > layout.rows:  # that was the last one
            layout = layout_of(batch)
        self.layout = layout
        wanted = round(seconds / _PART_S)
        self.parts = min(max(wanted, self._workers), _PARTS_A_WORKER * self._workers)

    def failed(self) -> None:
        """A batch was not of the layout, or raised."""
        self.layout = None
        self._misfits += 1

    def stop(self) -> None:
        """Batches of this job depend on being made whole."""
        self.layout = None
        self._misfits = _MOST_MISFITS
