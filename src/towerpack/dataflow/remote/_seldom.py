"""Warnings that somebody else can cause, and that are not given as often as he may like."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

_QUIET_S: Final = 10.0


class Seldom:
    """Logs each kind of thing once in a while.

    Args:
        log: Where to.
        clock: Seconds that pass.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._told: dict[str, float] = {}

    def warn(self, what: str, text: str) -> None:
        """Log a text, unless one on the same thing was logged just now."""
        now = self._clock()
        if now >= self._told.get(what, float("-inf")) + _QUIET_S:
            self._told[what] = now
            self._log.warning("%s", text)
