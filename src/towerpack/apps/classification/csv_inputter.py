"""Pictures listed in CSV files: lines `path,label`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from towerpack._core.errors import ConfigError, FormatError
from towerpack.apps.classification._image_inputter import (
    Found,
    ImageInputter,
    Pictures,
    joined,
)
from towerpack.apps.classification._splits import places
from towerpack.dataflow import ImageCSV

_INTEGER = re.compile(r"[0-9]+", re.ASCII)
_QUOTED = re.compile(r"\s*'[^']*'\s*,")


class CsvInputter(ImageInputter):
    """`path,label`, paths relative to the file's folder, with the header `path,label` or without.

    Labels are names, or integers, in all files alike; where all names of classes are integers,
    too, labels are looked up among them. Quotes are double, or, where a file begins
    with one, single. Without `train`, `val` and `test` the files are `train.csv`, `val.csv` and
    `test.csv` in `path`, where these exist.
    """

    takes = frozenset({"path", "train", "val", "test", "validation", "num_classes", "class_names"})

    def find(self) -> Found:
        """As the files list them."""
        given = places(self.config, "{}.csv")
        listed = {split: [_opened(file) for file in files] for split, files in given.items()}
        every = [one for several in listed.values() for one in several]
        names = self._names(every)
        if names is not None:
            listed = {
                split: [_opened(one.path, names) for one in several]
                for split, several in listed.items()
            }
        parts = {
            split: joined([Pictures(one.files, one.labels) for one in several])
            for split, several in listed.items()
        }
        if names is None:
            last = max(int(part.labels.max()) for part in parts.values())
            count = self.config.num_classes or last + 1
            names = self.config.class_names or [str(i) for i in range(count)]
        return names, parts

    def _names(self, every: Sequence[ImageCSV]) -> list[str] | None:
        """The classes in the order of their labels; `None` if labels are integers."""
        by_name = [one.classes is not None for one in every]
        if any(by_name) != all(by_name):
            raise FormatError(
                f"Labels are names in {every[by_name.index(True)].path}, and integers in "
                f"{every[by_name.index(False)].path}.",
                expected="the same in all files",
            )
        given = self.config.class_names
        if not any(by_name) and not (given and all(map(_INTEGER.fullmatch, given))):
            return None
        return self.config.class_names or sorted({n for one in every for n in one.classes or ()})


def _opened(path: object, classes: Sequence[str] | None = None) -> ImageCSV:
    file = str(path)
    quotechar = "'" if _QUOTED.match(_first_line(file)) else '"'
    try:
        return ImageCSV(file, decode=False, classes=classes, quotechar=quotechar)
    except FormatError as error:
        if error.fix != "header=True":
            raise
    return ImageCSV(file, header=True, decode=False, classes=classes, quotechar=quotechar)


def _first_line(file: str) -> str:
    """The first line that is not empty and no header."""
    try:
        with open(file, encoding="utf-8-sig", errors="surrogateescape") as lines:
            full = (line for line in lines if line.strip())
            first = next(full, "")
            return next(full, "") if first.strip().lower() == "path,label" else first
    except OSError as error:
        raise ConfigError(f"The list {file} cannot be read: {error.strerror}.") from error


build = CsvInputter
