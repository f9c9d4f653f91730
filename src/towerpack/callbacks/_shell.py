"""A shell inside of a run."""

from __future__ import annotations

import code
import contextlib
import pdb
import sys
from typing import Literal

from towerpack._core.errors import ConfigError
from towerpack._core.logs import get_logger
from towerpack.callbacks._base import Callback

_log = get_logger(__name__)
Shell = Literal["python", "pdb"]


class InjectShell(Callback):
    """Opens a shell at the next trigger once there is a certain file in the run directory.

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
        """Say how to open it."""
        _log.info("For a shell inside of the run: touch %s", self.trainer.run_dir / self._file)

    def trigger(self) -> None:
        """Open the shell if the file is there."""
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
