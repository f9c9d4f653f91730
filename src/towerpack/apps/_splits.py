"""Training, validation and test data: usual names of files, and random division of rows."""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, FormatError
from towerpack._core.files import read_regular
from towerpack.apps._config import Data
from towerpack.apps._inputter import Split, damaged_in_run
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
    """Return the data folder, to which the paths in a recipe are relative."""
    return Path(config.path or ".").expanduser()


def split_of(name: str) -> Split | None:
    """Return the split that a name such as `Training` or `val2017` means, or None."""
    return _SPLITS.get(_YEAR.sub("", name.lower()))


def places(
    config: Data, *patterns: str, stated: Mapping[Any, list[str]] | None = None
) -> dict[str, list[str]]:
    """Return the configured files or folders of each split, else those with usual names.

    In `patterns`, such as `{}.csv`, `{}` stands for the name of the split. Paths in `stated`
    replace the patterns.
    """
    root = root_of(config)
    if not root.is_dir():
        raise ConfigError(
            f"The data folder {root} does not exist.", fix="set data.path to the data folder"
        )
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
    """Return paths below a folder that match `name` in any case; `{}` is any name of a split."""
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
    folders = _folders(root)
    return bool(folders) and all(map(split_of, folders))


def are_classes(root: Path) -> bool:
    """Return whether the subfolders are classes: at least one has no name of a split."""
    folders = _folders(root)
    splits = {split_of(name) for name in folders}
    if "train" in splits and None in splits and len(splits) > 2:
        known = ", ".join(name for name in folders if split_of(name))
        other = next(name for name in folders if split_of(name) is None)
        raise ConfigError(
            f"The folders in {root} must be either all splits or all classes. {known} are splits, "
            f"but {other} is not.",
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
    """Return `folder / name`. Raise an error if the path leads out of `folder` and `root`."""
    path = os.path.abspath(folder / name)
    inside = (Path(path).is_relative_to(os.path.abspath(inner)) for inner in (folder, root))
    if "\0" in name or not any(inside):
        raise FormatError(
            f"{where} must name only files inside the data folder.",
            got=name,
            expected=f"a file in {root}",
            fix="write names relative to the folder of the pictures, which is below data.path",
        )
    return folder / name


def relative_name(file: str | os.PathLike[str], root: Path) -> str:
    name, start = os.fspath(file), f"{root}{os.sep}"
    name = name[len(start) :] if name.startswith(start) else os.path.relpath(name, root)
    return name.replace(os.sep, "/")


def row_hashes(names: Iterable[Name], column: int) -> NDArray[np.uint64]:
    """Return a hash of each row's name. Different columns give independent hashes."""
    raw = (n.encode("utf-8", "surrogateescape") if isinstance(n, str) else n for n in names)
    digests = b"".join(hashlib.blake2b(name, digest_size=32).digest() for name in raw)
    return np.frombuffer(digests, "<u8").reshape(-1, 4)[:, column]


def read_hashes(file: Path) -> NDArray[np.uint64]:
    """Read row hashes that were written with `numpy.save`."""
    try:
        # `numpy.load` would also open archives.
        hashes = np.lib.format.read_array(io.BytesIO(read_regular(file)), allow_pickle=False)
        if hashes.ndim != 1 or hashes.dtype != np.uint64:
            raise ValueError(f"{hashes.dtype} {list(hashes.shape)} are not hashes of rows")
        return hashes
    except Exception as error:  # damage raises errors of many kinds
        raise damaged_in_run(file, error) from error


def held_out(
    names: Sequence[Name],
    share: float,
    split: Literal["test", "val"],
    labels: Sequence[int] | NDArray[Any] | None = None,
) -> NDArray[np.bool_]:
    """Choose the rows of a split by hashes of their names. Return a mask, bool [rows].

    A row is chosen if its hash is below `share`, so adding rows never moves a training row into the
    split. If this chooses no row of a class with at least two rows, the row with the smallest hash
    is chosen. At least one row of each class remains for training. Rows with equal names stay
    together, unless a class has no other rows.
    """
    if len(names) < 2:
        raise ConfigError(
            f"Training data must have at least 2 rows to be divided, got {len(names)}.",
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
    if not chosen.any():  # each class has one row
        chosen[np.argmin(hashes)] = True
    return chosen


def parted(rows: Sequence[_Item], chosen: Iterable[bool]) -> tuple[list[_Item], list[_Item]]:
    """Divide rows by a mask: return the rows that are not chosen, and the chosen rows."""
    pairs = list(zip(rows, chosen, strict=True))
    return [row for row, wanted in pairs if not wanted], [row for row, wanted in pairs if wanted]


def subset(
    names: Sequence[Name], num: int, labels: Sequence[int] | NDArray[Any]
) -> NDArray[np.intp]:
    """Choose `num` rows by hashes of their names, in proportion to the class sizes."""
    size = len(names)
    if num > size:
        raise ConfigError(f"data.samples must be at most the {size} training rows, got {num}.")
    order = np.argsort(row_hashes(names, 3), kind="stable")
    order = order[np.argsort(np.asarray(labels)[order], kind="stable")]
    return np.sort(order[np.diff(np.arange(size + 1) * num // size) > 0])


def check_batch(count: int, batch_size: int) -> None:
    if count < batch_size:
        raise ConfigError(
            f"Training data must have at least one batch of {batch_size} rows, got {count} rows.",
            fix="set data.batch_size to a smaller number",
        )


def part_of(parts: Mapping[str, _Item], split: str) -> _Item:
    if split not in parts:
        raise ConfigError(
            f"The recipe has no '{split}' data.",
            got=", ".join(parts),
            fix=f"set data.{split} to files or folders",
        )
    return parts[split]
