"""Where the parts of a data set lie."""

from __future__ import annotations

import os
from pathlib import Path

from towerpack._core.errors import ConfigError
from towerpack.apps._inputter import Split
from towerpack.apps.classification._data_config import DataConfig

USUAL: dict[Split, tuple[str, ...]] = {
    "train": ("train",),
    "val": ("val", "valid", "validation"),
    "test": ("test",),
}


def folder_of(config: DataConfig) -> Path:
    """The folder of the data; by default the current one.

    Raises:
        ConfigError: It is not there.
    """
    folder = Path(config.path or ".").expanduser()
    if not folder.is_dir():
        raise ConfigError(f"There is no folder {folder}.", got="data.path", fix="data.path=FOLDER")
    return folder


def places(config: DataConfig, file: str = "{}") -> dict[str, list[str]]:
    """Where each split lies, below `path`: as configured, or else as is usual, where that exists.

    Args:
        config: Has `train`, `val` and `test`.
        file: What is usual below `path`, for the name of a split.
    """
    root = folder_of(config)
    found: dict[str, list[str]] = {}
    for split, names in USUAL.items():
        given: str | list[str] | None = getattr(config, split)
        if given is None:
            usual = [str(root / file.format(name)) for name in names]
            several = [path for path in usual if os.path.exists(path)]
        else:
            several = [
                str(root / Path(p).expanduser())
                for p in ([given] if isinstance(given, str) else given)
            ]
        if several:
            found[split] = several
    return found
