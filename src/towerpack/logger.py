"""Logging and the run directory, with Tensorpack's names.

    from towerpack import logger

    logger.auto_set_dir()  # runs/NAME-OF-THE-SCRIPT
    logger.info("%d pictures", len(pictures))

Messages go to stderr, and to the run's `log.txt` while a trainer runs. Functions never prompt. New
programs should use `TrainConfig(run_dir=…)` and `logging` instead.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from towerpack._core.errors import ConfigError
from towerpack._core.logs import console, get_logger
from towerpack._core.remote_path import is_url
from towerpack.training.state.run_dir import (
    OnExisting,
    RunDir,
    choose_run_dir,
    chosen_run_dir,
    program_name,
)

__all__ = [
    "auto_set_dir", "critical", "debug", "error", "exception", "get_logger_dir", "info",
    "set_logger_dir", "warn", "warning"
]  # fmt: skip

_LOG = get_logger("program")
_ACTIONS: dict[str, OnExisting] = {
    "k": "resume",
    "d": "delete",
    "n": "new",
    "q": "error",
    **{word: word for word in ("resume", "delete", "new", "error")},
}


def set_logger_dir(dirname: str | os.PathLike[str], action: str | None = None) -> None:
    """Create a run directory, which trainers use if their `TrainConfig` has no `run_dir`.

    Args:
        dirname: Path or URL of the directory. An existing run continues (see
            `TrainConfig(resume=…)`).
        action: What to do if the directory exists. 'k' ('resume') or None keeps it, 'd' ('delete')
            deletes a run in it, 'n' ('new') creates another directory beside it, and 'q' ('error')
            raises an error.

    Raises:
        ConfigError: The action is unknown or forbids the directory, another program uses the
            directory, or it is not writable.
    """
    if action is not None and action not in _ACTIONS:
        raise ConfigError(
            f"action must be one of {', '.join(map(repr, _ACTIONS))}, got {action!r}."
        )
    if is_url(dirname):
        if action in ("n", "new", "d", "delete", "q", "error"):
            raise ConfigError(
                f"set_logger_dir supports the action {action!r} only for local directories.",
                fix="set TrainConfig(run_dir=URL, on_existing=…)",
            )
        choose_run_dir(os.fspath(dirname))
        return
    with RunDir(Path(dirname).absolute(), on_existing=_ACTIONS[action or "k"]) as directory:
        choose_run_dir(directory.path)


def auto_set_dir(action: str | None = None, name: str | None = None) -> None:
    """Set the run directory to `runs/PROGRAM` or `runs/PROGRAM-NAME` (see `set_logger_dir`).

    Args:
        action: Same as for `set_logger_dir`.
        name: Suffix of the directory.
    """
    set_logger_dir(Path("runs") / "-".join(filter(None, [program_name(), name])), action)


def get_logger_dir() -> str | None:
    """Return the run directory that was set, or None."""
    chosen = chosen_run_dir()
    return None if chosen is None else str(chosen)


def _with_console(log: Callable[..., None]) -> Callable[..., None]:
    def write(message: object, *args: Any, **kwargs: Any) -> None:
        """Log a message, and show the log on stderr.

        Args:
            message: Format string, as for `logging`.
            *args, **kwargs: Arguments of the `logging` method.
        """
        console()
        log(message, *args, **kwargs)

    return write


debug = _with_console(_LOG.debug)
info = _with_console(_LOG.info)
warning = _with_console(_LOG.warning)
warn = warning
error = _with_console(_LOG.error)
exception = _with_console(_LOG.exception)
critical = _with_console(_LOG.critical)
