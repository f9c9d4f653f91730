"""Files that appear under their name when they are whole."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Generator
from pathlib import Path

from towerpack._core.errors import ConfigError
from towerpack.dataflow._opening import PathLike, path_of


@contextlib.contextmanager
def whole_file(path: PathLike) -> Generator[Path]:
    """Where to write a file; it takes its name, or that of an older one, at the end of the block.

    A block that raises leaves nothing behind, and an older file as it was.

    Args:
        path: The file's name.

    Raises:
        ConfigError: Its directory is not there, or it is one itself.
    """
    target = path_of(path)
    if target.is_dir():
        raise ConfigError(
            f"{str(target)!r} is a directory.", expected="a file", fix="name a file in it"
        )
    if not target.parent.is_dir():
        raise ConfigError(
            f"There is no directory {str(target.parent)!r} to write {target.name!r} to.",
            fix="make it first, or check the path",
        )
    temporary = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
