"""Training, validation and test data: where they lie, and how one is divided."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, FormatError
from towerpack.apps._inputter import Split
from towerpack.dataflow.sources.discovery import is_hidden

SPLIT_NAMES: dict[Split, tuple[str, ...]] = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev", "development"),
    "test": ("test", "testing", "eval", "evaluation", "holdout"),
}
_SPLITS: dict[str, Split] = {name: split for split, names in SPLIT_NAMES.items() for name in names}
_YEAR = re.compile(r"[_-]?(19|20)\d\d$")
_Item = TypeVar("_Item")
Name = str | bytes


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


def split_of(name: str) -> Split | None:
    """Return the split that a whole name means, in any case: `Training`, `val2017`."""
    return _SPLITS.get(_YEAR.sub("", name.lower()))


def places(
    config: Places, *patterns: str, stated: Mapping[Any, list[str]] | None = None
) -> dict[str, list[str]]:
    """Return files or folders of each split: as configured, or of usual names in any case.

    Args:
        config: Has `path`, `train`, `val` and `test`.
        patterns: Of usual names: `{}.csv`, with the name of the split.
        stated: Instead of the usual places of the splits that it names.

    Raises:
        ConfigError: There is no such folder, or no data in it.
    """
    root = root_of(config)
    if not root.is_dir():
        raise ConfigError(
            f"There is no folder {root}.", fix="set data.path to the folder of the data"
        )
    found: dict[str, list[str]] = {}
    for split in SPLIT_NAMES:
        given: str | list[str] | None = getattr(config, split)
        usual = (stated or {}).get(split) or usual_places(root, split, *patterns)
        chosen = usual if given is None else [given] if isinstance(given, str) else given
        found[split] = [str(root / Path(name).expanduser()) for name in chosen]
    if not any(found.values()):
        usual = " or ".join(pattern.format("train") for pattern in patterns)
        raise ConfigError(
            f"There are no data in {root}.",
            expected=usual,
            fix="set data.train to the files or folders",
        )
    return {split: several for split, several in found.items() if several}


def matching(root: Path, name: str, split: str | None = None) -> list[str]:
    """Return the paths below a folder that have a name, whatever its case.

    Args:
        root: The folder.
        name: The name, in which `{}` stands for any name of `split`.
        split: 'train', 'val' or 'test'.
    """
    paths = [""]
    for part in name.split("/"):
        form = re.compile(re.escape(part).replace(r"\{\}", "(.+)"), re.IGNORECASE)
        inner = [os.path.join(path, name) for path in paths for name in _visible(root / path)]
        pairs = [(path, form.fullmatch(os.path.basename(path))) for path in inner]
        paths = [p for p, m in pairs if m and (not m.groups() or split_of(m[1]) == split)]
    return paths


def usual_places(root: Path, split: str, *patterns: str) -> list[str]:
    """Return the paths below a folder that match one of several patterns of a split's names."""
    return [path for pattern in patterns for path in matching(root, pattern, split)]


def has_splits(root: Path) -> bool:
    """Return whether all folders in a folder have names of splits; else `train` is a class."""
    folders = _folders(root)
    return bool(folders) and all(map(split_of, folders))


def are_classes(root: Path) -> bool:
    """Return whether the folders in a folder are classes, because not all of them are splits.

    Raises:
        ConfigError: There are training and other data, beside a folder that is no split.
    """
    folders = _folders(root)
    splits = {split_of(name) for name in folders}
    if "train" in splits and None in splits and len(splits) > 2:
        known = ", ".join(name for name in folders if split_of(name))
        other = next(name for name in folders if split_of(name) is None)
        raise ConfigError(
            f"{root} has the folders {known}, which are splits, and {other}, which is none.",
            fix=f"move {other} to another place, or set data.train=. if all folders are classes",
        )
    return not folders or None in splits


def _folders(root: Path) -> list[str]:
    return [name for name in _visible(root) if (root / name).is_dir()]


def _visible(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(name for name in os.listdir(folder) if not is_hidden(name))


def path_below(folder: Path, name: str, root: Path, where: str) -> Path:
    """Return the path of a file that `where` names, from a folder.

    Raises:
        FormatError: It leaves the folder and the data's `root`.
    """
    path = os.path.abspath(folder / name)
    inside = (Path(path).is_relative_to(os.path.abspath(inner)) for inner in (folder, root))
    if "\0" in name or not any(inside):
        raise FormatError(
            f"{where} names a file outside of the data.",
            got=name,
            expected=f"a file in {root}",
            fix="write names relative to the folder of the pictures, which is below data.path",
        )
    return folder / name


def relative_name(file: str | os.PathLike[str], root: Path) -> str:
    """Return the name of a file below a folder, the same wherever the folder lies."""
    name, start = os.fspath(file), f"{root}{os.sep}"
    name = name[len(start) :] if name.startswith(start) else os.path.relpath(name, root)
    return name.replace(os.sep, "/")


def row_hashes(names: Iterable[Name], column: int) -> NDArray[np.uint64]:
    """Return a hash of each row's name. Columns are independent of each other."""
    raw = (n.encode("utf-8", "surrogateescape") if isinstance(n, str) else n for n in names)
    digests = b"".join(hashlib.blake2b(name, digest_size=32).digest() for name in raw)
    return np.frombuffer(digests, "<u8").reshape(-1, 4)[:, column]


def held_out(
    names: Sequence[Name],
    share: float,
    split: Literal["test", "val"],
    labels: Sequence[int] | NDArray[Any] | None = None,
) -> NDArray[np.bool_]:
    """Choose the rows of a split by a hash of each row's own name.

    A row is held out if its hash is below `share`, so other rows do not matter. Only if a class of
    at least two rows has none, the row with the smallest hash is taken; one row is always left to
    train on. A new row thus never moves a training row into the split. Rows of equal names stay
    together, unless a class has no other rows.

    Args:
        names: Name of each row, or its content.
        share: Expected share of the rows.
        split: Rows are chosen independently for each split.
        labels: Class of each row; without labels, all rows are one class.

    Raises:
        ConfigError: There are fewer than two rows.
    """
    if len(names) < 2:
        raise ConfigError(
            f"{len(names)} training rows cannot be divided.",
            expected="at least 2",
            fix=f"add rows, or set data.{split} to other data",
        )
    hashes = row_hashes(names, ("rows", "test", "val").index(split)) / 2.0**64
    classes = np.zeros(len(names)) if labels is None else np.asarray(labels)
    chosen = np.zeros(len(names), np.bool_)
    for label in np.unique(classes):
        members = np.flatnonzero(classes == label)
        distinct = np.unique(hashes[members])
        if len(distinct) > 1:
            last = np.clip(np.sum(distinct < share), 1, len(distinct) - 1) - 1
            chosen[members] = hashes[members] <= distinct[last]
        else:
            chosen[members[: min(max(1, round(share * len(members))), len(members) - 1)]] = True
    if not chosen.any():  # Each class has one row.
        chosen[np.argmin(hashes)] = True
    return chosen


def parted(rows: Sequence[_Item], chosen: Iterable[bool]) -> tuple[list[_Item], list[_Item]]:
    """Return the rows that are not chosen, and those that are."""
    pairs = list(zip(rows, chosen, strict=True))
    return [row for row, wanted in pairs if not wanted], [row for row, wanted in pairs if wanted]


def subset(
    names: Sequence[Name], num: int, labels: Sequence[int] | NDArray[Any]
) -> NDArray[np.intp]:
    """Return positions of `num` rows, each class in proportion, chosen by a hash of the names.

    Raises:
        ConfigError: There are fewer.
    """
    size = len(names)
    if num > size:
        raise ConfigError(f"There are {size} training data, and not {num}.")
    order = np.argsort(row_hashes(names, 3), kind="stable")
    order = order[np.argsort(np.asarray(labels)[order], kind="stable")]
    return np.sort(order[np.diff(np.arange(size + 1) * num // size) > 0])


def part_of(parts: Mapping[str, _Item], split: str) -> _Item:
    """The data of a split.

    Raises:
        ConfigError: There are none.
    """
    if split not in parts:
        raise ConfigError(
            f"There are no data '{split}'.",
            got=", ".join(parts),
            fix=f"set data.{split} to files or folders",
        )
    return parts[split]
