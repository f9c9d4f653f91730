"""Labelled images in folders, one folder for each class."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack._core.logs import get_logger
from towerpack.dataflow._arguments import given, names_of
from towerpack.dataflow._opening import PathLike, path_of
from towerpack.dataflow._strings import Strings
from towerpack.dataflow.images._decode import MAX_PIXELS
from towerpack.dataflow.sources._files import FilesNode, FilesStage, ImageReader

log = get_logger(__name__)

IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")


class ImageFolder(FilesStage):
    """Datapoints `(image, label)` from `root/<class>/**/<image>`.

    Classes are the folders in `root`, in the order of their names; images follow in the order of
    theirs. The order depends on nothing but names. Hidden files and folders are passed over; other
    files that are no images by their extension are left out, counted in `left_out` and logged.
    Links to folders are followed at the first level only.

    Contract: in order, or exactly shuffled; as many as there are images; random if shuffled;
    thread- and fork-safe; resumable at once.

    Args:
        root: The folder of folders.
        decode: Give images, uint8 [height, width, channels], RGB; otherwise the file's name.
        channels: 3 for colour, 1 for grey.
        shuffle: Give every pass another order, as `ShuffleData` does.
        classes: These folders, labelled in this order; by default all, sorted.
        extensions: What images are called, in lower case.
        max_pixels: Larger images are an error, before anything is allocated for them.
        seed: For the shuffle alone; by default the run's.

    Attributes:
        classes: Names of the classes; labels index them.
        labels: One for each image.
        left_out: How many files were no images.

    Raises:
        ConfigError: There is no such folder, or there are no images in it, or a class is named
            twice.
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
        extensions: Sequence[str] = IMAGE_EXTENSIONS,
        max_pixels: int = MAX_PIXELS,
        seed: int | None = None,
    ) -> None:
        self.root = Path(os.path.expanduser(path_of(root)))
        found = _classes(self.root)
        self.classes = found if classes is None else class_names(classes)
        missing = sorted(set(self.classes) - set(found))
        if missing:
            raise ConfigError(
                f"{self.root} has no folder for {', '.join(missing)}.", got=", ".join(found)
            )
        endings = tuple(names_of(extensions))
        files, self.labels, self.left_out = _scan(self.root, self.classes, endings)
        if not files:
            raise ConfigError(
                f"There are no images in {self.root}.",
                got=f"{len(self.classes)} folders and {self.left_out} other files in them",
                expected=f"{self.root}/<class>/<image>.jpg",
                fix="ImageFromFile reads a list of images that have no classes; ImageCSV, images "
                "whose labels are in a table",
            )
        reader = ImageReader(channels, None, max_pixels) if decode else None
        super().__init__(FilesNode(files, reader, self.labels), shuffle, seed)
        if self.left_out:
            log.info("%s: left out %d files that are no images", self, self.left_out)

    def arguments(self) -> str:
        return self.root.name


def class_names(classes: Sequence[str]) -> list[str]:
    """Names of classes as a list; one string is one name.

    Raises:
        ConfigError: One of them is no string, or there twice.
    """
    names = names_of(classes)
    for name in names:
        if not isinstance(cast("object", name), str):
            raise ConfigError("This is no name of a class.", got=given(name), expected="a str")
    if len(set(names)) != len(names):
        raise ConfigError("A class is named twice.", got=", ".join(names)[:200])
    return names


def _classes(root: Path) -> list[str]:
    if not root.is_dir():
        got = "a file" if root.exists() else "nothing there"
        raise ConfigError(f"There is no folder {root}.", got=got, expected="a folder of folders")
    with os.scandir(root) as entries:
        return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))


def _scan(
    root: Path, classes: list[str], extensions: tuple[str, ...]
) -> tuple[Strings, NDArray[np.int64], int]:
    labels: list[int] = []
    left_out = 0

    def images() -> Iterator[str]:
        nonlocal left_out
        for label, name in enumerate(classes):
            for file in _walk(os.path.join(root, name)):
                if file.lower().endswith(extensions):
                    labels.append(label)
                    yield file
                else:
                    left_out += 1

    files = Strings(images())
    return files, np.asarray(labels, np.int64), left_out


def _walk(folder: str) -> Iterator[str]:
    """The files below a folder that are not hidden, in the order of their names."""
    with os.scandir(folder) as entries:
        found = sorted((e for e in entries if not e.name.startswith(".")), key=lambda e: e.name)
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path)
        elif entry.is_file():
            yield entry.path
