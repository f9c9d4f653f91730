"""Labelled images: in one folder for each class, or listed in a CSV file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, FormatError
from towerpack._core.tables import Row, is_header, read_rows, warn_of_similar
from towerpack.dataflow._user_files import PathLike, Strings, file_of, path_of
from towerpack.dataflow.arguments import names_of
from towerpack.dataflow.images._decode import MAX_PIXELS
from towerpack.dataflow.sources._files import FilesStage, ImageReader
from towerpack.dataflow.sources.discovery import Discovery, LeftOut, is_image

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)


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
        """Return the name of the source for messages."""
        return self.root.name


class ImageCSV(FilesStage):
    """Datapoints `(image, label)` from lines `path,label`.

    Paths are relative to the folder of the file. Labels that are all integers are taken as they
    are; otherwise they are names, and the label is the name's index in `classes`. Empty lines are
    passed over.

    Contract: as `DataFromList`; as long as there are lines.

    Args:
        path: The file; fields may be quoted.
        header: Whether the first line is a header. By default it is one if its label is no
            integer and occurs in no other line, and its path has no extension and names no file.
        root: What paths are relative to; by default the folder of the file.
        decode, channels, shuffle, max_pixels, seed: As for `ImageFolder`.
        classes: Names of the classes, in order; other labels are errors. By default those in the
            file, sorted.
        delimiter: By default the first of comma, semicolon and tab that the first lines have.
        quotechar: By default `"`, or `'` if the first field begins with it.
        encoding: Encoding of a file without a byte order mark; UTF-8 by default.

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
        header: bool | None = None,
        root: PathLike | None = None,
        decode: bool = True,
        channels: int = 3,
        shuffle: bool = False,
        classes: Sequence[str] | None = None,
        delimiter: str | None = None,
        quotechar: str | None = None,
        encoding: str | None = None,
        max_pixels: int = MAX_PIXELS,
        seed: int | None = None,
    ) -> None:
        self.path = file_of(path)
        base = self.path.parent if root is None else Path(os.path.expanduser(path_of(root)))
        rows = labelled_rows(
            self.path, base, encoding, header=header, delimiter=delimiter, quotechar=quotechar
        )
        names = None if classes is None else _class_names(classes)
        self.classes, self.labels = numbered(rows, names)
        files = Strings(row.fields[0] for row in rows)
        reader = ImageReader(channels, None, max_pixels) if decode else None
        super().__init__(files, reader, self.labels, shuffle=shuffle, seed=seed)

    def arguments(self) -> str:
        """Return the name of the source for messages."""
        return self.path.name


def labelled_rows(
    path: str | Path,
    base: Path,
    encoding: str | None = None,
    *,
    header: bool | None = None,
    **form: str | None,
) -> list[Row]:
    """Return the rows of a table without its header: path below `base`, label. See `ImageCSV`."""

    def is_file(name: str) -> bool:
        return os.path.exists(base / name)

    rows = read_rows(path, encoding, is_file=is_file, **form)
    if header is None:
        header = is_header(rows, 1, lambda name: "." in name or is_file(name))
    rows = rows[header:]
    if not rows:
        raise ConfigError(f"There are no images in {path}.", expected="lines path,label")
    for row in rows:
        row.fields[:] = map(str.strip, row.fields)
        if len(row.fields) != 2 or not all(row.fields):
            raise FormatError(
                f"{row} cannot be read.",
                got=f"{len(row.fields)} fields: {row.fields!r:.80}",
                expected="path,label",
                fix="write both, and enclose fields that contain the delimiter in quotation marks",
            )
        row.fields[0] = str(base / row.fields[0])
    return rows


def numbered(
    rows: Sequence[Row], classes: list[str] | None = None
) -> tuple[list[str] | None, NDArray[np.int64]]:
    """Return the names of the classes, `None` if labels are integers, and the label of each row.

    Raises:
        FormatError: A label is not among `classes`, or some are integers and some are names.
    """
    labels = [row.fields[1] for row in rows]
    if classes is None:
        integers = [bool(_INTEGER.fullmatch(label)) for label in labels]
        if all(integers):
            return None, np.array(list(map(int, labels)), np.int64)
        if any(integers):
            places = (integers.index(kind) for kind in (True, False))
            shown = " and ".join(f"{labels[i]!r:.80} in {rows[i]}" for i in places)
            raise FormatError(
                f"Some labels are integers, and some are names: {shown}.",
                fix="correct the labels, or list the names of all classes in data.class_names (in "
                "Python: classes=)",
            )
        warn_of_similar(zip(labels, rows, strict=True))
        classes = sorted(set(labels))
    index = {name: i for i, name in enumerate(classes)}
    for label, row in zip(labels, rows, strict=True):
        if label not in index:
            raise FormatError(
                f"{row}: the label {label!r:.80} is not one of the classes.",
                expected=f"one of {', '.join(index)}"[:200],
            )
    return classes, np.array([index[label] for label in labels], np.int64)


def _class_names(classes: Sequence[str]) -> list[str]:
    names = names_of(classes)
    if len(set(names)) != len(names) or not all(isinstance(cast("object", n), str) for n in names):
        raise ConfigError(
            "A class is named twice, or is no name.", got=f"{names!r:.200}", expected="strings"
        )
    return names


def _ends_with(file: str, endings: tuple[str, ...]) -> bool:
    return file.lower().endswith(endings)
