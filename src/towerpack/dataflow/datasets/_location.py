"""Where data sets lie, and who may write there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from pathlib import Path

from towerpack._core.locks import locked
from towerpack._core.logs import get_logger
from towerpack.dataflow._opening import PathLike

log = get_logger(__name__)

_VARIABLES = ("TOWERPACK_DATA", "TENSORPACK_DATASET")
_DEFAULT = "~/towerpack-data"
_LOOK_AGAIN_S = 0.2
_REMIND_S = 30.0


def data_dir(name: str | None = None) -> Path:
    """The directory of all data sets, or of one of them. Not created.

    `$TOWERPACK_DATA`, else `$TENSORPACK_DATASET`, else `~/towerpack-data`.

    Args:
        name: A data set's own directory in it.
    """
    given = next((os.environ[name] for name in _VARIABLES if os.environ.get(name)), _DEFAULT)
    root = Path(given).expanduser()
    return root if name is None else root / name


def own_dir(dir: PathLike | None, name: str) -> Path:
    """The directory that was given, or a data set's own one."""
    return data_dir(name) if dir is None else Path(dir).expanduser()


@contextlib.contextmanager
def only_one(path: Path) -> Generator[None]:
    """Only one process at a time makes `path`; the others wait here, and then look for it."""

    def tell(holder: str, waited: float) -> None:
        if waited % _REMIND_S < _LOOK_AGAIN_S:
            log.info("%s is being made by %s; waiting", path, holder)

    with locked(path.with_name(f".{path.name}.lock"), look_again_s=_LOOK_AGAIN_S, waiting=tell):
        yield
