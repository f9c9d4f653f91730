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
from towerpack._core.remote_path import RemotePath, is_url
from towerpack._core.tables import Row, is_header, read_rows, warn_of_similar
from towerpack.dataflow._user_files import PathLike, Strings, any_file_of, path_of
from towerpack.dataflow.arguments import names_of
from towerpack.dataflow.images._decode import MAX_PIXELS
from towerpack.dataflow.sources._files import FilesStage, ImageReader
from towerpack.dataflow.sources.discovery import (
    HIDDEN,
    IMAGE_EXTENSIONS,
    NO_IMAGE,
    Discovery,
    LeftOut,
    is_hidden,
    is_image,
)

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)


class ImageFolder(FilesStage):
    """Read images `root/<class>/**/<image>` as datapoints `(image, label)`.

    The folders in `root` are the classes. Image files have the extension `.jpg`, `.jpeg`, `.png`,
    `.webp`, `.bmp`, `.gif`, `.tif` or `.tiff` in any case, or begin like an image. Hidden files,
    `__MACOSX` and other files are ignored, counted and logged. Links are followed, but each folder
    of a class is read once.

    Args:
        root: Folder that contains a folder for each class, or its URL.
        decode: Whether to decode images to uint8 [height, width, channels], RGB. Otherwise the
            first component is the path.
        channels: Number of channels: 3 for color, 1 for gray.
        shuffle: Whether to shuffle each pass, as `ShuffleData` does.
        classes: Names of the folders in the order of their labels; by default all folders, sorted.
        extensions: Lower-case extensions of the files to read; by default all images.
        max_pixels: Limit of pixels in an image, which is checked before memory is allocated.
        seed: Seed of the shuffle only; by default the run's seed.

    Attributes:
        classes: Names of the classes, which labels index.
        labels: Label of each image, of shape [images].
        left_out: Number of files and folders that are ignored.
        left_out_files: Path and reason for each of them.

    Raises:
        ConfigError: There is no such folder, no image in it, or a class is named twice.
        FormatError: A file is not a complete image; raised while iterating.
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
        self.root = _folder_of(root)
        if isinstance(self.root, Path) and not self.root.is_dir():
            raise ConfigError(
                f"The folder {self.root} does not exist.", expected="a folder of folders"
            )
        endings = None if extensions is None else tuple(names_of(extensions))
        discovery = Discovery(is_image if endings is None else partial(_ends_with, endings=endings))
        remote: dict[str, list[tuple[str, str]]] = {}
        if isinstance(self.root, RemotePath):
            remote = _remote_images(self.root, endings or IMAGE_EXTENSIONS, discovery)
        folders = discovery.folders(self.root) if isinstance(self.root, Path) else sorted(remote)
        self.classes = folders if classes is None else _class_names(classes)
        missing = sorted(set(self.classes) - set(folders))
        if missing:
            what = f"{self.root} has no folder for {', '.join(missing)}."
            raise ConfigError(what, got=", ".join(folders))
        labels: list[int] = []
        versions = [version for name in self.classes for _, version in remote.get(name, ())]

        def images() -> Iterator[str]:
            pairs = (
                discovery.by_class(self.root, self.classes)
                if isinstance(self.root, Path)
                else ((i, url) for i, name in enumerate(self.classes) for url, _ in remote[name])
            )
            for label, file in pairs:
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
                fix="put the images of each class in a folder, or read a table of images and "
                "labels with ImageCSV(path), or a list of files with ImageFromFile(files)",
            )
        reader = ImageReader(channels, None, max_pixels) if decode else None
        known = Strings(versions) if versions else None
        super().__init__(files, reader, self.labels, shuffle=shuffle, seed=seed, versions=known)
        discovery.report(self)

    def arguments(self) -> str:
        return self.root.name


class ImageCSV(FilesStage):
    """Read images listed in lines `path,label` as datapoints `(image, label)`.

    If all labels are integers, they are used unchanged. Otherwise labels are class names, which
    become indices of `classes`. Empty lines are ignored.

    Args:
        path: CSV file or its URL. Its fields may be quoted, and paths may be URLs.
        header: Whether the first line is a header. By default it is one if its label is not an
            integer and occurs in no other line, and its path has no extension and is not a file.
        root: Folder to which paths are relative; by default the folder of the CSV file.
        decode, channels, shuffle, max_pixels, seed: As for `ImageFolder`.
        classes: Names of all classes in order; by default the names in the file, sorted.
        delimiter: Delimiter of fields; by default the first of comma, semicolon and tab that the
            first lines contain.
        quotechar: Quotation mark; by default `"`, or `'` if the first field begins with it.
        encoding: Encoding of a file without a byte order mark; UTF-8 by default.

    Attributes:
        classes: Names of the classes; `None` if labels are integers.
        labels: Label of each image, of shape [images].

    Raises:
        ConfigError: There is no such file, no image in it, or a class is named twice.
        FormatError: A line is not `path,label`, or (raised while iterating) an image is damaged.
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
        self.path = any_file_of(path)
        base = _folder_of(os.path.dirname(str(self.path)) if root is None else root)
        rows = labeled_rows(
            str(self.path), base, encoding, header=header, delimiter=delimiter, quotechar=quotechar
        )
        names = None if classes is None else _class_names(classes)
        self.classes, self.labels = numbered(rows, names)
        files = Strings(row.fields[0] for row in rows)
        reader = ImageReader(channels, None, max_pixels) if decode else None
        super().__init__(files, reader, self.labels, shuffle=shuffle, seed=seed)

    def arguments(self) -> str:
        return self.path.name


def _folder_of(path: PathLike) -> Path | RemotePath:
    return RemotePath(str(path)) if is_url(path) else Path(os.path.expanduser(path_of(path)))


def _remote_images(
    root: RemotePath, endings: tuple[str, ...], discovery: Discovery
) -> dict[str, list[tuple[str, str]]]:
    """Return the URLs and versions of the images by class, in the order of a local folder."""
    images: dict[str, list[tuple[str, str]]] = {}
    for name, info in sorted(root.infos().items(), key=lambda item: item[0].split("/")):
        parts, url = name.split("/"), str(root / name)
        if any(map(is_hidden, parts)):
            discovery.left_out.append(LeftOut(url, HIDDEN))
        elif not _ends_with(name, endings):
            discovery.left_out.append(LeftOut(url, NO_IMAGE))
        elif len(parts) == 1:
            discovery.left_out.append(LeftOut(url, "not in a folder"))
        else:
            version = "" if info is None else info.version
            images.setdefault(parts[0], []).append((url, version))
    return images


def labeled_rows(
    path: str | Path,
    base: Path | RemotePath,
    encoding: str | None = None,
    *,
    header: bool | None = None,
    **form: str | None,
) -> list[Row]:
    """Read the rows (path, label) of a table, without its header; see `ImageCSV`."""

    def is_file(name: str) -> bool:
        return isinstance(base, Path) and os.path.exists(base / name)

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
                f"{row} must have a path and a label.",
                got=f"{len(row.fields)} fields: {row.fields!r:.80}",
                expected="path,label",
                fix="write a path and a label, and quote fields that contain the delimiter",
            )
        if not is_url(row.fields[0]):
            row.fields[0] = str(base / row.fields[0])
    return rows


def numbered(
    rows: Sequence[Row], classes: list[str] | None = None
) -> tuple[list[str] | None, NDArray[np.int64]]:
    """Return the names of the classes (`None` if labels are integers) and each row's label.

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
        raise ConfigError(f"Names of classes must be different strings, got {names!r:.200}.")
    return names


def _ends_with(file: str, endings: tuple[str, ...]) -> bool:
    return file.lower().endswith(endings)
