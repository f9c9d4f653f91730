"""Which files of a folder are used, and why others are left out: one rule for all readers."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from towerpack._core.logs import get_logger
from towerpack.dataflow.images._headers import MAGIC_BYTES, begins_like_image

_LOG = get_logger(__name__)

IMAGE_EXTENSIONS: Final = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
ANNOTATION_EXTENSIONS: Final = (".xml", ".txt", ".json")
TEXT_EXTENSIONS: Final = (".txt", ".text", ".md", ".markdown", ".rst")

# Files of cameras begin like a TIFF file, but OpenCV only finds a thumbnail in them.
_RAW_EXTENSIONS: Final = (".dng", ".cr2", ".nef", ".arw", ".pef", ".srw")
_HIDDEN_NAMES: Final = {"__macosx", "thumbs.db", "desktop.ini", "@eadir", "$recycle.bin"}
_HIDDEN: Final = "hidden"
_LOOP: Final = "a link to a folder that was read before or contains the link"
_BESIDE: Final = "read by another reader"
_TEXT_BYTES: Final = 1024


class LeftOut(NamedTuple):
    """A file or folder that is not used, and the reason."""

    file: str
    why: str


Refusal = Callable[[str], str | None]
"""Return the reason why a file cannot be used, or `None` if it can. It may raise `OSError`."""


def not_an_image(file: str) -> str | None:
    """Accept image files by a known extension, and others by their first bytes."""
    name = file.lower()
    if name.endswith(IMAGE_EXTENSIONS):
        return None
    if not name.endswith(_RAW_EXTENSIONS) and begins_like_image(_start(file, MAGIC_BYTES)):
        return None
    return "not a JPEG, PNG, WebP, GIF, BMP or TIFF file"


def not_a_text(file: str) -> str | None:
    """Accept text files by extension, and files without extension that contain no null bytes."""
    extension = os.path.splitext(file)[1].lower()
    if extension in TEXT_EXTENSIONS:
        return None
    if extension in ("", ".") and b"\0" not in _start(file, _TEXT_BYTES):
        return None
    return f"not a text file ({', '.join(TEXT_EXTENSIONS)}, or no extension)"


def named(*extensions: str) -> Refusal:
    """Accept files with one of these extensions, in lower case."""
    why = f"not a file named *{', *'.join(extensions)}"
    return lambda file: None if file.lower().endswith(extensions) else why


def is_hidden(name: str) -> bool:
    """Whether programs or operating systems leave such files without the user's knowledge."""
    return name.startswith(".") or name.lower() in _HIDDEN_NAMES


def discover(
    folder: str | os.PathLike[str], refusal: Refusal, left_out: list[LeftOut]
) -> Iterator[str]:
    """Iterate over the files below a folder that are used, in the order of their names.

    Links to folders are followed, but each folder is read only once. Links to a folder that
    contains them are left out, like hidden files, broken links, pipes and devices.

    Args:
        folder: Where to start.
        refusal: Which files can be used.
        left_out: Receives the other files and the reasons.
    """
    path = os.fspath(folder)
    real = os.path.realpath(path)
    return _walk(path, real, refusal, left_out, {real})


def folders_in(root: str | os.PathLike[str], left_out: list[LeftOut], why: str) -> list[str]:
    """Return the names of the folders in a folder, sorted. Files in it are left out for `why`."""
    names: list[str] = []
    real = os.path.realpath(root)
    for entry in _entries(os.fspath(root)):
        if is_hidden(entry.name):
            left_out.append(LeftOut(entry.path, _HIDDEN))
        elif entry.is_file(follow_symlinks=False) or not os.path.isdir(entry.path):
            left_out.append(LeftOut(entry.path, why_not_read(entry.path) or why))
        elif _contains(os.path.realpath(entry.path), real):
            left_out.append(LeftOut(entry.path, _LOOP))
        else:
            names.append(entry.name)
    return names


def summary(left_out: Sequence[LeftOut]) -> str:
    """Return how many files were left out for each reason, for messages."""
    counts = Counter(one.why for one in left_out)
    reasons = ", ".join(f"{count} {why}" for why, count in counts.most_common())
    return f"{len(left_out)} files" + (f": {reasons}" if reasons else "")


def log_left_out(folder: object, left_out: Sequence[LeftOut]) -> None:
    """Log how many files were left out."""
    if left_out:
        _LOG.info("%s: left out %s", folder, summary(left_out))


def files_in(
    folder: str | os.PathLike[str], refusal: Refusal, beside: tuple[str, ...] = ()
) -> list[str]:
    """Return the files below a folder that are used, sorted. Log how many were left out.

    Args:
        folder: Where to start.
        refusal: Which files can be used.
        beside: Extensions of files that other readers use, which are not logged.
    """
    left_out: list[LeftOut] = []

    def refusal_here(file: str) -> str | None:
        why = refusal(file)
        return _BESIDE if why and file.lower().endswith(beside) else why

    files = sorted(discover(folder, refusal_here, left_out))
    log_left_out(folder, [one for one in left_out if one.why != _BESIDE])
    return files


def _walk(
    folder: str, real: str, refusal: Refusal, left_out: list[LeftOut], visited: set[str]
) -> Iterator[str]:
    try:
        entries = _entries(folder)
    except OSError as error:
        left_out.append(LeftOut(folder, f"cannot be read: {error.strerror}"))
        return
    for entry in entries:
        why = _HIDDEN if is_hidden(entry.name) else None
        if why is None and not entry.is_file(follow_symlinks=False):
            if os.path.isdir(entry.path):
                target = os.path.realpath(entry.path)
                if target not in visited and not _contains(target, real):
                    visited.add(target)
                    yield from _walk(entry.path, target, refusal, left_out, visited)
                    continue
                why = _LOOP
            else:
                why = why_not_read(entry.path)
        try:
            why = why or refusal(entry.path)
        except OSError as error:
            why = f"cannot be read: {error.strerror}"
        if why is None:
            yield entry.path
        else:
            left_out.append(LeftOut(entry.path, why))


def _contains(folder: str, other: str) -> bool:
    return f"{other}{os.sep}".startswith(f"{folder.rstrip(os.sep)}{os.sep}")


def _entries(folder: str) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return sorted(entries, key=lambda entry: entry.name)


def why_not_read(path: str) -> str | None:
    """Return why something that is no folder cannot be opened as a file."""
    if os.path.isfile(path):
        return None
    return "a pipe or a device" if os.path.exists(path) else "a broken link"


def _start(file: str, size: int) -> bytes:
    with open(file, "rb") as opened:
        return opened.read(size)
