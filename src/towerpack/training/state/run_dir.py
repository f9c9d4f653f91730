"""Run directories, which hold all files of a run and are used by one process at a time.

- `run.json`: command lines, versions, seed, configuration
- `log.txt`: log of all starts
- `stats.jsonl`: numbers (`callbacks.monitors.JSONLMonitor`)
- `step_costs.f32`: cost of each step (`training.state.step_costs`)
- `ledger.jsonl`: time spent by all starts (`training.state.ledger`)
- `events/`: files for TensorBoard
- `checkpoints/`: checkpoints (`towerpack.checkpoint`)
- `hyper.yaml`: hyper-parameters to change during training
- `.lock`: lock, held while the run is open
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

from towerpack._core.errors import ConfigError
from towerpack._core.files import read_regular, refuse_link, replace_file
from towerpack._core.locks import FileLock, LockHeldError
from towerpack._core.logs import LogFile, get_logger
from towerpack._core.naming import did_you_mean
from towerpack._core.remote_path import is_url
from towerpack._core.versions import library_versions

OnExisting = Literal["resume", "new", "error", "delete"]

_LOCK: Final = ".lock"
_RUN: Final = "run.json"
_SECRET: Final = re.compile(
    r"(?i)token(?![a-z])|api.?key|[-_.]key$|passw|pwd|secret|credential"
    r"|(?<![a-z])(?:auth(?:orization)?|pass(?:phrase)?|sig(?:nature)?)(?![a-z])|bearer|cookie"
)
# A header of HTTP, or an item of a mapping in JSON or YAML.
_ITEM: Final = re.compile(r"""([\w.-]+)(["']?\s*:\s*)("[^"]*"|'[^']*'|[^"',{}]+)""")
# A part of the query of a URL.
_QUERY: Final = re.compile(r"(?<=[?&])([\w.-]+)(=)([^&]*)")
_logger = get_logger(__name__)


class RunDir(AbstractContextManager["RunDir"]):
    """Directory of a run, which is created and locked; a context manager.

    The kernel releases the lock when the process ends, however it ends.

    Args:
        path: Path of the directory; None for `default_run_dir()`.
        on_existing: Action if the directory has files. 'resume' continues the run in it; 'new' uses
            the first free `name-2`, `name-3`, …; 'error' raises an error; 'delete' empties the
            directory first, if it holds a run.
        clock: Returns seconds since 1970.

    Attributes:
        path: Path of the directory. The other attributes are paths in it.
        log: Log.
        stats: File with the monitored numbers, one JSON object per line.
        step_costs: File of each step's cost, little-endian float32.
        ledger: File of times spent, one JSON object per line.
        events: Directory of TensorBoard's files.
        checkpoints: Directory of checkpoints.

    Raises:
        ConfigError: Another process uses the directory, it is not writable, or `on_existing`
            forbids its files.
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
                f"on_existing must be one of {list(get_args(OnExisting))}, got {on_existing!r}.",
                fix=did_you_mean(on_existing, get_args(OnExisting)),
            )
        self._clock = clock
        # Absolute, because a program may change its working directory during the run.
        wanted = Path(default_run_dir() if path is None else path).absolute()
        try:
            self.path, self._lock = _claim(wanted, on_existing)
            self.log, self.ledger = self.path / "log.txt", self.path / "ledger.jsonl"
            self.stats = self.path / "stats.jsonl"
            self.step_costs, self.events = self.path / "step_costs.f32", self.path / "events"
            self.checkpoints = self.path / "checkpoints"
            self._log = LogFile(self.log)
            self._log.__enter__()
        except OSError as error:
            raise ConfigError(
                f"{wanted} cannot be used as a run directory.",
                got=f"{type(error).__name__}: {error}",
                fix="make it writable, or pass a different run_dir=",
            ) from error

    def recorded(self) -> dict[str, Any]:
        """Return the contents of `run.json`: `seed`, `config` and `starts`. May be empty.

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
            seed: Seed of the run.
            config: Configuration; values that JSON cannot hold are stored as their `repr`.
            resumed_at: Step of the checkpoint from which the start continues.
            command: Command line; by default that of this process. Values of options named like
                tokens, keys, passwords or secrets are replaced by `***`.
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
        """Add settings of optimizers, callbacks and data to `run.json`.

        Args:
            settings: Settings by name.
        """
        self._record({**self.recorded(), "settings": plain(settings)})

    def _record(self, tree: Mapping[str, Any]) -> None:
        text = json.dumps(tree, indent=2, allow_nan=False) + "\n"
        replace_file(self.path / _RUN, text.encode())

    def close(self) -> None:
        """Close the log and release the lock. Can be called several times."""
        self._log.__exit__()
        self._lock.release()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def __repr__(self) -> str:
        return f"RunDir({str(self.path)!r})"


def read_record(path: Path) -> dict[str, Any]:
    """Return the contents of a run directory's `run.json`; see `RunDir.recorded`."""
    file = path / _RUN
    try:
        tree = cast("dict[str, Any]", json.loads(read_regular(file)))
        for start in (tree["starts"][0], *tree["starts"]):
            datetime.datetime.fromtimestamp(start["unix_time"])
            " ".join(start["command"])
        _ = {**tree.get("config", {}), **tree.get("settings", {})}
        return tree
    except FileNotFoundError:
        return {}
    except (LookupError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise ConfigError(
            f"{file} is damaged: {error!r}.",
            fix="move the file away; a run continues without it",
        ) from error


_chosen: str | Path | None = None


def choose_run_dir(path: str | Path | None) -> None:
    """Set the default run directory of this process, for trainers whose configuration has none."""
    global _chosen
    _chosen = path


def chosen_run_dir() -> str | Path | None:
    return _chosen


def run_files(
    where: str | os.PathLike[str], *folders: str, names: Iterable[str] | None = None
) -> Path:
    """Return the local directory of a run. Download the files of a run behind a URL.

    Args:
        where: Local path or URL.
        folders: Subdirectories to download too. Checkpoints are downloaded by `load_checkpoint`.
        names: Names of the only files to download, from all runs below the URL.
    """
    if not is_url(where):
        return Path(where).expanduser()
    from towerpack.checkpoint.remote_copies import local_files

    return local_files(str(where), *folders, names=names)


def run_dir_of(run_dir: str | Path | None) -> str | Path:
    """Return the directory (or URL) of a run, whose configuration has this `run_dir`."""
    return default_run_dir() if run_dir is None else run_dir


def default_run_dir() -> str | Path:
    """Return the directory (or URL) chosen by `towerpack.logger`, or `runs/<name of the program>`.

    The name is the same for every start, so that the same command continues its run. Without a
    program it is `interactive`.
    """
    return _chosen or Path("runs") / program_name()


def program_name() -> str:
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
            f"The run directory {wanted} is in use by another process.",
            got=f"a lock held by {error.holder} (this process is {os.getpid()})",
            fix="wait for that run or end it, or choose another directory with run_dir= or "
            "on_existing='new'",
        ) from None
    entries = _entries(wanted)
    if entries and on_existing == "error":
        lock.release()
        raise ConfigError(
            f"The run directory {wanted} exists already.",
            got=", ".join(entries[:8]),
            fix="choose another directory, or set on_existing to 'resume', 'new' or 'delete'",
        )
    if entries and on_existing == "delete":
        if _RUN not in entries:
            lock.release()
            raise ConfigError(
                f"on_existing='delete' did not empty {wanted}, because it is not a run directory.",
                got=", ".join(entries[:8]),
                expected=f"a directory with a file {_RUN}",
                fix="delete the files yourself, or pass a different run_dir=",
            )
        _empty(wanted, entries)
        entries = []
    # A run directory may come from other people, so never write through links.
    try:
        for name in entries:
            if (wanted / name).is_dir():
                refuse_link(wanted / name)
    except ConfigError:
        lock.release()
        raise
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
            # Check while the lock is held, so that of two runs only one uses the directory.
            if not _entries(path):
                return path, lock
            lock.release()
        number += 1
        path = wanted.with_name(f"{wanted.name}-{number}")


def _entries(path: Path) -> list[str]:
    return sorted(name for name in os.listdir(path) if name != _LOCK)


def _empty(path: Path, names: list[str]) -> None:
    # Delete run.json last, so that an interrupted deletion can be repeated.
    for name in sorted(names, key=lambda name: name == _RUN):
        entry = path / name
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    _logger.info("Deleted the earlier run in %s.", path)


def without_secrets(command: Sequence[str]) -> list[str]:
    """Return a command line with `***` for tokens, keys, passwords and secrets."""
    shown: list[str] = []
    is_secret = False
    for word in command:
        word = _QUERY.sub(_without_value, _ITEM.sub(_without_value, word))
        name, equals, _ = word.partition("=")
        named = _SECRET.search(name) is not None
        if is_secret and not re.match("--|-.$", word):
            shown.append("***")
        elif equals and named:
            shown.append(f"{name}=***")
        else:
            word = re.sub(r"(://[^/@:]*):[^/]*@", r"\1:***@", word)
            shown.append(re.sub(r"://[^/@:]+@", "://***@", word))
        is_secret = word == "-p" or (named and not equals and word.startswith("-"))
    return shown


def _without_value(item: re.Match[str]) -> str:
    return f"{item[1]}{item[2]}***" if _SECRET.search(item[1]) else item[0]


def plain(value: Any) -> Any:
    """Convert a value for JSON. Replace values that JSON cannot hold by their `repr`."""
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
