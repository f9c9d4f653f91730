"""Search for the files of a data set. Ignored files are recorded with the reason."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

from towerpack._core.logs import get_logger
from towerpack.dataflow.images.headers import begins_like_image

log = get_logger(__name__)

IMAGE_EXTENSIONS: Final = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
TEXT_EXTENSIONS: Final = (".txt", ".text", ".md", ".markdown", ".rst")
HIDDEN: Final = "hidden"
NO_IMAGE: Final = "not an image"
NO_TEXT: Final = "not a text"
_HIDDEN_NAMES: Final = {"__macosx", "thumbs.db", "desktop.ini", "@eadir", "$recycle.bin"}
_HEADER_BYTES = 32
_LETTER = re.compile(r"\[[^]]*\]|[^\W\d_]")


class LeftOut(NamedTuple):
    """File or folder that is ignored, and the reason."""

    file: str
    reason: str


def is_image(file: str) -> bool:
    """Return whether a file is an image by its extension or its first bytes."""
    # Opening 100,000 files with an image's extension would take longer than listing them.
    if file.lower().endswith(IMAGE_EXTENSIONS):
        return True
    try:
        with open(file, "rb") as opened:
            return begins_like_image(opened.read(_HEADER_BYTES))
    except OSError:
        return False  # The caller reports the file as left out.


def is_text(file: str) -> bool:
    """Return whether the name of a file has a text file's extension or no extension."""
    return os.path.splitext(file)[1].lower() in ("", *TEXT_EXTENSIONS)


def is_hidden(name: str) -> bool:
    """Return whether a file or folder belongs to a program and is not part of the data."""
    return (name.startswith(".") and name != "..") or name.lower() in _HIDDEN_NAMES


class Discovery:
    """Search for files of one kind in folders, which records the ignored files.

    Hidden files and folders are ignored: `.x`, `._x`, `.ipynb_checkpoints`, `__MACOSX`,
    `Thumbs.db`, `desktop.ini`. Links are followed. A folder is ignored if it was read before or
    contains the link that leads to it.

    Args:
        accepts: Function that returns whether the file at a path has the right kind.
        otherwise: Reason to record for files of other kinds.

    Attributes:
        left_out: Ignored files and folders in the order of the search.
    """

    def __init__(self, accepts: Callable[[str], bool] = is_image, otherwise: str = NO_IMAGE):
        self._accepts, self._otherwise = accepts, otherwise
        self._above: set[tuple[int, int]] = set()
        self._read: set[tuple[int, int]] = set()
        self.left_out: list[LeftOut] = []

    def files(self, folder: str | Path) -> Iterator[str]:
        """Iterate over the files in a folder and its subfolders, in order of names."""
        self._above = {_identity(path) for path in Path(folder).resolve().parents}
        self._read = set()
        return self._walk(str(folder))

    def folders(self, folder: str | Path) -> list[str]:
        """Return the sorted names of the subfolders of a folder. Record its files as ignored."""
        path = Path(folder).resolve()
        self._above = {_identity(each) for each in (path, *path.parents)}
        names: list[str] = []
        for entry in self._entries(str(folder)):
            if not entry.is_dir():
                reason = "not in a folder" if self._accepts(entry.path) else self._otherwise
                self.left_out.append(LeftOut(entry.path, reason))
            elif entry.is_symlink() and _identity(entry.path) in self._above:
                self.left_out.append(LeftOut(entry.path, "a loop of links"))
            else:
                names.append(entry.name)
        return names

    def by_class(self, folder: str | Path, names: Sequence[str]) -> Iterator[tuple[int, str]]:
        """Iterate over the files in subfolders: pairs of the subfolder's index and a file."""
        for number, name in enumerate(names):
            path, is_empty = os.path.join(folder, name), True
            for file in self.files(path):
                is_empty = False
                yield number, file
            if is_empty:
                self.left_out.append(LeftOut(path, "a class without files"))

    def matching(self, folder: str | Path, pattern: str) -> list[str]:
        """Return the files that match a pattern such as `*.txt`, ignoring case."""
        if os.path.isfile(os.path.join(folder, pattern)):
            return [os.path.join(folder, pattern)]
        letters = _LETTER.sub(
            lambda m: m[0] if m[0][0] == "[" else f"[{m[0].lower()}{m[0].upper()}]", pattern
        )
        names = glob.glob(letters, root_dir=folder, recursive=True, include_hidden=True)
        files: list[str] = []
        for name in sorted(names):
            file = os.path.join(folder, name)
            if any(map(is_hidden, Path(name).parts)):
                self.left_out.append(LeftOut(file, HIDDEN))
            elif os.path.isfile(file):
                files.append(file)
            elif not os.path.exists(file):
                self.left_out.append(LeftOut(file, "a link without target"))
        return files

    def report(self, source: object) -> None:
        """Log the number of ignored files by reason. `source` names the data."""
        counts = Counter(reason for _, reason in self.left_out)
        if counts:
            reasons = ", ".join(f"{count} {reason}" for reason, count in counts.items())
            text = f"{source}: ignored {len(self.left_out)} files: {reasons}"
            usual = HIDDEN, self._otherwise  # They need no warning.
            first = next((file for file, reason in self.left_out if reason not in usual), None)
            if first is None:
                log.info("%s", text)
            else:
                log.warning("%s; see %s", text, first)

    def _walk(self, folder: str) -> Iterator[str]:
        identity = _identity(folder)
        if identity in self._above or identity in self._read:
            loop = identity in self._above
            reason = "a loop of links" if loop else "the same folder as an earlier one"
            self.left_out.append(LeftOut(folder, reason))
            return
        self._read.add(identity)
        self._above.add(identity)
        for entry in self._entries(folder):
            if entry.is_dir():
                yield from self._walk(entry.path)
            elif self._accepts(entry.path):
                yield entry.path
            else:
                self.left_out.append(LeftOut(entry.path, self._otherwise))
        self._above.remove(identity)

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                ordered = sorted(entries, key=attrgetter("name"))
        except OSError as error:
            self.left_out.append(LeftOut(folder, f"unreadable: {error.strerror}"))
            return []
        visible: list[os.DirEntry[str]] = []
        for entry in ordered:
            if is_hidden(entry.name):
                self.left_out.append(LeftOut(entry.path, HIDDEN))
            elif entry.is_file(follow_symlinks=False):
                visible.append(entry)  # Nearly all are of this kind.
            elif entry.is_symlink() and not os.path.exists(entry.path):
                self.left_out.append(LeftOut(entry.path, "a link without target"))
            elif entry.is_file() or entry.is_dir():
                visible.append(entry)
            else:
                self.left_out.append(LeftOut(entry.path, "a pipe or a device"))
        return visible


def _identity(path: str | Path) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:  # No permission; `_entries` reports the folder.
        return -1, hash(path)
    return status.st_dev, status.st_ino
