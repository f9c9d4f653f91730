"""Handling of SIGTERM and Ctrl-C.

While the model is built, a signal interrupts the code immediately. Later the run checks for signals
between two calls of TensorFlow, during evaluations and while it waits for data.
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
_DESCRIPTIONS: dict[int, str] = {
    signal.SIGTERM: "SIGTERM",
    signal.SIGINT: "Ctrl-C (press again to exit immediately)",
}


class Interrupted(BaseException):
    """Exception that ends a run early, so that it can be continued later.

    Derived from `BaseException`, so that a callback's `except Exception` does not catch it.
    """


class StopTraining(Exception):  # noqa: N818 - not an error; Tensorpack uses this name
    """Exception that a callback raises to end training normally.

    The hook that is running is still called for the other callbacks, so that the saved state is
    complete. If one TensorFlow call ran several steps, the hooks of all these steps are called.
    """


_AT_PROMPT = hasattr(sys, "ps1")  # at import: a shell in a callback sets it later


def _is_interactive() -> bool:
    return _AT_PROMPT or hasattr(builtins, "__IPYTHON__")


class InterruptFlag:
    """Record of a received SIGTERM or Ctrl-C."""

    def __init__(self) -> None:
        self.signal = 0
        """Number of the received signal; 0 for none."""
        self._raise_immediately = False

    @property
    def exit_code(self) -> int:
        """Exit status for the signal: 143 for SIGTERM, 130 for Ctrl-C."""
        return 128 + self.signal

    def ending(self) -> BaseException:
        """Return the exception that ends the program, or only the current cell of a notebook.

        An interactive session (a notebook, a Python prompt) continues after Ctrl-C.
        """
        if self.signal == signal.SIGINT and _is_interactive():
            return KeyboardInterrupt()
        return SystemExit(self.exit_code)

    def receive(self, number: int, process: str) -> None:
        """Record a signal that another process has received."""
        if not self.signal:
            self.signal = number
            name = signal.Signals(number).name
            _LOG.warning("%s received %s. Saving the run and ending all processes.", process, name)

    def check(self) -> None:
        """Raise `Interrupted` if a signal was received."""
        if self.signal:
            raise Interrupted(signal.Signals(self.signal).name)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self.signal:
            self.signal = number
            _LOG.warning(
                "Received %s. Saving the run and exiting; the same command continues the run.",
                _DESCRIPTIONS[number],
            )
        if number == signal.SIGINT:
            # The next Ctrl-C ends the process, even inside TensorFlow.
            signal.signal(
                signal.SIGINT, signal.default_int_handler if _is_interactive() else signal.SIG_DFL
            )
        if self._raise_immediately:
            self.check()

    @contextmanager
    def raised_immediately(self) -> Iterator[None]:
        """Raise `Interrupted` from the signal handler in the block, which has nothing to save."""
        self.check()
        self._raise_immediately = True
        try:
            yield
        finally:
            self._raise_immediately = False
        self.check()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle signals inside the block. Does nothing outside the main thread.

        If the program handles or ignores Ctrl-C itself, leave that unchanged.
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
