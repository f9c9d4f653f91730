"""Costs of single steps in a compact file: little-endian float32, step n at byte 4·(n-1).

A step that did not run is NaN, and a cost that is not a number is infinite. The file is exact when
a killed run continues: it is synced before each checkpoint, and a resumed run cuts it off at its
own step.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from towerpack._core.files import append_whole, open_plain, read_regular
from towerpack._core.logs import get_logger

_LOG = get_logger(__name__)
_COST = np.dtype("<f4")
# Between two writes. Short calls would otherwise spend three percent of their time on them.
_INTERVAL_S = 0.2


def read_step_costs(path: str | os.PathLike[str]) -> np.ndarray:
    """Return the costs of the steps 1, 2, …, as float32 [steps]."""
    data = read_regular(path)
    return np.frombuffer(data, _COST, len(data) // _COST.itemsize)


class StepCosts:
    """Writer of a run's costs, which writes nothing if not `enabled`. Call `resume` before.

    If the file cannot be written, it logs one warning, and repeats the write later.
    """

    def __init__(
        self, path: Path, *, enabled: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path, self._enabled, self._clock = path, enabled, clock
        self._fd: int | None = None
        self._end = 0  # steps in the file, and pending ones
        self._pending: list[np.ndarray] = []
        self._due, self._warned = 0.0, False

    def resume(self, step: int) -> None:
        """Remove the costs after `step`, also those of an earlier start if this one writes none."""
        if self._enabled or self._path.exists():
            self._fd = open_plain(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            self._end = min(step, os.fstat(self._fd).st_size // _COST.itemsize)
            os.ftruncate(self._fd, self._end * _COST.itemsize)

    def add(self, costs: np.ndarray, step: int) -> None:
        """Append the costs of the steps up to `step`. Write at most five times a second."""
        if self._enabled:
            skipped = np.full(step - len(costs) - self._end, np.nan)
            self._pending += [skipped, np.where(np.isnan(costs), np.inf, costs)]
            self._end = step
            if self._clock() >= self._due:
                self.flush(sync=False)

    def flush(self, *, sync: bool = True) -> None:
        """Write the pending costs. With `sync`, wait until they are on disk."""
        if self._fd is None:
            return
        self._due = self._clock() + _INTERVAL_S
        try:
            if self._pending:
                self._pending = [np.concatenate(self._pending, dtype=_COST, casting="same_kind")]
                append_whole(self._fd, self._pending[0].tobytes())
                self._pending = []
            if sync:
                os.fsync(self._fd)
        except OSError as error:
            if not self._warned:
                _LOG.warning("%s cannot be written and is incomplete: %s.", self._path, error)
            self._warned = True

    def close(self) -> None:
        self.flush(sync=False)
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
