"""Labelled images: in one folder for each class, or listed in a CSV file."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np

from towerpack._core.errors import ConfigError, FormatError
from towerpack.dataflow._arguments import names_of
from towerpack.dataflow._opening import PathLike, Strings, file_of, path_of
from towerpack.dataflow.images._decode import MAX_PIXELS
from towerpack.dataflow.sources._discovery import Discovery, LeftOut, is_image
from towerpack.dataflow.sources._files import FilesStage, ImageReader

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_HEADINGS = ({"path", "file", "filename", "image", "image_path"}, {"label", "class", "target"})

Lines = list[tuple[int, list[str]]]  # of a CSV file: the number of each, and its fields


class ImageFolder(FilesStage):
    """Datapoints `(image, label)` from `root/<class>/**/<image>`.

    Classes are the folders in `root`. Images are the files in them and below that have an image's
    extension (`.jpg`, `.jpeg`, `.png`, `.webp`, `.bmp`, `.gif`, `.tif`, `.tiff`, in any case), or
    that begin like an image. Hidden files, `__MACOSX` and other files are left out, counted and
    logged. Links are followed; a folder that is reached twice within a class is read once.

    Contract: as `DataFromList`; as long as there are images.

    Args:
        decode: Give images, uint8 [height, width, channels], RGB; otherwise the file's name.
        channels: 3 for colour, 1 for grey.
        shuffle: Give every pass another order, as `ShuffleData` does.
        classes: These folders, labelled in this order; by default all, sorted.
        extensions: Take the files with these extensions only, in lower case.
        max_pixels: Larger images are an error, before anything is allocated for them.
        seed: For the shuffle alone; by default the run's.

    Attributes:
        classes: Names of the classes; labels index them.
        labels: One for each image.
        left_out: Number of files and folders that are left out.
        left_out_files: Their names, with the reason for each.

    Raises:
        ConfigError: There is no such folder, no image in it, or a class is named twice.
        FormatError: A file is no whole image; raised while iterating.
    """

    def __init__(
        self,
        root: PathLike,
        *,
        decode: bool = True,
        channels: int = 3,
        shuffle: bool = False,
        classes: Sequence[str] | None = None,
        extensions: Sequence[str] | None = None,
        max_pixels: int = MAX_PIXELS,
        seed: int | None = None,
    ) -> None:
        self.root = Path(os.path.expanduser(path_of(root)))
        if not self.root.is_dir():
            raise ConfigError(f"There is no folder {self.root}.", expected="a folder of folders")
        endings = None if extensions is None else tuple(names_of(extensions))
        discovery = Discovery(is_image if endings is None else partial(_ends_with, endings=endings))
        found = discovery.folders(self.root)
        self.classes = found if classes is None else _class_names(classes)
        missing = sorted(set(self.classes) - set(found))
        if missing:
            what = f"{self.root} has no folder for {', '.join(missing)}."
            raise ConfigError(what, got=", ".join(found))
        labels: list[int] = []

        def images() -> Iterator[str]:
            for label, file in discovery.by_class(self.root, self.classes):
                labels.append(label)
                yield file

        files = Strings(images())
        self.labels = np.array(labels, np.int64)
        self.left_out_files: list[LeftOut] = discovery.left_out
        self.left_out = len(discovery.left_out)
        if not files:
            raise ConfigError(
                f"There are no images in {self.root}.",
                got=f"{len(self.classes)} folders and {self.left_out} other files in them",
                expected=f"{self.root}/<class>/<image>.jpg",
                fix="ImageFromFile reads a list of images, ImageCSV a table with their labels",
            )
        reader = ImageReader(channels, None, max_pixels) if decode else None
        super().__init__(files, reader, self.labels, shuffle=shuffle, seed=seed)
        discovery.report(self)

    def arguments(self) -> str:
        return self.root.name


class ImageCSV(FilesStage):
    """Datapoints `(image, label)` from lines `path,label`.

    Paths are relative to the folder of the file. Labels that are all integers are taken as they
    are; otherwise they are names, and the label is the name's index in `classes`. Empty lines are
    passed over.

    Contract: as `DataFromList`; as long as there are lines.

    Args:
        path: The file; fields may be quoted.
        header: Pass over the first line. Without it, one that looks like a header is an error.
        root: What paths are relative to; by default the folder of the file.
        decode, channels, shuffle, max_pixels, seed: As for `ImageFolder`.
        classes: Names of the classes, in order; other labels are errors. By default those in the
            file, sorted.
        delimiter, quotechar: As for `csv.reader`.

    Attributes:
        classes: Names of the classes; `None` if labels are integers.
        labels: One for each line.

    Raises:
        ConfigError: There is no such file, no image in it, or a class is named twice.
        FormatError: A line is no `path,label`; for images, raised while iterating.
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
        base = self.path.parent if root is None else Path(os.path.expanduser(path_of(root)))
        lines = list(self._lines(delimiter, quotechar))[header:]
        if not lines:
            raise ConfigError(f"There are no images in {self.path}.", expected="lines path,label")
        number, fields = lines[0]
        pairs = zip(fields, _HEADINGS, strict=False)
        if not header and all(field.lower() in known for field, known in pairs):
            raise FormatError(f"Line {number} of {self.path} is a header.", fix="header=True")
        for number, fields in lines:
            if len(fields) != 2 or not all(fields) or "\0" in fields[0]:
                raise self._bad_line(number, f"{len(fields)} fields: {fields!r:.80}")
        self.classes = self._names(lines) if classes is None else _class_names(classes)
        self.labels = np.array(list(self._numbers(lines)), np.int64)
        files = Strings(str(base / fields[0]) for _, fields in lines)
        reader = ImageReader(channels, None, max_pixels) if decode else None
        super().__init__(files, reader, self.labels, shuffle=shuffle, seed=seed)

    def arguments(self) -> str:
        return self.path.name

    def _lines(self, delimiter: str, quotechar: str) -> Iterator[tuple[int, list[str]]]:
        """What is not empty, with the number of the line where it begins."""
        number = 1
        # Names of files need not be UTF-8: their bytes come through as the file system gives them.
        with open(self.path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            reader = csv.reader(file, delimiter=delimiter, quotechar=quotechar, strict=True)
            try:
                for row in reader:
                    fields = [field.strip() for field in row]
                    if any(fields) or (len(fields) > 1 and not delimiter.isspace()):
                        yield number, fields
                    number = reader.line_num + 1
            except csv.Error as error:
                raise self._bad_line(number, str(error)) from error

    def _names(self, lines: Lines) -> list[str] | None:
        """The classes; `None` if all labels are integers."""
        integers = [bool(_INTEGER.fullmatch(label)) for _, (_, label) in lines]
        if all(integers):
            return None
        if any(integers):
            found = (lines[integers.index(kind)] for kind in (True, False))
            shown = " and ".join(f"{label!r:.80} in line {number}" for number, (_, label) in found)
            raise FormatError(
                f"Some labels of {self.path} are integers, and some are names: {shown}.",
                fix="correct them; header=True for a header; classes=[...] if it is meant",
            )
        return sorted({label for _, (_, label) in lines})

    def _numbers(self, lines: Lines) -> Iterator[int]:
        """The labels."""
        index = None if self.classes is None else {name: i for i, name in enumerate(self.classes)}
        for number, (_, label) in lines:
            if index is not None and label not in index:
                raise FormatError(
                    f"The label {label!r:.80} in line {number} of {self.path} is no class.",
                    expected=f"one of {', '.join(index)}"[:200],
                )
            yield int(label) if index is None else index[label]

    def _bad_line(self, number: int, got: str) -> FormatError:
        return FormatError(
            f"Line {number} of {self.path} cannot be read.",
            got=got,
            expected="path,label",
            fix="quote fields with commas in them; another delimiter=, if it has one",
        )


def _class_names(classes: Sequence[str]) -> list[str]:
    """Names of classes as a list; one string is one name."""
    names = names_of(classes)
    if len(set(names)) != len(names) or not all(isinstance(cast("object", n), str) for n in names):
        raise ConfigError(
            "A class is named twice, or is no name.", got=f"{names!r:.200}", expected="strings"
        )
    return names


def _ends_with(file: str, endings: tuple[str, ...]) -> bool:
    return file.lower().endswith(endings)
