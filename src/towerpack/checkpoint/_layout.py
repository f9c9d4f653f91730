"""How the directories of a run's checkpoints are named.

checkpoints/
    step-00001234/                  a checkpoint
    best-val_error-00001000/        a checkpoint kept under a tag; the newest valid one counts
    abandoned-step-00002000/        lies after a step that was resumed from; never loaded
    .lock  .tmp-…  .trash-…         the writer's own; a dead writer's are removed by the next
"""

from __future__ import annotations

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
    """Where one checkpoint lies. Ordered by step; at one step the untagged one comes last."""

    step: int
    untagged: bool
    name: str
    path: Path

    @property
    def tag(self) -> str | None:
        """The directory's tag ("best-val_error"), or None for a `step-…`."""
        return None if self.untagged else self.name.rpartition("-")[0]


def directory_name(step: int, tag: str | None = None) -> str:
    """`step-00001234`, or `best-val_error-00001234` for a tag."""
    return f"{_STEP if tag is None else tag_name(tag)}-{step:08d}"


def tag_name(tag: str) -> str:
    """`tag` with everything that does not belong in a directory name made `_`."""
    name = re.sub(r"[^A-Za-z0-9_.+-]", "_", tag).lstrip(".+-")
    if not name or name == _STEP or name.startswith(ABANDONED):
        return f"_{name}"
    return name


def place(path: Path) -> Place | None:
    """The place of a checkpoint directory by its name; None for any other name."""
    match = _NAME.fullmatch(path.name)
    if match is None or path.name.startswith(ABANDONED):
        return None
    return Place(int(match["step"]), match["tag"] == _STEP, path.name, path)


def places(directory: Path) -> list[Place]:
    """All checkpoint directories in `directory` by name, oldest first; nothing is opened."""
    found = (place(entry) for entry in directory.iterdir() if entry.is_dir())
    return sorted(one for one in found if one is not None)
