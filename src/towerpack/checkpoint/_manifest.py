"""Manifest of a checkpoint: the files that it must contain, with sizes and checksums.

`manifest.json` is canonical JSON with a checksum of itself. A manifest that differs by one byte
from the canonical form of its content is refused. The manifest is written last, so a directory
without one is not a checkpoint.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from towerpack._core.versions import library_versions
from towerpack.checkpoint._layout import STATE, Place

FORMAT: Final = "towerpack-checkpoint"
VERSION: Final = 1
MAX_MANIFEST_BYTES: Final = 1 << 20
_GROUP: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_SUFFIX: Final = ".safetensors"

Specs = dict[str, tuple[tuple[int, ...], str]]
"""Shape and dtype name of each tensor of a group."""


class InvalidCheckpointError(Exception):
    """Internal error for an invalid checkpoint, with the reason as its message."""


@dataclass(frozen=True)
class FileRecord:
    """Size and checksum of one file of a checkpoint."""

    nbytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Content of the manifest of a checkpoint.

    Attributes:
        step: Global step at which the checkpoint was saved.
        tag: Tag such as "best-val/error", or None.
        saved_at: Time of the save, in seconds since 1970.
        fingerprint: Digest of the names, shapes and dtypes of all tensors.
        versions: Versions of Python, Towerpack and its libraries.
        info: Values that the caller of `save` added, such as a score.
        files: Size and checksum of each file except the manifest.
    """

    step: int
    tag: str | None
    saved_at: float
    fingerprint: str
    files: Mapping[str, FileRecord]
    versions: Mapping[str, str] = field(default_factory=library_versions)
    info: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the tensor groups, such as ("model", "optimizer")."""
        return tuple(name.removesuffix(_SUFFIX) for name in self.files if name.endswith(_SUFFIX))

    @property
    def nbytes(self) -> int:
        """Total size of the files in bytes, without the manifest."""
        return sum(record.nbytes for record in self.files.values())

    def to_bytes(self) -> bytes:
        """Return the canonical JSON text."""
        return _canonical({"format": FORMAT, "version": VERSION, **asdict(self)})


@dataclass(frozen=True, kw_only=True)
class CheckpointRow:
    """Properties of one checkpoint directory, as returned by `list_checkpoints`.

    Attributes:
        step: Step in the directory's name.
        tag: Tag, or None for `step-…`.
        path: Path of the directory.
        nbytes: Size on disk in bytes. Files that several checkpoints share count in each.
        saved_at: Time of the save in seconds since 1970, or None if the manifest is not readable.
        info: Values that the caller of `save` added.
        problem: Reason why the checkpoint is not valid, or None.
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
        """Whether `list_checkpoints` found no problem in the checkpoint."""
        return self.problem is None


def row_of(entry: Place, examine: Callable[[Place], Manifest]) -> CheckpointRow:
    """Return the properties of a checkpoint. `examine` checks it and returns its manifest."""
    manifest, problem = None, None
    try:
        manifest = examine(entry)
    except InvalidCheckpointError as error:
        problem = str(error)
    return CheckpointRow(
        step=entry.step,
        tag=entry.tag if manifest is None else manifest.tag,
        path=entry.path,
        nbytes=0 if manifest is None else manifest.nbytes,
        saved_at=None if manifest is None else manifest.saved_at,
        info={} if manifest is None else manifest.info,
        problem=problem,
    )


def group_file(group: str) -> str:
    return group + _SUFFIX


def is_group(name: str) -> bool:
    return _GROUP.fullmatch(name) is not None


def parse_manifest(data: bytes) -> Manifest:
    """Parse and check a manifest. Raise `InvalidCheckpointError` if it is not valid."""
    try:
        fields: dict[str, Any] = dict(json.loads(data))
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidCheckpointError(f"manifest.json is not a JSON object ({error})") from error
    name, version = fields.get("format"), fields.get("version")
    if (name, version) != (FORMAT, VERSION):
        raise InvalidCheckpointError(
            f"manifest.json has the format {name!r:.40} of version {version!r:.40}; this Towerpack "
            f"reads {FORMAT!r} of version {VERSION}"
        )
    claimed = fields.pop("checksum", None)
    if _canonical(fields) != data:
        raise InvalidCheckpointError(
            f"manifest.json is damaged (its checksum {claimed!r:.20} does not match)"
        )
    try:
        files = {name: _file_record(name, record) for name, record in fields["files"].items()}
        if STATE not in files:
            raise InvalidCheckpointError(f"manifest.json does not list {STATE}")
        tag = fields["tag"]
        return Manifest(
            step=int(fields["step"]),
            tag=None if tag is None else str(tag),
            saved_at=float(fields["saved_at"]),
            fingerprint=str(fields["fingerprint"]),
            files=files,
            versions={str(key): str(value) for key, value in fields["versions"].items()},
            info=dict(fields["info"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidCheckpointError(f"manifest.json lacks or misuses {error}") from error


def _file_record(name: str, record: dict[str, Any]) -> FileRecord:
    # The name becomes part of a path later, so accept only names that the writer uses.
    if name != STATE and not (name.endswith(_SUFFIX) and is_group(name.removesuffix(_SUFFIX))):
        raise InvalidCheckpointError(
            f"manifest.json names a file {name!r:.60}, which no checkpoint has"
        )
    return FileRecord(int(record["nbytes"]), str(record["sha256"]))


def _canonical(tree: dict[str, Any]) -> bytes:
    body = json.dumps(tree, sort_keys=True, allow_nan=False)
    checksum = hashlib.sha256(body.encode()).hexdigest()
    return json.dumps({**tree, "checksum": checksum}, indent=1, allow_nan=False).encode() + b"\n"


def fingerprint(groups: Mapping[str, Specs]) -> str:
    """Return a hash of the names, shapes and dtypes of all tensors, independent of their order."""
    rows = sorted(
        (group, name, list(shape), dtype)
        for group, specs in groups.items()
        for name, (shape, dtype) in specs.items()
    )
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()
