"""Callbacks for debugging: a profile of the graph, and a shell."""

from __future__ import annotations

import code
import contextlib
import pdb
import sys
from typing import Any, Literal

from towerpack._core.errors import ConfigError
from towerpack._core.extras import require
from towerpack._core.logs import get_logger
from towerpack.callbacks._base import Callback

_log = get_logger(__name__)


class GraphProfiler(Callback):
    """Record a TensorFlow profile of some steps, for TensorBoard's profile page.

    The profile is written to `profile/` in the run directory.

    Args:
        first: Number of the first recorded step. The first steps of a run include compilation.
        steps: Number of recorded steps.

    Raises:
        ConfigError: An argument is not a positive integer.
    """

    def __init__(self, first: int = 20, steps: int = 5) -> None:
        if isinstance(first, bool) or isinstance(steps, bool) or first < 1 or steps < 1:
            raise ConfigError(
                "GraphProfiler: first and steps must be integers of at least 1, got "
                f"first={first} and steps={steps}.",
                fix="pass numbers of steps, not the flags of Tensorpack's GraphProfiler",
            )
        self._before, self._last = first - 1, first - 1 + steps
        self._running = False

    def _profiler(self) -> Any:
        tensorflow = require("tensorflow", extra="tf", needed_for="GraphProfiler")
        return tensorflow.profiler.experimental

    def before_train(self) -> None:
        self._start_if_due()

    def trigger_step(self) -> None:
        self._start_if_due()
        if self._running and self.global_step >= self._last:
            self._stop()

    def _start_if_due(self) -> None:
        if self.global_step == self._before:
            self._profiler().start(str(self.trainer.run_dir / "profile"))
            self._running = True

    def _stop(self) -> None:
        self._running = False
        self._profiler().stop()
        _log.info("Saved a profile of the steps until %d in profile/.", self.global_step)

    def after_train(self) -> None:
        if self._running:
            self._stop()

    def next_stop(self, step: int) -> int | None:
        return next((stop for stop in (self._before, self._last) if stop > step), None)


Shell = Literal["python", "pdb"]


class InjectShell(Callback):
    """Open a shell at the end of an epoch if a certain file exists in the run directory.

    After `touch RUN_DIR/shell`, training pauses at the end of the epoch. In the shell, `self` is
    this callback and `trainer` the trainer. Training goes on when the shell is closed; the file is
    removed. If the input is not a terminal, a warning is logged instead.

    Args:
        file: Name of the file.
        shell: 'python' or 'pdb'.

    Raises:
        ConfigError: `shell` is unknown.
    """

    def __init__(self, file: str = "shell", shell: Shell = "python") -> None:
        if shell not in ("python", "pdb"):
            raise ConfigError(f"InjectShell: shell must be 'python' or 'pdb', got {shell!r}.")
        self._file, self._shell = file, shell

    def before_train(self) -> None:
        _log.info("To open a shell inside the run: touch %s", self.trainer.run_dir / self._file)

    def trigger(self) -> None:
        path = self.trainer.run_dir / self._file
        if not path.exists():
            return
        path.unlink(missing_ok=True)
        if not sys.stdin.isatty():
            _log.warning("Cannot open a shell for %s: the input is not a terminal.", path)
            return
        # Python's own exit() would close the standard input.
        names = {"self": self, "trainer": self.trainer, "exit": sys.exit, "quit": sys.exit}
        banner = f"Step {self.global_step}: see `trainer` and `self`. Exit to continue training."
        if self._shell == "python":
            with contextlib.suppress(SystemExit):
                code.interact(banner, local=names, exitmsg="")
        else:
            _log.info("%s (c)", banner)
            trainer = self.trainer  # noqa: F841 - to be looked at
            pdb.set_trace()
