"""Atomic writing of a checkpoint: after a crash it exists completely or not at all.

A checkpoint is written and synced under a hidden name beside its final place, and then renamed.
Removal works in reverse order: the directory gets a hidden name first.
"""

import contextlib
import ctypes
import errno
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from towerpack._core.files import fsync_dir, write_bytes_synced
from towerpack.checkpoint._layout import MANIFEST, STATE, TMP, TRASH, directory_name
from towerpack.checkpoint._manifest import Manifest, group_file
from towerpack.checkpoint.tensors import sync_and_record, write_tensors

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2


def write_checkpoint(
    directory: Path,
    manifest: Manifest,
    tensors: Mapping[str, Mapping[str, np.ndarray]],
    state: bytes,
) -> Path:
    """Write a checkpoint into `directory`, and replace an existing checkpoint of the same name."""

    def fill(folder: Path) -> bytes:
        files = {
            group_file(group): write_tensors(folder / group_file(group), arrays)
            for group, arrays in tensors.items()
        }
        write_bytes_synced(folder / STATE, state)
        files[STATE] = sync_and_record(folder / STATE)
        return replace(manifest, files=files).to_bytes()

    return publish(directory, directory_name(manifest.step, manifest.tag), fill)


def link_checkpoint(source: Path, manifest: Manifest, tag: str, info: Mapping[str, Any]) -> Path:
    """Create a tagged copy of a checkpoint, from hard links if the file system supports them."""

    def fill(folder: Path) -> bytes:
        for name in manifest.files:
            _link_or_copy(source / name, folder / name)
        return replace(manifest, tag=tag, info=info).to_bytes()

    return publish(source.parent, directory_name(manifest.step, tag), fill)


def remove_checkpoint(path: Path) -> None:
    """Rename a checkpoint so that no reader finds it, and then delete it."""
    trash = path.with_name(f"{TRASH}{path.name}-{os.getpid()}")
    shutil.rmtree(trash, ignore_errors=True)
    os.rename(path, trash)
    fsync_dir(path.parent)
    shutil.rmtree(trash)


def sweep(directory: Path) -> list[str]:
    """Delete files that killed writers left in a locked directory. Return the files' names."""
    leftovers = [e for e in directory.iterdir() if e.name.startswith((TMP, TRASH))]
    for entry in leftovers:
        shutil.rmtree(entry, ignore_errors=True)
    return [entry.name for entry in leftovers]


def publish(directory: Path, name: str, fill: Callable[[Path], bytes]) -> Path:
    """Create a checkpoint from the files that `fill` writes, and the manifest it returns."""
    final = directory / name
    folder = directory / f"{TMP}{name}-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir()
        write_bytes_synced(folder / MANIFEST, fill(folder))
        fsync_dir(folder)
        try:
            os.rename(folder, final)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            if not _exchange(folder, final):
                # Without an atomic exchange, the step has no checkpoint for an instant.
                remove_checkpoint(final)
                os.rename(folder, final)
        fsync_dir(directory)
    finally:
        # After an exchange, the folder holds the older checkpoint.
        shutil.rmtree(folder, ignore_errors=True)
    return final


def _exchange(first: Path, second: Path) -> bool:
    """Swap two directory names atomically. Return whether the system supports and did this."""
    if sys.platform != "linux":
        return False
    with contextlib.suppress(AttributeError):  # The C library lacks the function.
        rename = ctypes.CDLL(None, use_errno=True).renameat2
        names = os.fsencode(first), os.fsencode(second)
        return rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0
    return False


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # The file system has no hard links.
        shutil.copyfile(source, target)
        sync_and_record(target)
