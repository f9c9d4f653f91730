"""Pictures listed in CSV files: lines `path,label`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from towerpack._core.errors import ConfigError, FormatError
from towerpack.apps._splits import places
from towerpack.apps.classification._image_inputter import (
    Found,
    ImageInputter,
    Pictures,
    joined,
)
from towerpack.dataflow import ImageCSV

_INTEGER = re.compile(r"[0-9]+", re.ASCII)
_HEADER = re.compile(
    r"\W*(path|file|filename|image|image_path)\W+(label|class|target)\W*", re.IGNORECASE
)
_QUOTED = re.compile(r"\s*'[^']*'\s*,")


class CsvInputter(ImageInputter):
    """`path,label`, paths relative to the file's folder, with the header `path,label` or without.

    Labels are names, or integers, in all files alike; where all names of classes are integers,
    too, labels are looked up among them. Quotes are double, or single where a file begins with
    one. Without `train`, `val` and `test` the files are `train.csv`, `val.csv` and
    `test.csv` in `path`, where these exist.
    """

    takes = frozenset({"path", "train", "val", "test", "validation", "num_classes", "class_names"})

    def find(self) -> Found:
        """As the files list them."""
        given = places(self.config, "{}.csv")
        names = self._names([_opened(file) for files in given.values() for file in files])
        parts: dict[str, Pictures] = {}
        for split, files in given.items():
            listed = [_opened(file, names) for file in files]
            parts[split] = joined([Pictures(one.files, one.labels) for one in listed])
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
        return given or sorted({name for one in every for name in one.classes or ()})


def _opened(file: str, classes: Sequence[str] | None = None) -> ImageCSV:
    try:
        with open(file, encoding="utf-8-sig", errors="surrogateescape") as opened:
            lines = [line for line in itertools.islice(opened, 9) if line.strip()]
    except OSError as error:
        raise ConfigError(f"The list {file} cannot be read: {error.strerror}.") from error
    header = bool(lines and _HEADER.fullmatch(lines[0]))
    quotechar = "'" if _QUOTED.match("".join(lines[header:])) else '"'
    return ImageCSV(file, header=header, decode=False, classes=classes, quotechar=quotechar)


build = CsvInputter
