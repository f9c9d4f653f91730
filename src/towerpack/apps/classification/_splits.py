"""Where the parts of a data set lie."""

from __future__ import annotations

from pathlib import Path

from towerpack._core.errors import ConfigError
from towerpack.apps._inputter import Split
from towerpack.apps.classification._data_config import DataConfig

_USUAL: dict[Split, tuple[str, ...]] = {
    "train": ("train",),
    "val": ("val", "valid", "validation"),
    "test": ("test",),
}


def places(config: DataConfig, file: str) -> dict[str, list[str]]:
    """Where each split lies, below `path`: as configured, or else as is usual, where that exists.

    Args:
        config: Has `path`, `train`, `val` and `test`.
        file: What is usual: `{}.csv`, for the name of the split.

    Raises:
        ConfigError: There is no such folder, or no training data in it.
    """
    root = Path(config.path or ".").expanduser()
    if not root.is_dir():
        raise ConfigError(f"There is no folder {root}.", fix="data.path=FOLDER")
    found: dict[str, list[str]] = {}
    for split, names in _USUAL.items():
        given: str | list[str] | None = getattr(config, split)
        usual = [name for n in names if (root / (name := file.format(n))).exists()]
        chosen = usual if given is None else [given] if isinstance(given, str) else given
        found[split] = [str(root / Path(name).expanduser()) for name in chosen]
    if not found["train"]:
        raise ConfigError(f"There is no {root / file.format('train')}.", fix="data.train=…")
    return {split: several for split, several in found.items() if several}
