"""Costs of single steps in a compact file: little-endian float32, step n at byte 4·(n-1).

A step that did not run is NaN, and a cost that is not a number is infinite. The file is exact when
a killed run continues: it is synced before each checkpoint, and a resumed run cuts it off at its
own step.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from towerpack._core.files import open_plain, read_regular
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
    """Writer of a run's costs, which does nothing before `resume` and if not `enabled`.

    If the file cannot be written, it logs one warning, and repeats the write later.
    """

    def __init__(
        self, path: Path, *, enabled: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path, self._enabled, self._clock = path, enabled, clock
        self._fd: int | None = None
        self._written = self._end = 0  # steps in the file, and with those pending
        self._pending: list[np.ndarray] = []
        self._due, self._warned = 0.0, False

    def resume(self, step: int) -> None:
        """Remove the costs after `step`, also those of an earlier start if this one writes none."""
        if not (self._enabled or self._path.exists()):
            return
        self._fd = open_plain(self._path, os.O_RDWR | os.O_CREAT)
        self._written = self._end = min(step, os.fstat(self._fd).st_size // _COST.itemsize)
        os.ftruncate(self._fd, self._written * _COST.itemsize)

    def add(self, costs: np.ndarray, step: int) -> None:
        """Append the costs of the steps up to `step`. Write at most five times a second."""
        if self._fd is None or not self._enabled:
            return
        if skipped := step - len(costs) - self._end:
            self._pending.append(np.full(skipped, np.nan))
        self._pending.append(np.where(np.isnan(costs), np.inf, costs))
        self._end = step
        if self._clock() >= self._due:
            self._write()

    def flush(self) -> None:
        """Write the pending costs, and wait until they are on disk."""
        self._write(sync=True)

    def close(self) -> None:
        self._write()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _write(self, *, sync: bool = False) -> None:
        if self._fd is None:
            return
        self._due = self._clock() + _INTERVAL_S
        try:
            if self._pending:
                self._pending = [np.concatenate(self._pending, dtype=_COST, casting="same_kind")]
                data = self._pending[0].tobytes()
                if os.pwrite(self._fd, data, self._written * _COST.itemsize) < len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._pending, self._written = [], self._end
            if sync:
                os.fsync(self._fd)
        except OSError as error:
            if not self._warned:
                _LOG.warning("%s cannot be written and is incomplete: %s.", self._path, error)
            self._warned = True
