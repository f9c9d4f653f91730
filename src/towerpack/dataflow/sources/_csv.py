"""Labelled images listed in a CSV file."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, FormatError
from towerpack.dataflow._arguments import given
from towerpack.dataflow._opening import PathLike, file_of, path_of
from towerpack.dataflow._strings import Strings
from towerpack.dataflow.images._decode import MAX_PIXELS
from towerpack.dataflow.sources._files import FilesNode, FilesStage, ImageReader
from towerpack.dataflow.sources._folders import class_names

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_HEADINGS = ({"path", "file", "filename", "image", "image_path"}, {"label", "class", "target"})

Line = tuple[int, str, str]
"""Number in the file, path, label."""


class ImageCSV(FilesStage):
    """Datapoints `(image, label)` from lines `path,label`.

    Paths are relative to the folder of the file. Labels that are all integers are taken as they
    are; otherwise they are names, and the label is the name's index in `classes`. Empty lines are
    passed over; any other line that is not `path,label` is an error that gives its number.

    Contract: in order of the lines, or exactly shuffled; as long as there are lines; random if
    shuffled; thread- and fork-safe; resumable at once.

    Args:
        path: The file; fields may be quoted.
        header: Pass over the first line; one that names a file is an error, as no image is to be
            lost. Without it, a first line that looks like a header is an error, so that none
            becomes a datapoint.
        root: What paths are relative to; by default the folder of the file.
        decode: Give images, uint8 [height, width, channels], RGB; otherwise the file's name.
        channels: 3 for colour, 1 for grey.
        shuffle: Give every pass another order, as `ShuffleData` does.
        classes: Names of the classes, in order; other labels are errors. By default those in the
            file, sorted.
        delimiter: Between path and label.
        quotechar: Around fields with a delimiter in them.
        max_pixels: Larger images are an error, before anything is allocated for them.
        seed: For the shuffle alone; by default the run's.

    Attributes:
        classes: Names of the classes; `None` if labels are integers.
        labels: One for each line.

    Raises:
        ConfigError: There is no such file, or no image in it; the first line should be a header
            and is an image's; or an argument makes no sense.
        FormatError: A line is bad; for images, raised while iterating.
    """

    def __init__(
        self,
        path: PathLike,
        *,
        header: bool = False,
        root: PathLike | None = None,
        decode: bool = True,
        channels: int = 3,
        shuffle: bool = False,
        classes: Sequence[str] | None = None,
        delimiter: str = ",",
        quotechar: str = '"',
        max_pixels: int = MAX_PIXELS,
        seed: int | None = None,
    ) -> None:
        self.path = file_of(path)
        _check_character(quotechar, "quotechar", "'", "\r\n")
        _check_character(delimiter, "delimiter", ";", f"{quotechar}\r\n")
        named = None if classes is None else class_names(classes)
        base = self.path.parent if root is None else Path(os.path.expanduser(path_of(root)))
        lines = list(_lines(self.path, delimiter, quotechar, base if header else None))
        if not lines:
            raise ConfigError(
                f"There are no images in {self.path}.",
                got="a header alone" if header else "a file without lines",
                expected="lines path,label",
            )
        self.classes = _names(self.path, lines) if named is None else named
        self.labels = _labels(self.path, lines, self.classes)
        files = Strings(str(base / file) for _, file, _ in lines)
        reader = ImageReader(channels, None, max_pixels) if decode else None
        super().__init__(FilesNode(files, reader, self.labels), shuffle, seed)

    def arguments(self) -> str:
        return self.path.name


def _check_character(value: object, what: str, example: str, others: str) -> None:
    if not isinstance(value, str) or len(value) != 1 or value in others:
        raise ConfigError(
            f"This is no {what}.", got=given(value), expected=f"one character, such as {example}"
        )


def _lines(path: Path, delimiter: str, quotechar: str, header_for: Path | None) -> Iterator[Line]:
    """The lines of a file, checked.

    Args:
        path: The file.
        delimiter: Between path and label.
        quotechar: Around fields.
        header_for: Pass over the first line, which must name no file in this folder.
    """
    # Names of files need not be UTF-8: their bytes come through as the file system gives them.
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        first = True
        reader = csv.reader(file, delimiter=delimiter, quotechar=quotechar, strict=True)
        for number, fields in _records(path, reader, delimiter.isspace()):
            if first and header_for is not None:
                first = False
                _check_header(path, number, fields, header_for)
                continue
            if len(fields) != 2 or not fields[0].strip() or not fields[1].strip():
                raise _bad(path, number, f"{len(fields)} fields: {fields!r:.80}")
            image, label = (field.strip() for field in fields)
            if "\0" in image:
                raise _bad(path, number, f"a NUL in {image!r:.80}")
            if first and _are_headings(fields):
                raise FormatError(
                    f"Line {number} of {path} looks like a header: {image},{label}.",
                    fix="header=True",
                )
            first = False
            yield number, image, label


def _check_header(path: Path, number: int, fields: list[str], base: Path) -> None:
    """Refuse what is no header but a picture, which would be lost."""
    file = base / fields[0].strip()
    if os.path.isfile(file) and not _are_headings(fields):
        raise ConfigError(
            f"Line {number} of {path} is no header: there is a file {file}.",
            fix="leave out header=True",
        )


def _are_headings(fields: list[str]) -> bool:
    names = [field.strip().lower() for field in fields]
    return len(names) == 2 and names[0] in _HEADINGS[0] and names[1] in _HEADINGS[1]


def _records(path: Path, reader: Any, by_space: bool) -> Iterator[tuple[int, list[str]]]:
    """What is not empty, with the number of the line where it begins.

    Args:
        path: For messages.
        reader: Of the csv module.
        by_space: Space is between fields: a line of it is empty, too.
    """
    while True:
        number: int = reader.line_num + 1
        try:
            fields: list[str] | None = next(reader, None)
        except csv.Error as error:
            raise _bad(path, number, str(error)) from error
        if fields is None:
            return
        blank = not any(map(str.strip, fields)) and (len(fields) <= 1 or by_space)
        if not blank:
            yield number, fields


def _names(path: Path, lines: list[Line]) -> list[str] | None:
    """The classes; `None` if all labels are integers."""
    integers = [bool(_INTEGER.fullmatch(label)) for _, _, label in lines]
    if all(integers):
        return None
    if any(integers):
        # Names were meant or integers; either way something is wrong with the others.
        fewer = sum(integers) * 2 < len(integers)
        number, _, label = lines[integers.index(fewer)]
        kind = "an integer" if fewer else "no integer"
        raise FormatError(
            f"The label {label!r:.80} in line {number} of {path} is {kind}, unlike most others.",
            fix="correct it; header=True if it is a header; classes=[...] if it is meant",
        )
    return sorted({label for _, _, label in lines})


def _labels(path: Path, lines: list[Line], classes: list[str] | None) -> NDArray[np.int64]:
    if classes is None:
        return np.array([int(label) for _, _, label in lines], np.int64)
    index = {name: i for i, name in enumerate(classes)}
    for number, _, label in lines:
        if label not in index:
            raise FormatError(
                f"The label {label!r:.80} in line {number} of {path} is no class.",
                expected=f"one of {', '.join(classes)}"[:200],
            )
    return np.array([index[label] for _, _, label in lines], np.int64)


def _bad(path: Path, line: int, got: str) -> FormatError:
    return FormatError(
        f"Line {line} of {path} cannot be read.",
        got=got,
        expected="path,label",
        fix="quote fields with commas in them; another delimiter=, if it has one",
    )
