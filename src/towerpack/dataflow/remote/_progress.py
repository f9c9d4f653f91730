"""What a producer shows while it works."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final, TextIO

_EVERY_S: Final = 0.5
# Of the averages: about the last fifty datapoints.
_WEIGHT: Final = 0.04


class Progress:
    """One line on a terminal: how many, how fast, and who waits for whom.

    Args:
        shown: By default on terminals only.
        stream: Where the line goes.
        clock: Seconds that pass.
    """

    def __init__(
        self,
        shown: bool | None = None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._shown = self._stream.isatty() if shown is None else shown
        self._clock = clock
        self._due = self._since = clock()
        self._sent = self._recent = self._nbytes = 0
        self._latency_s = 0.0
        self._width = 0

    @property
    def latency_s(self) -> float:
        """The average time from when a datapoint is there to when the network takes it."""
        return self._latency_s

    def sent(self, count: int, nbytes: int, latency_s: float) -> None:
        """Count datapoints that travel together; the latency is that of the last one."""
        weight = 1 - (1 - _WEIGHT) ** count if self._sent else 1.0
        self._latency_s += (latency_s - self._latency_s) * weight
        self._sent += count
        self._recent += count
        self._nbytes += nbytes

    def show(self, what: str) -> None:
        """Renew the line, not more often than can be read."""
        if not self._shown or (now := self._clock()) < self._due:
            return
        seconds = max(now - self._since, 1e-3)
        line = (
            f"{self._sent:,} sent, {self._recent / seconds:,.1f} /s, "
            f"{self._nbytes / seconds / 1e6:,.1f} MB/s, "
            f"average send latency {1e3 * self._latency_s:,.2f} ms: {what}"
        )
        self._stream.write("\r" + line.ljust(self._width))
        self._stream.flush()
        self._width = len(line)
        self._due, self._since = now + _EVERY_S, now
        self._recent = self._nbytes = 0

    def close(self) -> None:
        """Leave the line as it is."""
        if self._width:
            self._stream.write("\n")
            self._width = 0
