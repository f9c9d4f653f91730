"""Callbacks for debugging: a profile of some steps, and a shell inside a run."""

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
    """Records what TensorFlow does in some steps, for TensorBoard's profile page.

    The trace is in `profile/` of the run directory. A run that is continued later than its first
    step records nothing.

    Args:
        first: The first of the steps; earlier ones compile, so not 1.
        steps: How many.

    Raises:
        ConfigError: A number is not positive.
    """

    def __init__(self, first: int = 20, steps: int = 5) -> None:
        if isinstance(first, bool) or isinstance(steps, bool) or first < 1 or steps < 1:
            raise ConfigError(
                f"GraphProfiler(first={first}, steps={steps}).",
                expected="numbers of steps, at least 1; flags that choose dumps do not exist",
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
        _log.info("A profile of the steps until %d is in profile/.", self.global_step)

    def after_train(self) -> None:
        if self._running:
            self._stop()

    def next_stop(self, step: int) -> int | None:
        return next((at for at in (self._before, self._last) if at > step), None)


Shell = Literal["python", "pdb"]


class InjectShell(Callback):
    """Open a shell at the next trigger once there is a certain file in the run directory.

    `touch RUN_DIR/shell` stops the training at the end of the epoch; in the shell `self` is this
    callback and `trainer` the trainer. The file is removed; training goes on when the shell is
    left. Where input is no terminal, nothing is opened, and a warning says so.

    Args:
        file: Its name.
        shell: 'python' or 'pdb'.

    Raises:
        ConfigError: There is no such shell.
    """

    def __init__(self, file: str = "shell", shell: Shell = "python") -> None:
        if shell not in ("python", "pdb"):
            raise ConfigError(f"InjectShell(shell={shell!r}).", expected="'python' or 'pdb'")
        self._file, self._shell = file, shell

    def before_train(self) -> None:
        _log.info("For a shell inside of the run: touch %s", self.trainer.run_dir / self._file)

    def trigger(self) -> None:
        path = self.trainer.run_dir / self._file
        if not path.exists():
            return
        path.unlink(missing_ok=True)
        if not sys.stdin.isatty():
            _log.warning("%s was there, but input is no terminal: no shell is opened.", path)
            return
        # Python's own exit() closes the input for good.
        names = {"self": self, "trainer": self.trainer, "exit": sys.exit, "quit": sys.exit}
        banner = f"Step {self.global_step}: `trainer`, `self`. Leave the shell to go on."
        if self._shell == "python":
            with contextlib.suppress(SystemExit):
                code.interact(banner, local=names, exitmsg="")
        else:
            _log.info("%s (c)", banner)
            trainer = self.trainer  # noqa: F841 - to be looked at
            pdb.set_trace()
