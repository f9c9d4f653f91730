"""SIGTERM and Ctrl-C: noticed wherever the run is.

While the model is built it leaves the code at once; later, between two calls of TensorFlow, in
evaluations and while data are waited for.
"""

from __future__ import annotations

import builtins
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from towerpack._core.logs import get_logger

_LOG = get_logger(__name__)
_SAID: dict[int, str] = {
    signal.SIGTERM: "SIGTERM",
    signal.SIGINT: "Ctrl-C (once more ends it at once)",
}


class Interrupted(BaseException):
    """The run is to end early and be continued later.

    Like KeyboardInterrupt no `Exception`, so that a callback's `except Exception` lets it through.
    """


class StopTraining(Exception):  # noqa: N818 - no error; the name is the predecessor's
    """Raise it in a callback to end training normally.

    The other callbacks of that moment still act, so that what is saved is whole. Where several
    steps run in one call, those that have run have their hooks too.
    """


def _is_interactive() -> bool:
    return hasattr(sys, "ps1") or hasattr(builtins, "__IPYTHON__")


class InterruptFlag:
    """Remember that SIGTERM or Ctrl-C came."""

    def __init__(self) -> None:
        self._signal: int | None = None
        self._at_once = False

    @property
    def exit_code(self) -> int:
        """Status of a process that the signal has ended: 143 for SIGTERM, 130 for Ctrl-C."""
        return 128 + (self._signal or 0)

    @property
    def signal(self) -> int:
        """The signal that came; 0 for none."""
        return self._signal or 0

    def ending(self) -> BaseException:
        """Return the exception that ends the program, or only the cell of a notebook.

        An interactive session (a notebook, a Python prompt) goes on after Ctrl-C.
        """
        if self._signal == signal.SIGINT and _is_interactive():
            return KeyboardInterrupt()
        return SystemExit(self.exit_code)

    def receive(self, number: int, name: str) -> None:
        """Take over a signal that came to another process."""
        if self._signal is None:
            self._signal = number
            said = signal.Signals(number).name
            _LOG.warning("%s came to %s: the run is saved and ends in all processes.", said, name)

    @property
    def _name(self) -> str:
        return signal.Signals(self._signal or 0).name

    def check(self) -> None:
        """Leave the loop if a signal came."""
        if self._signal is not None:
            raise Interrupted(self._name)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._signal is None:
            self._signal = number
            _LOG.warning(
                "%s: the run is saved and ends; the same command continues it.", _SAID[number]
            )
        if number == signal.SIGINT:
            # A second one ends the process, even inside of TensorFlow.
            signal.signal(
                signal.SIGINT, signal.default_int_handler if _is_interactive() else signal.SIG_DFL
            )
        if self._at_once:
            raise Interrupted(self._name)

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
        """Handle the signals inside. Only the main thread can; elsewhere the program keeps its own.

        A handler of the program's own for Ctrl-C stays, and so does its being ignored.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        signals = [signal.SIGTERM]
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signals.append(signal.SIGINT)
        before = {number: signal.signal(number, self._on_signal) for number in signals}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
