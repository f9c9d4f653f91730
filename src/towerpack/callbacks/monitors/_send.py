"""Numbers for a command: a message, a request."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Sequence
from string import Formatter

from towerpack._core.errors import ConfigError
from towerpack._core.logs import get_logger
from towerpack._core.naming import did_you_mean
from towerpack.callbacks.monitors._base import Monitor

_log = get_logger(__name__)


class SendMonitorData(Monitor):
    """Runs a command after each epoch, with numbers put into its arguments.

        SendMonitorData("curl -sS -d error={val/error:.4f} https://example.org/run", ["val/error"])

    No shell reads it: a text is split into arguments first. Epochs before all the numbers are there
    are left out; the first one is told. If the command fails, it is run again later for the epochs
    that it missed.

    Args:
        command: A text, or arguments. In braces: names of numbers, `epoch`, `step`.
        names: The numbers that it is given.
        timeout_s: It is killed after so many seconds, which training waits.

    Raises:
        ConfigError: There is no such program, or braces with another name.
    """

    def __init__(
        self, command: str | Sequence[str], names: Sequence[str], *, timeout_s: float = 10.0
    ) -> None:
        self._command = shlex.split(command) if isinstance(command, str) else list(command)
        self._names = [names] if isinstance(names, str) else list(names)
        self._timeout_s = timeout_s
        self._values: dict[str, float] = {}
        self._seen: set[str] = set()
        self._told = False
        known = [*self._names, "epoch", "step"]
        if not self._command or shutil.which(self._command[0]) is None:
            raise ConfigError(f"SendMonitorData: there is no program {self._command[:1]}.")
        for part in self._command:
            for _, field, _, _ in Formatter().parse(part):
                if field is not None and field not in known:
                    raise ConfigError(
                        f"SendMonitorData: {{{field}}} is none of its names.",
                        expected=f"{known}; other braces doubled: {{{{ }}}}",
                        fix=did_you_mean(field, known),
                    )

    def at(self, step: int, epoch: int) -> None:
        self._values |= {"step": step, "epoch": epoch}

    def put_scalar(self, name: str, value: float, step: int) -> None:
        self._seen.add(name)
        if name in self._names:
            self._values[name] = value

    def end_epoch(self) -> None:
        """Run the command. Raise an `OSError` if the command fails or takes too long."""
        missing = [name for name in self._names if name not in self._values]
        if missing and not self._told:
            near = did_you_mean(missing[0], self._seen)
            _log.warning("%r waits for '%s', which has not come yet. %s", self, missing[0], near)
            self._told = True
        if missing:
            return
        command = [part.format_map(self._values) for part in self._command]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self._timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"{command[0]} took more than {self._timeout_s:g} s") from error
        if done.returncode:
            said = " ".join(done.stderr.split())[-200:]
            raise ConnectionError(f"{command[0]} ended with {done.returncode}: {said}")

    def __repr__(self) -> str:
        return f"SendMonitorData({shlex.join(self._command)!r})"
