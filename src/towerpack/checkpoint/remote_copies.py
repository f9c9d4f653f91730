"""Local copies of runs in object stores, for commands and loaders that read them.

The manifest of a checkpoint is uploaded last, so a directory without one is ignored. Checksums are
verified after each download.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from towerpack._core.errors import CheckpointError, ConfigError
from towerpack._core.files import replacing
from towerpack._core.locks import locked
from towerpack._core.logs import get_logger
from towerpack._core.remote_path import RemotePath, is_url
from towerpack.checkpoint._layout import CHECKPOINTS, LEASE, MANIFEST, Place, place, tag_name
from towerpack.checkpoint._manifest import (
    MAX_MANIFEST_BYTES,
    CheckpointRow,
    InvalidCheckpointError,
    Manifest,
    parse_manifest,
)
from towerpack.checkpoint._write import publish, sweep
from towerpack.checkpoint.tensors import check_file, read_plain, sync_and_record

CACHE: Final = "TOWERPACK_RUN_CACHE"
_ATTEMPTS: Final = 3
_logger = get_logger(__name__)


def local_files(
    where: str | os.PathLike[str], *folders: str, names: Iterable[str] | None = None
) -> Path:
    """Return the local directory of a run. Download the files of a run behind a URL.

    Args:
        where: Local path or URL.
        folders: Subdirectories to download too. Checkpoints are downloaded by `load_checkpoint`.
        names: Names of the only files to download, from all runs below the URL.
    """
    if not is_url(where):
        return Path(where)
    run = RemotePath(str(where).rstrip("/"))
    folder = cache_folder(run.url, "copy")
    files = [name for name in run.files() if not hidden(name) or name == LEASE]
    if names is not None:
        wanted = [name for name in files if name.rpartition("/")[2] in names]
    else:
        wanted = [name for name in files if name.partition("/")[0] in (name, *folders)]
    if wanted or folder.exists():
        with _updating(folder):
            for old in folder.iterdir():
                if old.is_file() and old.name not in files and not hidden(old.name):
                    old.unlink()
            pull(run, wanted, folder)
    return folder


def local_checkpoint(url: str, tag: str | None = None) -> Path:
    """Download the newest valid checkpoint of a run behind a URL, or one given checkpoint."""
    run, name = _run_and_name(url)
    with _updating(cache_folder(run, "copy")) as folder:
        return fetch_newest(RemotePath(run), folder / CHECKPOINTS, tag, name)


def list_remote(url: str, *, checksums: bool) -> list[CheckpointRow]:
    """Return the complete checkpoints of a run behind a URL, from their manifests."""
    run = RemotePath(_run_and_name(url)[0])
    rows: list[CheckpointRow] = []
    for entry in visible(run.files()):
        remote = run / CHECKPOINTS / entry.name
        manifest, problem = None, None
        with _updating(cache_folder(run.url, "copy")) as folder:
            try:
                manifest = _read_manifest(remote)[1]
                check_sizes(remote, manifest)
                if checksums:
                    _fetch(remote, folder / CHECKPOINTS)
            except InvalidCheckpointError as error:
                problem = str(error)
        row = CheckpointRow(
            step=entry.step,
            tag=manifest.tag if manifest else entry.tag,
            path=folder / CHECKPOINTS / entry.name,
            nbytes=manifest.nbytes if manifest else 0,
            saved_at=manifest.saved_at if manifest else None,
            info=manifest.info if manifest else {},
            problem=problem,
        )
        rows.append(row)
    return rows


def cache_folder(url: str, kind: str) -> Path:
    """Return the cache directory for a URL. `kind` is "copy" for readers and "run" for a writer."""
    base = Path(os.environ.get(CACHE) or "~/.cache/towerpack").expanduser().absolute()
    digest = hashlib.sha256(url.encode()).hexdigest()[:12]
    return base / "runs" / digest / kind / (RemotePath(url).name or urlsplit(url).netloc)


def hidden(name: str) -> bool:
    """Return whether a file is not one of a run's, or its name could lead to another folder."""
    return any(part.startswith(".") or not part for part in name.split("/"))


def visible(files: Iterable[str]) -> list[Place]:
    """Return the checkpoints of a run that have a manifest, from the lowest step."""
    paths = (Path(name) for name in files if name.endswith(f"/{MANIFEST}"))
    entries = (place(p.parent) for p in paths if p.parts[0] == CHECKPOINTS and len(p.parts) == 3)
    return sorted(entry for entry in entries if entry is not None)


def rank(entry: Place) -> tuple[bool, int]:
    """Return a key whose maximum is the checkpoint that a resumed run loads."""
    return entry.untagged, entry.step


def fetch_newest(
    run: RemotePath, directory: Path, tag: str | None = None, name: str | None = None
) -> Path:
    """Download the newest valid checkpoint of a run to a local directory of checkpoints.

    Raises:
        CheckpointError: No valid checkpoint exists.
    """
    problems: dict[str, str] = {}
    seen: list[Place] | None = None
    # If a writer has removed checkpoints meanwhile, the listing has changed, so look again.
    while (entries := visible(run.files())) != seen:
        seen = entries
        for entry in sorted(entries, key=rank, reverse=True):
            if (tag and entry.tag != tag_name(tag)) or name not in (None, entry.name):
                continue
            try:
                return _fetch(run / CHECKPOINTS / entry.name, directory)
            except InvalidCheckpointError as problem:
                problems[entry.name] = str(problem)
                _logger.warning("Skipped checkpoint %s of %s: %s.", entry.name, run, problem)
    what = name or f"valid checkpoint{f' tagged {tag!r}' if tag else ''}"
    got = [f"{entry}: {problem}" for entry, problem in problems.items()]
    raise CheckpointError(
        f"{run} contains no {what}.",
        got="\n".join(got) or ", ".join(entry.name for entry in entries) or "no checkpoint",
        fix="check the URL, or let the run upload a checkpoint first",
    )


def _fetch(remote: RemotePath, directory: Path) -> Path:
    """Download one checkpoint into a directory, unless it is there already."""
    data, manifest = _read_manifest(remote)

    def fill(folder: Path) -> bytes:
        for name in manifest.files:
            _download(remote / name, folder / name, manifest)
        return data

    target = directory / remote.name
    try:
        for name, record in manifest.files.items():
            check_file(target / name, record, checksum=True)
        if read_plain(target / MANIFEST, limit=MAX_MANIFEST_BYTES) == data:
            return target
    except InvalidCheckpointError:
        pass
    directory.mkdir(parents=True, exist_ok=True)
    return publish(directory, remote.name, fill)


def _download(remote: RemotePath, path: Path, manifest: Manifest) -> None:
    for _ in range(_ATTEMPTS):
        with _or_invalid():
            remote.download(path)
        if sync_and_record(path) == manifest.files[path.name]:
            return
    raise InvalidCheckpointError(f"{path.name} is damaged (its checksum does not match)")


def _read_manifest(remote: RemotePath) -> tuple[bytes, Manifest]:
    with _or_invalid():
        data = (remote / MANIFEST).read()
    return data, parse_manifest(data)


@contextmanager
def _or_invalid() -> Generator[None]:
    try:
        yield
    except ConfigError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        raise InvalidCheckpointError(error.what.rstrip(".")) from error


def check_sizes(remote: RemotePath, manifest: Manifest) -> None:
    """Raise `InvalidCheckpointError` if a file has another size than in the manifest."""
    sizes = remote.files()
    for name, record in manifest.files.items():
        if sizes.get(name) != record.nbytes:
            size = sizes.get(name, 0)
            raise InvalidCheckpointError(f"{name} has {size} bytes instead of {record.nbytes}")


def pull(run: RemotePath, names: Iterable[str], folder: Path) -> None:
    """Download files of a run. Each replaces the local file when it is complete."""

    def download(name: str) -> None:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as part:
            (run / name).download(part)
            sync_and_record(part)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(download, names))


@contextmanager
def disk_errors(folder: Path) -> Generator[None]:
    """Raise `ConfigError` for errors of the local disk."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"The local copy {folder} of a remote run cannot be written.",
            got=f"{type(error).__name__}: {error}",
            fix=f"free space on that disk, or set {CACHE} to a directory on another disk",
        ) from error


@contextmanager
def _updating(folder: Path) -> Generator[Path]:
    """Create a copy and lock it. Other readers wait."""
    with disk_errors(folder):
        (folder / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        with locked(folder / ".lock", look_again_s=0.2):
            sweep(folder / CHECKPOINTS)
            yield folder


def _run_and_name(url: str) -> tuple[str, str | None]:
    """Split the URL of a run, of its checkpoints or of one checkpoint."""
    run, _, last = url.rstrip("/").rpartition("/")
    if last == CHECKPOINTS:
        return run, None
    above, _, folder = run.rpartition("/")
    is_checkpoint = folder == CHECKPOINTS and place(Path(last)) is not None
    return (above, last) if is_checkpoint else (url.rstrip("/"), None)
