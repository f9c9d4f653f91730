"""Training, validation and test data: usual names of files, and division by hashes of names."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, FormatError
from towerpack.apps._config import Data
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


def root_of(config: Data) -> Path:
    """Return the folder to which the paths of a recipe are relative."""
    return Path(config.path or ".").expanduser()


def split_of(name: str) -> Split | None:
    """Return the split with a name such as `Training` or `val2017`; None for other names."""
    return _SPLITS.get(_YEAR.sub("", name.lower()))


def places(
    config: Data, *patterns: str, stated: Mapping[Any, list[str]] | None = None
) -> dict[str, list[str]]:
    """Return the files or folders of each split: the configured ones, or those with usual names.

    In `patterns`, such as `{}.csv`, `{}` stands for the name of the split. `stated` replaces them.
    """
    root = root_of(config)
    if not root.is_dir():
        raise ConfigError(f"There is no folder {root}.", fix="set data.path to the data folder")
    by_split: dict[str, list[str]] = {}
    for split in SPLIT_NAMES:
        value: str | list[str] | None = getattr(config, split)
        usual = (stated or {}).get(split) or usual_places(root, split, *patterns)
        chosen = usual if value is None else [value] if isinstance(value, str) else value
        by_split[split] = [str(root / Path(name).expanduser()) for name in chosen]
    if not any(by_split.values()):
        usual = " or ".join(pattern.format("train") for pattern in patterns)
        raise ConfigError(
            f"No data found in {root}.", expected=usual, fix="set data.train to files or folders"
        )
    return {split: paths for split, paths in by_split.items() if paths}


def matching(root: Path, name: str, split: str | None = None) -> list[str]:
    """Return the paths below a folder that match a name in any case; `{}` is a name of `split`."""
    paths = [""]
    for part in name.split("/"):
        form = re.compile(re.escape(part).replace(r"\{\}", "(.+)"), re.IGNORECASE)
        inner = [os.path.join(path, name) for path in paths for name in _visible(root / path)]
        pairs = [(path, form.fullmatch(os.path.basename(path))) for path in inner]
        paths = [p for p, m in pairs if m and (not m.groups() or split_of(m[1]) == split)]
    return paths


def usual_places(root: Path, split: str, *patterns: str) -> list[str]:
    """Return the paths below a folder that match one of several patterns for a split."""
    return [path for pattern in patterns for path in matching(root, pattern, split)]


def has_splits(root: Path) -> bool:
    """Return whether all folders in a folder have names of splits."""
    folders = _folders(root)
    return bool(folders) and all(map(split_of, folders))


def are_classes(root: Path) -> bool:
    """Return whether the folders in a folder are classes: at least one is not a split."""
    folders = _folders(root)
    splits = {split_of(name) for name in folders}
    if "train" in splits and None in splits and len(splits) > 2:
        known = ", ".join(name for name in folders if split_of(name))
        other = next(name for name in folders if split_of(name) is None)
        raise ConfigError(
            f"{root} has the folders {known}, which are splits, and {other}, which is not.",
            fix=f"move {other} out of the folder, or set data.train=. if all folders are classes",
        )
    return not folders or None in splits


def _folders(root: Path) -> list[str]:
    return [name for name in _visible(root) if (root / name).is_dir()]


def _visible(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(name for name in os.listdir(folder) if not is_hidden(name))


def path_below(folder: Path, name: str, root: Path, where: str) -> Path:
    """Return `folder / name`, after a check that the path stays below the folder or the root."""
    path = os.path.abspath(folder / name)
    inside = (Path(path).is_relative_to(os.path.abspath(inner)) for inner in (folder, root))
    if "\0" in name or not any(inside):
        raise FormatError(
            f"{where} names a file outside the data folder.",
            got=name,
            expected=f"a file in {root}",
            fix="write names relative to the folder of the pictures, which is below data.path",
        )
    return folder / name


def relative_name(file: str | os.PathLike[str], root: Path) -> str:
    """Return the name of a file relative to a folder, with `/` as separator."""
    name, start = os.fspath(file), f"{root}{os.sep}"
    name = name[len(start) :] if name.startswith(start) else os.path.relpath(name, root)
    return name.replace(os.sep, "/")


def row_hashes(names: Iterable[Name], column: int) -> NDArray[np.uint64]:
    """Return a hash of the name of each row. Hashes of different columns are independent."""
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

    A row is held out if its hash is below `share`, so other rows do not matter: a new row never
    moves a training row into the split. If a class of at least two rows has no such row, the row
    with the smallest hash is held out. At least one row of each class remains for training. Rows of
    equal names stay together, unless a class has no other rows.
    """
    if len(names) < 2:
        raise ConfigError(
            f"At least 2 training rows are needed to divide them, got {len(names)}.",
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
    """Return the rows that are not chosen, and the chosen rows."""
    pairs = list(zip(rows, chosen, strict=True))
    return [row for row, wanted in pairs if not wanted], [row for row, wanted in pairs if wanted]


def subset(
    names: Sequence[Name], num: int, labels: Sequence[int] | NDArray[Any]
) -> NDArray[np.intp]:
    """Choose `num` rows by a hash of their names, in proportion to the sizes of the classes."""
    size = len(names)
    if num > size:
        raise ConfigError(f"data.samples is {num}, but there are only {size} training rows.")
    order = np.argsort(row_hashes(names, 3), kind="stable")
    order = order[np.argsort(np.asarray(labels)[order], kind="stable")]
    return np.sort(order[np.diff(np.arange(size + 1) * num // size) > 0])


def check_batch(count: int, batch_size: int) -> None:
    if count < batch_size:
        raise ConfigError(
            f"{count} training rows do not fill a batch of {batch_size}.",
            fix="set data.batch_size to a smaller number",
        )


def part_of(parts: Mapping[str, _Item], split: str) -> _Item:
    if split not in parts:
        raise ConfigError(
            f"There are no '{split}' data.",
            got=", ".join(parts),
            fix=f"set data.{split} to files or folders",
        )
    return parts[split]
