"""Reading of checkpoints: finds the newest valid one.

Checkpoints may come from untrusted sources. Names are checked before they become paths, sizes
before memory is allocated, and checksums before data is used. Nothing is unpickled or executed.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np

from towerpack._core.errors import CheckpointError, StateError
from towerpack._core.logs import get_logger
from towerpack._core.naming import did_you_mean
from towerpack._core.remote_path import is_url
from towerpack.checkpoint._codec import decode_state
from towerpack.checkpoint._layout import (
    ABANDONED,
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
    CheckpointRow,
    InvalidCheckpointError,
    Manifest,
    fingerprint,
    group_file,
    parse_manifest,
    row_of,
)
from towerpack.checkpoint.tensors import Tensors, check_file, read_plain

MAX_STATE_BYTES: Final = 1 << 28
AVERAGED: Final = "ema/"  # Prefix of the names of averaged weights among optimizer variables
_PATIENCE_S: Final = 30.0
_logger = get_logger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """Valid checkpoint on disk. Each array is read from its file when it is accessed.

    Attributes:
        path: Directory of the checkpoint.
        manifest: Manifest of the checkpoint.
        tensors: Named arrays of each group ("model", "optimizer").
        state: Saved state.
    """

    path: Path
    manifest: Manifest
    tensors: Mapping[str, Tensors]
    state: Any

    @property
    def step(self) -> int:
        """Global step at which the checkpoint was saved."""
        return self.manifest.step

    @property
    def tag(self) -> str | None:
        """Tag of the checkpoint, or None."""
        return self.manifest.tag

    def group(self, name: str) -> Mapping[str, np.ndarray]:
        """Return the arrays of one group.

        Args:
            name: Name of the group, such as "model".

        Raises:
            CheckpointError: The group does not exist.
        """
        if name not in self.tensors:
            raise CheckpointError(
                f"The checkpoint {self.path} has no group {name!r}. "
                + did_you_mean(name, self.tensors),
                fix="load a checkpoint that was saved with this group",
            )
        return self.tensors[name]

    @property
    def model(self) -> Mapping[str, np.ndarray]:
        """Variables of the model by name."""
        return self.group("model")

    @property
    def optimizer(self) -> Mapping[str, np.ndarray]:
        """Variables of the optimizer by name."""
        return self.group("optimizer")

    @property
    def averaged(self) -> Mapping[str, np.ndarray]:
        """Variables of the model by name, with the averages of `WeightEMA` where they exist.

        Raises:
            CheckpointError: The checkpoint has no averages.
        """
        averages = {
            name.removeprefix(AVERAGED): arrays[name]
            for group, arrays in self.tensors.items()
            for name in arrays
            if group != "model" and name.startswith(AVERAGED)
        }
        if not averages:
            raise CheckpointError(
                f"The checkpoint {self.path} must have averages of weights, but has none.",
                fix="train with WeightEMA(optimizer, decay)",
            )
        return {name: averages.get(name, array) for name, array in self.model.items()}


def load_checkpoint(path: str | os.PathLike[str], *, tag: str | None = None) -> Checkpoint:
    """Load the newest valid checkpoint of a run, or one given checkpoint.

    Before loading, the checksum of every file is verified. If `path` is a run, invalid checkpoints
    are skipped, and a warning gives the reason for each.

    Args:
        path: Run directory, its `checkpoints` directory, or one checkpoint. May be a URL.
        tag: Load the newest checkpoint with this tag, such as "best-val/error". If None, the newest
            valid `step-…` checkpoint is loaded, or the newest tagged one if there is none.

    Raises:
        CheckpointError: No valid checkpoint exists.
    """
    if is_url(path):
        from towerpack.checkpoint.remote_copies import local_checkpoint

        path, tag = local_checkpoint(str(path), tag), None
    where = Path(path)
    if tag is None and (place(where) is not None or (where / MANIFEST).exists()):
        try:
            return _read(where, expected=None)
        except InvalidCheckpointError as problem:
            raise CheckpointError(
                f"{where} is not a valid checkpoint: {problem}.",
                fix="pass the run directory instead, to load its newest valid checkpoint",
            ) from problem
    directory = find_directory(where)
    give_up_at = time.monotonic() + _PATIENCE_S
    while True:
        before = _directory_version(directory)
        checkpoint, skipped = _newest_valid(directory, tag)
        # If a writer has changed the directory meanwhile, skipped checkpoints may now be complete
        # and new ones may exist, so look again.
        settled = _directory_version(directory) == before or time.monotonic() > give_up_at
        if checkpoint is not None and (settled or not skipped):
            for candidate, problem in skipped:
                if candidate.path.exists():
                    _logger.warning("Skipped checkpoint %s: %s.", candidate.path, problem)
            return checkpoint
        if checkpoint is None and settled:
            raise _nothing_valid(directory, tag, skipped)


def list_checkpoints(
    path: str | os.PathLike[str], *, checksums: bool = True
) -> list[CheckpointRow]:
    """Return all checkpoints of a run, valid or not, oldest first.

    Args:
        path: Run directory or its `checkpoints` directory. May be a URL.
        checksums: Whether to verify the checksum of every file. If False, only names, sizes and
        structure are checked. This is fast, but does not detect changed bytes.

    Raises:
        CheckpointError: The path is not a directory with checkpoints.
    """
    if is_url(path):
        from towerpack.checkpoint.remote_copies import list_remote

        return list_remote(str(path), checksums=checksums)
    rows = (_row(entry, checksums) for entry in places(find_directory(Path(path))))
    return [row for row in rows if row is not None]


def list_abandoned(path: str | os.PathLike[str]) -> list[Path]:
    """Return the checkpoints that a resumed or rewound run has left behind, and never loads.

    Args:
        path: Run directory or its `checkpoints` directory.

    Raises:
        CheckpointError: The path has no directory of checkpoints.
    """
    return sorted(find_directory(Path(path)).glob(f"{ABANDONED}*"))


def find_directory(where: Path) -> Path:
    """Return the directory that contains the checkpoints: `where`, or `where/checkpoints`."""
    if (where / CHECKPOINTS).is_dir():
        return where / CHECKPOINTS
    if where.is_dir() and (where.name == CHECKPOINTS or (where / LOCK).exists() or places(where)):
        return where
    reason = "contains no checkpoints" if where.is_dir() else "is not a directory"
    raise CheckpointError(
        f"{where} {reason if where.exists() else 'does not exist'}.",
        expected=f"a run directory, its '{CHECKPOINTS}' directory, or one checkpoint in it",
        fix="check the path, or let the run save a checkpoint first",
    )


def check(path: Path, *, checksums: bool, expected: Place | None = None) -> Manifest:
    manifest, _ = _open(path, checksums=checksums, expected=expected)
    return manifest


def _open(
    path: Path, *, checksums: bool, expected: Place | None
) -> tuple[Manifest, dict[str, Tensors]]:
    manifest = parse_manifest(read_plain(path / MANIFEST, limit=MAX_MANIFEST_BYTES))
    if expected is not None and manifest.step != expected.step:
        raise InvalidCheckpointError(f"its manifest is for step {manifest.step}")
    # Open the tensors first, so that the checked files are the files that are read later.
    for name, record in manifest.files.items():
        check_file(path / name, record, checksum=False)
    tensors = {group: Tensors(path / group_file(group)) for group in manifest.groups}
    if checksums:
        for name, record in manifest.files.items():
            check_file(path / name, record, checksum=True)
    specs = {group: arrays.specs for group, arrays in tensors.items()}
    if fingerprint(specs) != manifest.fingerprint:
        raise InvalidCheckpointError("its tensors do not match the manifest")
    return manifest, tensors


def _read(path: Path, *, expected: Place | None) -> Checkpoint:
    manifest, tensors = _open(path, checksums=True, expected=expected)
    data = read_plain(path / STATE, limit=MAX_STATE_BYTES)
    # Unlike the tensors, the state is opened again, and a writer may have replaced it meanwhile.
    if sha256(data).hexdigest() != manifest.files[STATE].sha256:
        raise InvalidCheckpointError(f"{STATE} was replaced while the checkpoint was read")
    try:
        state = decode_state(data)
    except StateError as error:
        raise InvalidCheckpointError(f"{STATE}: {error.what}") from error
    return Checkpoint(path, manifest, tensors, state)


def _newest_valid(
    directory: Path, tag: str | None
) -> tuple[Checkpoint | None, list[tuple[Place, str]]]:
    entries = places(directory)[::-1]
    if tag is None:
        entries.sort(key=lambda entry: not entry.untagged)
    else:
        entries = [entry for entry in entries if entry.tag == tag_name(tag)]
    skipped: list[tuple[Place, str]] = []
    for candidate in entries:
        try:
            return _read(candidate.path, expected=candidate), skipped
        except InvalidCheckpointError as problem:
            skipped.append((candidate, str(problem)))
    return None, skipped


def _directory_version(directory: Path) -> tuple[int, list[str]]:
    """Return modification time and file names of a directory. Any change of a file changes one."""
    return directory.stat().st_mtime_ns, sorted(os.listdir(directory))


def _nothing_valid(
    directory: Path, tag: str | None, skipped: list[tuple[Place, str]]
) -> CheckpointError:
    rows = [f"{candidate.name}: {problem}" for candidate, problem in skipped[:20]]
    if len(skipped) > len(rows):
        rows.append(f"… and {len(skipped) - len(rows)} more")
    tags = sorted({entry.tag for entry in places(directory) if entry.tag is not None})
    hint = f"; existing tags: {', '.join(tags[:12])}" if tag is not None and tags else ""
    return CheckpointError(
        f"{directory} contains no valid checkpoint{'' if tag is None else f' tagged {tag!r}'}.",
        got="\n".join(rows) or f"no checkpoint at all{hint}",
        expected="at least one valid checkpoint",
        fix="pass the directory of a run that saved checkpoints (with a ModelSaver) and one of its "
        "tags; or set resume='never' to train from scratch",
    )


def _row(entry: Place, checksums: bool) -> CheckpointRow | None:
    row = row_of(entry, lambda entry: check(entry.path, checksums=checksums, expected=entry))
    try:
        nbytes = sum(file.lstat().st_size for file in entry.path.iterdir())
    except FileNotFoundError:
        return None  # The writer has removed the checkpoint meanwhile.
    return replace(row, nbytes=nbytes)
