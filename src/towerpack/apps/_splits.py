"""Training, validation and test data: where they lie, and how one is divided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack.apps._inputter import Split

_USUAL: dict[Split, tuple[str, ...]] = {
    "train": ("train",),
    "val": ("val", "valid", "validation"),
    "test": ("test",),
}
_Item = TypeVar("_Item")


class Places(Protocol):
    """The part of a recipe that says where data lie."""

    @property
    def path(self) -> str | None: ...
    @property
    def train(self) -> str | list[str] | None: ...
    @property
    def val(self) -> str | list[str] | None: ...
    @property
    def test(self) -> str | list[str] | None: ...


def root_of(config: Places) -> Path:
    """The folder that all places are relative to."""
    return Path(config.path or ".").expanduser()


def places(config: Places, *patterns: str) -> dict[str, list[str]]:
    """Files or folders of each split, below `path`: as configured, or those of usual names.

    Args:
        config: Has `path`, `train`, `val` and `test`.
        patterns: Of usual names: `{}.csv`, with the name of the split.

    Raises:
        ConfigError: There is no such folder, or no data in it.
    """
    root = root_of(config)
    if not root.is_dir():
        raise ConfigError(f"There is no folder {root}.", fix="data.path=FOLDER")
    found: dict[str, list[str]] = {}
    for split, names in _USUAL.items():
        given: str | list[str] | None = getattr(config, split)
        every = [pattern.format(name) for name in names for pattern in patterns]
        usual = [name for name in every if (root / name).exists()]
        chosen = usual if given is None else [given] if isinstance(given, str) else given
        found[split] = [str(root / Path(name).expanduser()) for name in chosen]
    if not any(found.values()):
        usual = " or ".join(pattern.format("train") for pattern in patterns)
        raise ConfigError(f"There are no data in {root}.", expected=usual, fix="data.train=…")
    return {split: several for split, several in found.items() if several}


def divide(
    size: int, num: int, labels: Sequence[int] | NDArray[Any] | None = None
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Positions of the data that are left, and of `num` of them: always the same ones.

    With `labels`, one for each, every class gives its share.

    Raises:
        ConfigError: There are fewer.
    """
    if num > size:
        raise ConfigError(f"There are {size} training data, and not {num}.")
    order = np.random.Generator(np.random.Philox(key=0)).permutation(size)
    if labels is not None:
        order = order[np.argsort(np.asarray(labels)[order], kind="stable")]
        order = order[np.diff(np.arange(size + 1) * num // size) > 0]
    chosen = np.zeros(size, np.bool_)
    chosen[order[:num]] = True
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)


def num_of(share: float, size: int) -> int:
    """Number of data in a share of the training data, at least one.

    Raises:
        ConfigError: Nothing would be left to train on.
    """
    num = max(1, round(share * size))
    if num >= size:
        raise ConfigError(f"{size} training data are too few to validate, too.")
    return num


def set_apart(
    items: Sequence[_Item], num: int, labels: Sequence[int] | None = None
) -> tuple[list[_Item], list[_Item]]:
    """Items that are left, and `num` of them, as `divide` chooses them."""
    rest, chosen = divide(len(items), num, labels)
    return [items[i] for i in rest], [items[i] for i in chosen]


def part_of(parts: Mapping[str, _Item], split: str) -> _Item:
    """The data of a split.

    Raises:
        ConfigError: There are none.
    """
    if split not in parts:
        raise ConfigError(
            f"There are no data '{split}'.", got=", ".join(parts), fix=f"data.{split}=…"
        )
    return parts[split]
