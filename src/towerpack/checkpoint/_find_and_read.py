"""Reading: the newest checkpoint that is valid, and what was passed over.

A checkpoint is data from a stranger: names are checked before they become paths, sizes before they
become memory, checksums before anything is believed. Nothing is unpickled or executed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np

from towerpack._core.errors import CheckpointError, StateError
from towerpack._core.logs import get_logger
from towerpack._core.naming import did_you_mean
from towerpack.checkpoint._codec import decode_state
from towerpack.checkpoint._layout import (
    CHECKPOINTS,
    LOCK,
    MANIFEST,
    STATE,
    Place,
    place,
    places,
    tag_name,
)
from towerpack.checkpoint._manifest import (
    MAX_MANIFEST_BYTES,
    InvalidCheckpointError,
    Manifest,
    fingerprint,
    group_file,
    parse_manifest,
)
from towerpack.checkpoint.tensors import Tensors, check_file, read_plain

MAX_STATE_BYTES: Final = 1 << 28
AVERAGED: Final = "ema/"  # Begins the names under which optimizers keep averages of weights
_PATIENCE_S: Final = 30.0
_logger = get_logger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """One valid checkpoint.

    Attributes:
        path: Its directory.
        manifest: What it says about itself.
        tensors: Groups ("model", "optimizer") of named arrays, which are read when asked for.
        state: The state that was saved with it.
    """

    path: Path
    manifest: Manifest
    tensors: Mapping[str, Tensors]
    state: Any

    @property
    def step(self) -> int:
        """The global step that it was taken after."""
        return self.manifest.step

    @property
    def tag(self) -> str | None:
        """The name under which it is kept, if it is."""
        return self.manifest.tag

    def group(self, name: str) -> Mapping[str, np.ndarray]:
        """The arrays of one group.

        Raises:
            CheckpointError: There is no such group.
        """
        if name not in self.tensors:
            raise CheckpointError(
                f"The checkpoint {self.path} has no group {name!r}. "
                + did_you_mean(name, self.tensors),
                fix="load a checkpoint that was saved with it",
            )
        return self.tensors[name]

    @property
    def model(self) -> Mapping[str, np.ndarray]:
        """The model's variables by name."""
        return self.group("model")

    @property
    def optimizer(self) -> Mapping[str, np.ndarray]:
        """The optimizer's variables by name."""
        return self.group("optimizer")

    @property
    def averaged(self) -> Mapping[str, np.ndarray]:
        """The model's variables by name, with the averages of those of which `WeightEMA` has some.

        Raises:
            CheckpointError: There are none.
        """
        groups = [arrays for name, arrays in self.tensors.items() if name != "model"]
        found = {
            name.removeprefix(AVERAGED): arrays[name]
            for arrays in groups
            for name in arrays
            if name.startswith(AVERAGED)
        }
        if not found:
            raise CheckpointError(
                f"The checkpoint {self.path} has no averages of weights.",
                fix="train with WeightEMA(optimizer, decay)",
            )
        return {name: found.get(name, array) for name, array in self.model.items()}


@dataclass(frozen=True, kw_only=True)
class CheckpointRow:
    """What `list_checkpoints` says of one directory.

    Attributes:
        step: From the directory's name.
        tag: None for a `step-…`.
        path: The directory.
        nbytes: Size on disk of what is there; hard-linked files count in full.
        saved_at: Seconds since 1970; None where there is no readable manifest.
        info: What the caller of `save` had noted.
        problem: None if it is valid, or else why not.
    """

    step: int
    tag: str | None
    path: Path
    nbytes: int
    saved_at: float | None
    info: Mapping[str, Any]
    problem: str | None

    @property
    def valid(self) -> bool:
        """Whether it can be loaded (as far as was checked)."""
        return self.problem is None


def load_checkpoint(path: str | os.PathLike[str], *, tag: str | None = None) -> Checkpoint:
    """Load a run's newest valid checkpoint, or one given checkpoint.

    Every file is checked against its checksum first. Checkpoints that are passed over are logged as
    warnings with the reason. Arrays are read when asked for.

    Args:
        path: A run directory, its `checkpoints` directory, or one checkpoint.
        tag: Take the newest checkpoint kept under this tag, such as "best-val/error". Without a
            tag, `step-…` checkpoints come first, newest first, then tagged ones.

    Raises:
        CheckpointError: There is nothing valid; the message lists what was found.
    """
    where = Path(path)
    if tag is None and (place(where) is not None or (where / MANIFEST).exists()):
        return _load_one(where)
    directory = find_directory(where)
    give_up_at = time.monotonic() + _PATIENCE_S
    while True:
        before = _directory_version(directory)
        checkpoint, passed_over = _newest_valid(directory, tag)
        # A writer may have removed or replaced what was listed: then look again, for what was
        # passed over may be whole, and what was not listed may be there.
        settled = _directory_version(directory) == before or time.monotonic() > give_up_at
        if checkpoint is not None and (settled or not passed_over):
            _warn(passed_over)
            return checkpoint
        if checkpoint is None and settled:
            raise _nothing_valid(directory, tag, passed_over)


def list_checkpoints(
    path: str | os.PathLike[str], *, checksums: bool = True
) -> list[CheckpointRow]:
    """Every checkpoint of a run, valid or not, oldest first.

    Args:
        path: A run directory or its `checkpoints` directory.
        checksums: Read every file to the end. Without, only names, sizes and structure are
            checked, which is fast and finds all but flipped bits.

    Raises:
        CheckpointError: `path` holds no checkpoints directory.
    """
    rows = (_row(one, checksums) for one in places(find_directory(Path(path))))
    return [row for row in rows if row is not None]


def find_directory(where: Path) -> Path:
    """The directory of checkpoints that `where` is or holds."""
    if (where / CHECKPOINTS).is_dir():
        return where / CHECKPOINTS
    if where.is_dir() and (where.name == CHECKPOINTS or (where / LOCK).exists() or places(where)):
        return where
    if not where.exists():
        got = "nothing there"
    elif not where.is_dir():
        got = "a file"
    else:
        got = "a directory with " + (_names(sorted(os.listdir(where))) or "nothing in it")
    raise CheckpointError(
        f"No checkpoints at {where}.",
        got=got,
        expected=f"a run directory, its '{CHECKPOINTS}' directory, or one checkpoint in it",
        fix="check the path, or let the run save a checkpoint first",
    )


def check(path: Path, *, checksums: bool, expected: Place | None = None) -> Manifest:
    """Check one checkpoint directory without keeping anything of it but the manifest."""
    manifest, _ = _open(path, checksums=checksums, expected=expected)
    return manifest


def _open(
    path: Path, *, checksums: bool, expected: Place | None
) -> tuple[Manifest, dict[str, Tensors]]:
    manifest = parse_manifest(read_plain(path / MANIFEST, limit=MAX_MANIFEST_BYTES))
    if expected is not None and manifest.step != expected.step:
        raise InvalidCheckpointError(f"its manifest is of step {manifest.step}")
    # Opened first: what is checked then is what will be read.
    for name, record in manifest.files.items():
        check_file(path / name, record, checksum=False)
    tensors = {group: _tensors(path / group_file(group)) for group in manifest.groups}
    if checksums:
        for name, record in manifest.files.items():
            check_file(path / name, record, checksum=True)
    if fingerprint({group: held.specs for group, held in tensors.items()}) != manifest.fingerprint:
        raise InvalidCheckpointError("its tensors are not those that the manifest was made for")
    return manifest, tensors


def _tensors(path: Path) -> Tensors:
    try:
        return Tensors(path)
    except OSError as error:
        raise InvalidCheckpointError(
            f"{path.name} cannot be read ({error.strerror or error})"
        ) from error


def _read(path: Path, *, expected: Place | None) -> Checkpoint:
    manifest, tensors = _open(path, checksums=True, expected=expected)
    data = read_plain(path / STATE, limit=MAX_STATE_BYTES)
    # Unlike the tensors it is opened again: a writer may have replaced the checkpoint meanwhile.
    if sha256(data).hexdigest() != manifest.files[STATE].sha256:
        raise InvalidCheckpointError(f"{STATE} was replaced while the checkpoint was read")
    try:
        state = decode_state(data)
    except StateError as error:
        raise InvalidCheckpointError(f"{STATE}: {error.what}") from error
    return Checkpoint(path, manifest, tensors, state)


def _load_one(path: Path) -> Checkpoint:
    try:
        return _read(path, expected=None)
    except InvalidCheckpointError as problem:
        raise CheckpointError(
            f"{path} is not a valid checkpoint: {problem}.",
            fix="give the run directory instead, to load its newest valid checkpoint",
        ) from problem


def _newest_valid(
    directory: Path, tag: str | None
) -> tuple[Checkpoint | None, list[tuple[Place, str]]]:
    """The newest valid checkpoint, and what is newer with the reason why it is not valid."""
    passed_over: list[tuple[Place, str]] = []
    for candidate in _candidates(directory, tag):
        try:
            return _read(candidate.path, expected=candidate), passed_over
        except InvalidCheckpointError as problem:
            passed_over.append((candidate, str(problem)))
    return None, passed_over


def _directory_version(directory: Path) -> tuple[int, list[str]]:
    """Time of change and names of a directory, one of which changes when a writer acts in it."""
    return directory.stat().st_mtime_ns, sorted(os.listdir(directory))


def _candidates(directory: Path, tag: str | None) -> list[Place]:
    found = places(directory)[::-1]
    if tag is not None:
        return [one for one in found if one.tag == tag_name(tag)]
    return [one for one in found if one.untagged] + [one for one in found if not one.untagged]


def _warn(passed_over: list[tuple[Place, str]]) -> None:
    for candidate, problem in passed_over:
        if candidate.path.exists():
            _logger.warning("Passed over checkpoint %s: %s.", candidate.path, problem)


def _nothing_valid(
    directory: Path, tag: str | None, passed_over: list[tuple[Place, str]]
) -> CheckpointError:
    rows = [f"{candidate.name}: {problem}" for candidate, problem in passed_over[:20]]
    if len(passed_over) > len(rows):
        rows.append(f"… and {len(passed_over) - len(rows)} more")
    of_tag = "" if tag is None else f" tagged {tag!r}"
    rows_there = [_row(one, checksums=False) for one in places(directory)]
    others = sorted({row.tag for row in rows_there if row is not None and row.tag is not None})
    hint = f"; tags there: {_names(others)}" if tag is not None and others else ""
    return CheckpointError(
        f"No valid checkpoint{of_tag} in {directory}.",
        got="\n".join(rows) or f"no checkpoint{of_tag} at all{hint}",
        expected="at least one whole checkpoint",
        fix="name the directory of a run that has saved (with a ModelSaver), or one of its tags; a "
        "training starts anew with resume='never'",
    )


def _row(one: Place, checksums: bool) -> CheckpointRow | None:
    manifest, problem = None, None
    try:
        manifest = check(one.path, checksums=checksums, expected=one)
    except InvalidCheckpointError as error:
        problem = str(error)
    try:
        nbytes = sum(entry.lstat().st_size for entry in one.path.iterdir())
    except FileNotFoundError:
        return None  # Removed by its writer while we looked.
    return CheckpointRow(
        step=one.step,
        tag=one.tag if manifest is None else manifest.tag,
        path=one.path,
        nbytes=nbytes,
        saved_at=None if manifest is None else manifest.saved_at,
        info={} if manifest is None else manifest.info,
        problem=problem,
    )


def _names(names: list[str]) -> str:
    shown = ", ".join(names[:12])
    return shown + (f" and {len(names) - 12} more" if len(names) > 12 else "")
