"""The manifest: what a checkpoint must contain, so that anything else is noticed.

`manifest.json` is canonical JSON with a checksum over itself; a file that is not byte for byte what
we would write for its content is refused. It is written last, so a directory without one is not a
checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from towerpack._core.versions import library_versions
from towerpack.checkpoint._layout import STATE

FORMAT: Final = "towerpack-checkpoint"
VERSION: Final = 1
MAX_MANIFEST_BYTES: Final = 1 << 20
_GROUP: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_SUFFIX: Final = ".safetensors"

Specs = dict[str, tuple[tuple[int, ...], str]]
"""Name to (shape, dtype name), for the tensors of one group."""


class InvalidCheckpointError(Exception):
    """Why something is not a valid checkpoint: one phrase. Internal; readers collect these."""


@dataclass(frozen=True)
class FileRecord:
    """One file of a checkpoint."""

    nbytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The parsed manifest of one checkpoint.

    Attributes:
        step: The global step that it was taken after.
        tag: None, or the name under which it is kept, such as "best-val/error".
        saved_at: Seconds since 1970, when the save was asked for.
        fingerprint: Digest of every group's tensor names, shapes and dtypes.
        versions: Of Python, Towerpack and the libraries installed when it was written.
        info: What the caller wanted to have noted, such as a score; small.
        files: What the directory holds besides the manifest.
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
        """Size of all files, the manifest aside."""
        return sum(record.nbytes for record in self.files.values())

    def to_bytes(self) -> bytes:
        """The canonical text."""
        tree: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "step": self.step,
            "tag": self.tag,
            "saved_at": self.saved_at,
            "fingerprint": self.fingerprint,
            "files": {
                name: {"nbytes": record.nbytes, "sha256": record.sha256}
                for name, record in self.files.items()
            },
            "versions": dict(self.versions),
            "info": dict(self.info),
        }
        return _canonical(tree)


def group_file(group: str) -> str:
    """`model.safetensors` for `model`."""
    return group + _SUFFIX


def is_group(name: str) -> bool:
    """Whether `name` may name a group of tensors."""
    return _GROUP.fullmatch(name) is not None


def parse_manifest(data: bytes) -> Manifest:
    """Read and check a manifest; nothing else is opened."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidCheckpointError(f"manifest.json is not JSON ({error})") from error
    if not isinstance(tree, dict):
        raise InvalidCheckpointError("manifest.json is not an object")
    fields = cast("dict[str, Any]", tree)
    if fields.get("format") != FORMAT:
        raise InvalidCheckpointError(f"manifest.json has the format {fields.get('format')!r:.40}")
    if fields.get("version") != VERSION:
        raise InvalidCheckpointError(
            f"manifest.json has the format version {fields.get('version')!r:.40}; "
            f"this Towerpack reads version {VERSION}"
        )
    claimed = fields.pop("checksum", None)
    if _canonical(fields) != data:
        raise InvalidCheckpointError(
            f"manifest.json is damaged (its checksum {claimed!r:.20} does not fit)"
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
    # The name is joined to a path later: only names that we could have written pass.
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
    """A digest of the structure: groups, names, shapes and dtypes, whatever their order."""
    rows = sorted(
        (group, name, list(shape), dtype)
        for group, specs in groups.items()
        for name, (shape, dtype) in specs.items()
    )
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()
