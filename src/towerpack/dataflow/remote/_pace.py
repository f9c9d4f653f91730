"""Whether a small datapoint waits for the next one, so that they travel together."""

from __future__ import annotations

from typing import Final

# None waits longer, while the flow gives others.
_HOLD_S: Final = 0.002
_PAUSE_S: Final = 0.02
_QUICK: Final = 256


class Pace:
    """How quickly a flow gives datapoints.

    They wait for one another if they come so quickly that waiting costs nothing. After a pause of
    the flow's, so many must have been quick.
    """

    def __init__(self) -> None:
        self._quick = 0
        self._until = 0.0

    def begin(self, now: float) -> None:
        """What was there has left."""
        self._until = now + _HOLD_S

    def may_wait(self, asked: float, ready: float) -> bool:
        """Whether a datapoint that was asked for and came at these times can wait."""
        took = ready - asked
        if took < _HOLD_S:
            self._quick += 1
        elif took > _PAUSE_S:
            self._quick = 0
        return self._quick > _QUICK and ready < self._until
