"""The directory that holds everything of a run, for one process at a time.

runs/mnist/
    run.json        command lines, versions, seed, configuration
    log.txt         the log, appended to by every start
    stats.jsonl     numbers (`callbacks.monitors.JSONLMonitor`)
    ledger.jsonl    where the time of all starts went (`training.state.ledger`)
    events/         TensorBoard
    checkpoints/    `towerpack.checkpoint`
    hyper.yaml      live control
    .lock           held while the run is open
"""

from __future__ import annotations

import datetime
import json
import math
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

from towerpack._core.errors import ConfigError
from towerpack._core.files import replace_file
from towerpack._core.locks import FileLock, LockHeldError
from towerpack._core.logs import LogFile, get_logger
from towerpack._core.naming import did_you_mean
from towerpack._core.versions import library_versions

OnExisting = Literal["resume", "new", "error", "delete"]

_LOCK: Final = ".lock"
_RUN: Final = "run.json"
_SECRET: Final = re.compile(
    r"(?i)token(?![a-z])|api.?key|[-_.]key$|passw|pwd|secret|credential"
    r"|(?<![a-z])(?:auth(?:orization)?|pass(?:phrase)?)(?![a-z])|bearer|cookie"
)
# A header of HTTP, or an item of a mapping in JSON or YAML.
_ITEM: Final = re.compile(r"""([\w.-]+)(["']?\s*:\s*)("[^"]*"|'[^']*'|[^"',{}]+)""")
# A part of the query of a URL.
_QUERY: Final = re.compile(r"(?<=[?&])([\w.-]+)(=)([^&]*)")
_logger = get_logger(__name__)


class RunDir(AbstractContextManager["RunDir"]):
    """A run's directory: made, locked, its log open. Use as a context manager, or `close` it.

    The lock is the kernel's: it ends with the process, however that ends.

    Args:
        path: Where; None for `default_run_dir()`.
        on_existing: What to do where there is something already. `resume` goes on in it; `new`
            takes the first free `name-2`, `name-3`, …; `error` refuses; `delete` empties it first,
            provided that it holds a run.
        clock: Seconds since 1970.

    Raises:
        ConfigError: It is in use by another process, or `on_existing` refuses it, or the place
            cannot be written to.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        on_existing: OnExisting = "resume",
        clock: Callable[[], float] = time.time,
    ) -> None:
        if on_existing not in get_args(OnExisting):
            raise ConfigError(
                f"on_existing={on_existing!r}. {did_you_mean(on_existing, get_args(OnExisting))}"
            )
        self._clock = clock
        # Absolute, as a program may change its directory while the run goes on.
        wanted = (default_run_dir() if path is None else Path(path)).absolute()
        try:
            self.path, self._lock = _claim(wanted, on_existing)
            self._log = LogFile(self.log)
            self._log.__enter__()
        except OSError as error:
            raise ConfigError(
                f"Cannot use {wanted} as a run directory.",
                got=f"{type(error).__name__}: {error}",
                fix="make it writable, or choose another with run_dir=",
            ) from error

    @property
    def log(self) -> Path:
        """The log of all starts."""
        return self.path / "log.txt"

    @property
    def stats(self) -> Path:
        """Numbers, one JSON object a line."""
        return self.path / "stats.jsonl"

    @property
    def ledger(self) -> Path:
        """Where the time went, one JSON object a line."""
        return self.path / "ledger.jsonl"

    @property
    def events(self) -> Path:
        """The directory of TensorBoard's files."""
        return self.path / "events"

    @property
    def checkpoints(self) -> Path:
        """The directory of checkpoints."""
        return self.path / "checkpoints"

    def recorded(self) -> dict[str, Any]:
        """What `run.json` holds: `seed`, `config` and `starts`; empty before the first start.

        Raises:
            ConfigError: The file is damaged.
        """
        return read_record(self.path)

    def record_start(
        self,
        *,
        seed: int,
        config: Mapping[str, Any] | None = None,
        resumed_at: int | None = None,
        command: Sequence[str] | None = None,
    ) -> None:
        """Add this start to `run.json`.

        Args:
            seed: The run's seed.
            config: Its configuration; what JSON cannot hold is noted as its `repr`.
            resumed_at: The step of the checkpoint that it goes on from.
            command: The command line; by default this process's. What is called a token, key,
                password or secret is left out.
        """
        now = self._clock()
        start = {
            "time": datetime.datetime.fromtimestamp(now, datetime.UTC).isoformat(),
            "unix_time": now,
            "command": without_secrets(sys.orig_argv if command is None else command),
            "directory": os.getcwd(),
            "host": platform.node(),
            "pid": os.getpid(),
            "seed": seed,
            "resumed_at": resumed_at,
            "versions": library_versions(),
        }
        starts = [*self.recorded().get("starts", []), start]
        self._record({"seed": seed, "config": plain(config or {}), "starts": starts})

    def record_settings(self, settings: Mapping[str, Any]) -> None:
        """Add to `run.json` what optimizers, callbacks and data were given."""
        self._record({**self.recorded(), "settings": plain(settings)})

    def _record(self, tree: Mapping[str, Any]) -> None:
        text = json.dumps(tree, indent=2, allow_nan=False) + "\n"
        replace_file(self.path / _RUN, text.encode())

    def close(self) -> None:
        """End the log and let others use the directory. Twice is harmless."""
        self._log.__exit__()
        self._lock.release()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def __repr__(self) -> str:
        return f"RunDir({str(self.path)!r})"


def read_record(path: Path) -> dict[str, Any]:
    """What the `run.json` of a run directory holds; see `RunDir.recorded`."""
    file = path / _RUN
    try:
        tree = cast("dict[str, Any]", json.loads(file.read_bytes()))
        for start in (tree["starts"][0], *tree["starts"]):
            datetime.datetime.fromtimestamp(start["unix_time"])
            " ".join(start["command"])
        return tree
    except FileNotFoundError:
        return {}
    except (LookupError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise ConfigError(
            f"{file} is damaged: {error!r}.", fix="move it away; it is for information only"
        ) from error


_chosen: Path | None = None


def choose_run_dir(path: Path | None) -> None:
    """Make `path` the run directory of this process's trainers whose configuration names none."""
    global _chosen
    _chosen = path


def chosen_run_dir() -> Path | None:
    return _chosen


def default_run_dir() -> Path:
    """The directory that was chosen (`towerpack.logger`), or `runs/<name of the program>`.

    The latter is below the current directory, and `runs/interactive` without a program. The name
    does not change from start to start, so that the same command continues its run.
    """
    return _chosen or Path("runs") / program_name()


def program_name() -> str:
    """The name of the script or package that was started; `interactive` without one."""
    program = Path(sys.argv[0] if sys.argv else "")
    name = program.parent.name if program.name == "__main__.py" else program.stem
    interactive = name in ("", "-c", "-", "-m", "ipython", "ipykernel_launcher")
    return "interactive" if interactive else name


def _claim(wanted: Path, on_existing: OnExisting) -> tuple[Path, FileLock]:
    if on_existing == "new":
        return _claim_new(wanted)
    wanted.mkdir(parents=True, exist_ok=True)
    lock = FileLock(wanted / _LOCK)
    try:
        lock.acquire()
    except LockHeldError as error:
        raise ConfigError(
            f"The run directory {wanted} is in use.",
            got=f"a lock held by {error.holder} (this process is {os.getpid()})",
            fix="wait for that run or end it, or choose another directory with run_dir= or "
            "on_existing='new'",
        ) from None
    found = _entries(wanted)
    if found and on_existing == "error":
        lock.release()
        raise ConfigError(
            f"The run directory {wanted} exists already.",
            got=", ".join(found[:8]),
            fix="choose another, or on_existing='resume', 'new' or 'delete'",
        )
    if found and on_existing == "delete":
        if _RUN not in found:
            lock.release()
            raise ConfigError(
                f"{wanted} will not be deleted: it does not look like a run directory.",
                got=", ".join(found[:8]),
                expected=f"a file {_RUN} in it",
                fix="empty it yourself if you mean it",
            )
        _empty(wanted, found)
        found = []
    # A run directory may come from others. Files are never written through links either.
    if links := [n for n in found if (wanted / n).is_symlink() and (wanted / n).is_dir()]:
        lock.release()
        raise ConfigError(
            f"The run directory {wanted} has a link to another directory.",
            got=f"{links[0]} -> {os.readlink(wanted / links[0])}",
            fix="replace the link by the directory itself; run_dir= may be on any disk",
        )
    return wanted, lock


def _claim_new(wanted: Path) -> tuple[Path, FileLock]:
    wanted.parent.mkdir(parents=True, exist_ok=True)
    path, number = wanted, 1
    while True:
        path.mkdir(exist_ok=True)
        lock = FileLock(path / _LOCK)
        try:
            lock.acquire()
        except LockHeldError:
            pass
        else:
            # Looked at under the lock: of two runs that start together one goes on searching.
            if not _entries(path):
                return path, lock
            lock.release()
        number += 1
        path = wanted.with_name(f"{wanted.name}-{number}")


def _entries(path: Path) -> list[str]:
    return sorted(name for name in os.listdir(path) if name != _LOCK)


def _empty(path: Path, names: list[str]) -> None:
    # The mark of a run goes last, so that a deletion that was killed can be repeated.
    for name in sorted(names, key=lambda name: name == _RUN):
        entry = path / name
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    _logger.info("Deleted the earlier run in %s.", path)


def without_secrets(command: Sequence[str]) -> list[str]:
    """A command line in which `***` stands for tokens, keys, passwords and secrets."""
    shown: list[str] = []
    is_secret = False
    for word in command:
        word = _QUERY.sub(_without_value, _ITEM.sub(_without_value, word))
        name, equals, _ = word.partition("=")
        named = _SECRET.search(name) is not None
        if is_secret and not word.startswith("-"):
            shown.append("***")
        elif equals and named:
            shown.append(f"{name}=***")
        else:
            word = re.sub(r"(://[^/@:]*):[^/]*@", r"\1:***@", word)
            shown.append(re.sub(r"://[^/@:]+@", "://***@", word))
        is_secret = named and not equals and word.startswith("-")
    return shown


def _without_value(item: re.Match[str]) -> str:
    return f"{item[1]}{item[2]}***" if _SECRET.search(item[1]) else item[0]


def plain(value: Any) -> Any:
    """`value` as JSON, for reading by people; what JSON cannot hold as its `repr`."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else repr(float(value))
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value)
        return {str(key): plain(item) for key, item in items.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in cast("Sequence[Any]", value)]
    return str(value) if isinstance(value, Path) else repr(value)
