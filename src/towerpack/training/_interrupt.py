"""SIGTERM: noticed wherever the run is.

While the model is built it leaves the code at once; later, between two calls of TensorFlow, in
evaluations and while data are waited for.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from towerpack._core.logs import get_logger

_LOG = get_logger(__name__)

EXIT_CODE = 128 + signal.SIGTERM


class Interrupted(BaseException):
    """The run is to end early and be continued later.

    Like KeyboardInterrupt no `Exception`, so that a callback's `except Exception` lets it through.
    """


class StopTraining(Exception):  # noqa: N818 - no error; the name is the predecessor's
    """Raise it in a callback to end training normally.

    The other callbacks of that moment still act, so that what is saved is whole. Where several
    steps run in one call, those that have run have their hooks too.
    """


class InterruptFlag:
    """Remembers that SIGTERM came."""

    def __init__(self) -> None:
        self._set = False
        self._at_once = False

    def check(self) -> None:
        """Leave the loop if the signal came.

        Raises:
            Interrupted: It did.
        """
        if self._set:
            raise Interrupted

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._set:
            _LOG.warning("SIGTERM: the run is saved and ends; the same command continues it.")
        self._set = True
        if self._at_once:
            raise Interrupted

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Inside, where nothing can be lost, the signal leaves the code wherever it is."""
        self.check()
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False
        self.check()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle SIGTERM inside. Only the main thread can; elsewhere the program keeps its own."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGTERM, self._on_signal)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)
