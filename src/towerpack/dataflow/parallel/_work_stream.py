"""What workers give of a source that can only be read in order, as a stream."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._stream import Stream, Tally


class WorkStream(Stream):
    """Hands on what a pass gives. A subclass begins the pass, and knows the states.

    Args:
        tally: Counts what the source leaves out.
    """

    _pass: Any

    def __init__(self, tally: Tally | None) -> None:
        self._tally = tally
        self._rows: list[Datapoint] = []
        self._ended = False

    def __next__(self) -> Datapoint:
        if not self._rows:
            rows = None if self._ended else self._pass.take()
            if rows is None:
                self._end()
                raise StopIteration
            rows.reverse()
            self._rows = rows
        self._forward()
        return self._rows.pop()

    def close(self) -> None:
        self._pass.close()

    @abstractmethod
    def _forward(self) -> None:
        """Move the state on: another datapoint is handed on."""

    @abstractmethod
    def _skipped_last(self) -> int:
        """How many bad datapoints the source left out after the last good one."""

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        self._add_skipped(self._skipped_last())
        self._pass.close()  # so that the next pass, begun while this one is kept, has the workers

    def _add_skipped(self, count: int) -> None:
        if self._tally is not None:
            self._tally.skipped += count
