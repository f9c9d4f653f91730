"""Names of the directories of a run's checkpoints.

checkpoints/
    step-00001234/                  a checkpoint
    best-val_error-00001000/        a tagged checkpoint; the newest valid one of a tag counts
    abandoned-step-00002000/        later than the step that a run resumed from; never loaded
    .lock  .tmp-…  .trash-…         files of the writer; the next writer removes old ones
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CHECKPOINTS: Final = "checkpoints"
MANIFEST: Final = "manifest.json"
STATE: Final = "state.json"
LOCK: Final = ".lock"
TMP: Final = ".tmp-"
TRASH: Final = ".trash-"
ABANDONED: Final = "abandoned-"

_STEP: Final = "step"
_NAME: Final = re.compile(r"(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.+-]*)-(?P<step>[0-9]{8,18})")


@dataclass(frozen=True, order=True)
class Place:
    """Step, name and path of a checkpoint directory, ordered by step (tagged ones first)."""

    step: int
    untagged: bool
    name: str
    path: Path

    @property
    def tag(self) -> str | None:
        """Tag in the directory's name ("best-val_error"), or None for `step-…`."""
        return None if self.untagged else self.name.rpartition("-")[0]


def directory_name(step: int, tag: str | None = None) -> str:
    """Return the name of a checkpoint's directory: `step-00001234`, or `TAG-00001234`."""
    return f"{_STEP if tag is None else tag_name(tag)}-{step:08d}"


def tag_name(tag: str) -> str:
    """Return a tag as part of a directory name, with `_` in place of characters such as `/`."""
    name = re.sub(r"[^A-Za-z0-9_.+-]", "_", tag).lstrip(".+-")
    if not name or name == _STEP or name.startswith(ABANDONED):
        return f"_{name}"
    return name


def place(path: Path) -> Place | None:
    """Return step and tag in the name of a checkpoint directory, or None for another name."""
    match = _NAME.fullmatch(path.name)
    if match is None or path.name.startswith(ABANDONED):
        return None
    return Place(int(match["step"]), match["tag"] == _STEP, path.name, path)


def places(directory: Path) -> list[Place]:
    """Return the subdirectories whose names are those of checkpoints, from the lowest step."""
    parsed = (place(entry) for entry in directory.iterdir() if entry.is_dir())
    return sorted(entry for entry in parsed if entry is not None)
