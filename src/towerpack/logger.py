"""The log and the run directory, by the predecessor's names.

    from towerpack import logger

    logger.auto_set_dir()  # runs/NAME-OF-THE-SCRIPT
    logger.info("%d pictures", len(pictures))

What is logged goes to stderr, and to the run's `log.txt` while a trainer runs. Nothing here asks
questions. Programs that have no past give `TrainConfig(run_dir=…)` and use `logging`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from towerpack._core.errors import ConfigError
from towerpack._core.logs import console, get_logger
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
    """Choose the run directory of trainers whose `TrainConfig` gives none, and make it.

    Args:
        dirname: A run that is there already goes on (see `TrainConfig(resume=…)`), unless the
            action is another.
        action: What to do, now, where there is something already: 'k' keeps it (also None,
            'resume'), 'd' deletes it if it holds a run ('delete'), 'n' takes another directory
            beside it ('new'), 'q' refuses ('error').

    Raises:
        ConfigError: The directory is in use, cannot be written to, or the action refuses it.
    """
    if action is not None and action not in _ACTIONS:
        raise ConfigError(
            f"set_logger_dir(action={action!r}).",
            expected="one of " + ", ".join(map(repr, _ACTIONS)),
            fix="'n' leaves what is there and takes another directory" if action == "b" else None,
        )
    with RunDir(Path(dirname).absolute(), on_existing=_ACTIONS[action or "k"]) as directory:
        choose_run_dir(directory.path)


def auto_set_dir(action: str | None = None, name: str | None = None) -> None:
    """`set_logger_dir` for `runs/<name of the program>`, with `-<name>` if one is given."""
    set_logger_dir(Path("runs") / "-".join(filter(None, [program_name(), name])), action)


def get_logger_dir() -> str | None:
    """The directory that was set, or None."""
    chosen = chosen_run_dir()
    return None if chosen is None else str(chosen)


def _shown(log: Callable[..., None]) -> Callable[..., None]:
    def write(message: object, *args: Any, **kwargs: Any) -> None:
        console()
        log(message, *args, **kwargs)

    return write


debug = _shown(_LOG.debug)
info = _shown(_LOG.info)
warning = _shown(_LOG.warning)
warn = warning
error = _shown(_LOG.error)
exception = _shown(_LOG.exception)
critical = _shown(_LOG.critical)
