"""Writing one checkpoint so that it is there whole or not at all, whenever the process is killed.

Everything is written and synced under a hidden name beside its place and then renamed. Removing
works the other way round: renamed to a hidden name first.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from towerpack._core.files import fsync_dir, write_bytes_synced
from towerpack.checkpoint._layout import MANIFEST, STATE, TMP, TRASH, directory_name
from towerpack.checkpoint._manifest import Manifest, Specs, fingerprint, group_file
from towerpack.checkpoint.tensors import sync_and_record, write_tensors

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2


@dataclass(frozen=True, kw_only=True)
class Content:
    """All that a checkpoint will hold, ready to be written without asking anybody."""

    step: int
    tag: str | None
    saved_at: float
    tensors: Mapping[str, Mapping[str, np.ndarray]]
    specs: Mapping[str, Specs]
    state: bytes
    info: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def nbytes(self) -> int:
        """About how much room it takes."""
        arrays = (array for group in self.tensors.values() for array in group.values())
        return sum(array.nbytes for array in arrays) + len(self.state)


def write_checkpoint(directory: Path, content: Content) -> Path:
    """Write one checkpoint into `directory`, in place of an older one of that name."""

    def fill(folder: Path) -> Manifest:
        files = {
            group_file(group): write_tensors(folder / group_file(group), tensors)
            for group, tensors in content.tensors.items()
        }
        write_bytes_synced(folder / STATE, content.state)
        return Manifest(
            step=content.step,
            tag=content.tag,
            saved_at=content.saved_at,
            fingerprint=fingerprint(content.specs),
            files={**files, STATE: sync_and_record(folder / STATE)},
            info=content.info,
        )

    return _publish(directory, directory_name(content.step, content.tag), fill)


def link_checkpoint(source: Path, manifest: Manifest, tag: str, info: Mapping[str, Any]) -> Path:
    """Keep a copy of a checkpoint under a tag, sharing its files where the disk allows it."""

    def fill(folder: Path) -> Manifest:
        for name in manifest.files:
            _link_or_copy(source / name, folder / name)
        return replace(manifest, tag=tag, info=info)

    return _publish(source.parent, directory_name(manifest.step, tag), fill)


def remove_checkpoint(path: Path) -> None:
    """Remove a checkpoint: at once for every reader, then from the disk."""
    trash = path.with_name(f"{TRASH}{path.name}-{os.getpid()}")
    shutil.rmtree(trash, ignore_errors=True)
    os.rename(path, trash)
    fsync_dir(path.parent)
    shutil.rmtree(trash)


def sweep(directory: Path) -> list[str]:
    """Remove what killed writers left and say what it was; only for who holds the lock."""
    left = [e for e in directory.iterdir() if e.name.startswith((TMP, TRASH))]
    for entry in left:
        shutil.rmtree(entry, ignore_errors=True)
    return [entry.name for entry in left]


def _publish(directory: Path, name: str, fill: Callable[[Path], Manifest]) -> Path:
    final = directory / name
    folder = directory / f"{TMP}{name}-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir()
        manifest = fill(folder)
        write_bytes_synced(folder / MANIFEST, manifest.to_bytes())
        fsync_dir(folder)
        _move_into_place(folder, final)
        fsync_dir(directory)
    finally:
        # Gone after success, unless it was exchanged for an older one, which then lies there.
        shutil.rmtree(folder, ignore_errors=True)
    return final


def _move_into_place(folder: Path, final: Path) -> None:
    try:
        os.rename(folder, final)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if not _exchange(folder, final):
            # Not in one step, then; for an instant this step has no checkpoint.
            remove_checkpoint(final)
            os.rename(folder, final)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step (Linux's `renameat2`); False where that cannot be done."""
    if sys.platform != "linux":
        return False
    with contextlib.suppress(AttributeError):  # A C library without the call.
        rename = ctypes.CDLL(None, use_errno=True).renameat2
        names = os.fsencode(one), os.fsencode(other)
        return rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0
    return False


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # No hard links here.
        shutil.copyfile(source, target)
        sync_and_record(target)
