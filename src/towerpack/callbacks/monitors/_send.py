"""Monitor that runs a command, for example to send a message or a request."""

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

_SHORT = 5  # characters; longer arguments may be secrets
_log = get_logger(__name__)


class SendMonitorData(Monitor):
    """Run a command after each epoch, with monitored numbers in its arguments.

        SendMonitorData("curl -sS -d error={val/error:.4f} https://example.org/run", ["val/error"])

    The command runs without a shell, once all numbers are available, and training waits for it. A
    warning is logged at the first epoch that lacks a number. A failed command is repeated later.

    Args:
        command: A string, which is split into arguments, or a list of arguments. Braces contain
            the name of a number, `epoch` or `step`.
        names: Names of the numbers.
        timeout_s: Seconds after which the command is killed.

    Raises:
        ConfigError: The program does not exist, or braces contain another name.
    """

    def __init__(
        self, command: str | Sequence[str], names: Sequence[str], *, timeout_s: float = 10.0
    ) -> None:
        self._command = shlex.split(command) if isinstance(command, str) else list(command)
        self._names = [names] if isinstance(names, str) else list(names)
        self._timeout_s = timeout_s
        self._values: dict[str, float] = {}
        self._seen: set[str] = set()
        self._warned = False
        known = [*self._names, "epoch", "step"]
        if not self._command or shutil.which(self._command[0]) is None:
            raise ConfigError(f"SendMonitorData: the program {self._command[:1]} does not exist.")
        for part in self._command:
            for _, field, _, _ in Formatter().parse(part):
                if field is not None and field not in known:
                    raise ConfigError(
                        f"SendMonitorData: {{{field}}} in the command is not in names. "
                        f"{did_you_mean(field, known)}",
                        fix="add the number to names, or double other braces: {{ }}",
                    )

    def set_step(self, step: int, epoch: int) -> None:
        self._values |= {"step": step, "epoch": epoch}

    def put_scalar(self, name: str, value: float, step: int) -> None:
        self._seen.add(name)
        if name in self._names:
            self._values[name] = value

    def end_epoch(self) -> None:
        missing = [name for name in self._names if name not in self._values]
        if missing and not self._warned:
            near = did_you_mean(missing[0], self._seen)
            _log.warning("%r waits for '%s', which no callback has put. %s", self, missing[0], near)
            self._warned = True
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
            output = " ".join(done.stderr.split())
            for secret in (word for word in command[1:] if len(word) > _SHORT):
                output = output.replace(secret, "***")
            output = output[-200:]
            raise ConnectionError(f"{command[0]} ended with {done.returncode}: {output}")

    def __repr__(self) -> str:
        # Logs and `run.json` contain this text, and the arguments may contain passwords.
        return f"SendMonitorData('{self._command[0]} …', {self._names})"
